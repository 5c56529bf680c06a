"""The engine can do what DynamoDB documents, and one that cannot is told by name."""

from __future__ import annotations

import contextlib
from functools import partial

import pytest

from tests.support.aws import abilities, engine, plain
from tests.support.scripted_server import ScriptedServer, refusal
from zae_limiter.aws.calls import Aws
from zae_limiter.stores.dynamodb.credentials import Credentials


def test_the_engine_has_every_documented_ability() -> None:
    assert not abilities.lacking(), f"the engine at {engine.endpoint()} lacks: {', '.join(abilities.lacking())}"


def test_tests_are_skipped_where_an_engine_named_from_outside_lacks_what_is_essential(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(engine.URL, engine.endpoint())
    monkeypatch.setattr(abilities, "lacking", lambda: {"transactions": True, "time to live": False})
    with pytest.raises(pytest.skip.Exception, match=r"^the engine lacks: transactions$"):
        abilities.skip_where_lacking()
    monkeypatch.setattr(abilities, "lacking", lambda: {"time to live": False})
    abilities.skip_where_lacking()


def test_the_engine_of_the_tests_is_never_a_reason_to_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(engine.URL, raising=False)
    monkeypatch.setattr(abilities, "lacking", lambda: {"transactions": True})
    abilities.skip_where_lacking()


@pytest.mark.parametrize("ability", [*abilities.ESSENTIAL, *abilities.FURTHER])
def test_an_ability_that_is_missing_is_noticed(ability: str) -> None:
    """An engine that answers nothing but ``{}`` can do nothing."""

    class Nothing(abilities.Probe):
        patience = 0.0

        def call(self, operation: str, **request: object) -> dict[str, object]:
            return {}

    assert not (abilities.ESSENTIAL | abilities.FURTHER)[ability](Nothing(None, "t"))  # type: ignore[arg-type]


def test_an_index_may_lag_behind() -> None:
    class Slow(abilities.Probe):
        looks = 0

        def call(self, operation: str, **request: object) -> dict[str, object]:
            self.looks += operation == "Query"
            return {"Items": [dict.fromkeys(("GSI2PK", "GSI2SK", "PK", "SK"))] if self.looks > 2 else []}

    assert abilities.has_indexes(Slow(None, "t"))  # type: ignore[arg-type]


def test_an_engine_that_cannot_be_used_is_told_with_what_to_set() -> None:
    with ScriptedServer() as server, contextlib.closing(plain.Plain(server.url)) as direct:
        server.script.append(refusal("UnrecognizedClientException", "The security token is invalid."))
        with pytest.raises(engine.EngineMissing, match=r"token is invalid.*AWS_SECRET_ACCESS_KEY and AWS_REGION"):
            direct.table("any")
    with contextlib.closing(plain.Plain(server.url)) as direct, pytest.raises(engine.EngineMissing, match=engine.URL):
        direct.table("any")


def test_set_up_calls_are_signed_as_a_strict_engine_wants_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a user who may do nothing: the engine looks at the signature first."""
    for name, value in engine.CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    strict = engine.start(*engine.quick(), AUTH="true")
    try:
        aws = Aws("us-east-1", strict.url)
        aws.call("iam", "create_user", UserName="nobody")
        made = aws.call("iam", "create_access_key", UserName="nobody")["AccessKey"]
        with contextlib.closing(plain.Plain(strict.url)) as direct:
            found = []
            for secret in (made["SecretAccessKey"], "another"):
                monkeypatch.setattr(plain, "credentials", partial(Credentials, made["AccessKeyId"], secret))
                found.append(direct.call("DescribeTable", TableName="any")[1]["__type"].rpartition("#")[2])
            assert found == ["AccessDeniedException", "InvalidSignatureException"]
    finally:
        strict.stop()
