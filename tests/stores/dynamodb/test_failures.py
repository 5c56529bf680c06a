"""Everything that can go wrong on the way to DynamoDB, in both modes: the error, and what is tried again."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from email.utils import formatdate
from typing import Any

import pytest

from tests.support.modes import MODES
from tests.support.scripted_server import CLOSE, HANG, Driven, ScriptedServer, Step, driven, isolate, refusal, reply
from zae_limiter import (
    AccessDeniedError,
    CorruptRecordError,
    InfrastructureError,
    InfrastructureNotFoundError,
    RateLimiterUnavailable,
)
from zae_limiter.stores.dynamodb.answers import MEANINGS, Refused, ServiceError
from zae_limiter.stores.outcomes import NotSent, Unknown


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    isolate(monkeypatch)


@pytest.fixture(params=MODES)
def subject(request: pytest.FixtureRequest, server: ScriptedServer) -> Iterator[Driven]:
    with driven(request.param, server.url, chance=lambda: 0.5) as made:
        yield made


CUT_IN_BODY = Step(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{", close=True)
CUT_IN_HEAD = Step(b"HTTP/1.1 200 OK\r\ncontent-le", close=True)
CUT_IN_CHUNK = Step(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\n{", close=True)
NO_HTTP = Step(b"SSH-2.0-OpenSSH_9.0\r\n\r\n", close=True)
HTML = reply(b"<html>Bad gateway</html>", 502, crc=zlib.crc32(b"<html>Bad gateway</html>"), headers=())

MAYBE_EXECUTED = {
    "closed before the answer": CLOSE,
    "cut in the head": CUT_IN_HEAD,
    "cut in the body": CUT_IN_BODY,
    "cut in a chunk": CUT_IN_CHUNK,
    "no HTTP": NO_HTTP,
    "html of a proxy": HTML,
    "html with 200": reply(b"<html>Log in</html>"),
    "empty": reply(b""),
    "a JSON list": reply(b"[]"),
    "half a JSON": reply(b'{"Item":'),
    "wrong checksum": reply(b"{}", crc=1),
    "500": refusal("InternalServerError", "oops", 500),
    "500 of unknown kind": reply({}, 500),
    "503": refusal("ServiceUnavailable", "", 503),
    "in progress": refusal("TransactionInProgressException"),
    "length of nonsense": Step(b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n", close=True),
    "broken chunk": Step(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n\r\n", close=True),
}


@pytest.mark.parametrize("step", MAYBE_EXECUTED.values(), ids=MAYBE_EXECUTED)
def test_what_may_have_been_executed_is_never_sent_again(server: ScriptedServer, subject: Driven, step: Step) -> None:
    server.script.append(step)
    with pytest.raises(RateLimiterUnavailable, match="DynamoDB table 't' in eu-west-1") as caught:
        subject.call("UpdateItem")
    assert len(server.seen) == 1
    assert isinstance(caught.value.cause, (Unknown, ServiceError))
    assert caught.value.__cause__ is caught.value.cause
    assert subject.call("UpdateItem") == {}, "the next call is not harmed"


@pytest.mark.parametrize("step", MAYBE_EXECUTED.values(), ids=MAYBE_EXECUTED)
def test_what_may_be_repeated_is(server: ScriptedServer, subject: Driven, step: Step) -> None:
    server.script.extend([step, step, reply({"ok": 1})])
    assert subject.call("GetItem", repeatable=True) == {"ok": 1}
    assert len(server.seen) == 3
    assert subject.client.stats.snapshot().retries == 2


def test_no_answer_in_time_is_unknown(server: ScriptedServer, subject: Driven) -> None:
    subject.call()
    server.script.append(HANG)
    with pytest.raises(RateLimiterUnavailable, match="in time") as caught:
        subject.call("UpdateItem", timeout=0.1)
    assert isinstance(caught.value.cause, Unknown)
    assert len(server.seen) == 2
    assert subject.call() == {}


def test_an_answer_that_stops_in_the_middle_is_given_up_in_time(server: ScriptedServer, subject: Driven) -> None:
    subject.call()
    server.script.append(Step(reply({"Item": "x" * 100}).data[:-5]))
    with pytest.raises(RateLimiterUnavailable, match="in time"):
        subject.call("UpdateItem", timeout=0.1)


GUARDED = {"TableName": "t", "ConditionExpression": "x", "TransactItems": [{}, {}]}
"""A request that a failed condition or a cancelled transaction of two writes can answer."""

SAFE = {
    **{code: refusal(code) for code, row in MEANINGS.items() if row.throttled},
    "429 without a code": reply({}, 429),
    "conflict": refusal("TransactionConflictException"),
    "cancelled by a conflict": refusal(
        "TransactionCanceledException", CancellationReasons=[{"Code": "None"}, {"Code": "TransactionConflict"}]
    ),
    "cancelled by throttling": refusal(
        "TransactionCanceledException",
        CancellationReasons=[{"Code": "ThrottlingError", "Message": "slow"}, {"Code": "None"}],
    ),
}


@pytest.mark.parametrize("step", SAFE.values(), ids=SAFE)
def test_what_was_surely_not_executed_is_sent_again(server: ScriptedServer, subject: Driven, step: Step) -> None:
    server.script.extend([step, step, step, step, reply({"ok": 1})])
    assert subject.call("UpdateItem", GUARDED) == {"ok": 1}
    assert subject.pauses == [0.0125, 0.025, 0.05, 0.1], "full jitter, at its middle"


def test_tries_run_out(server: ScriptedServer, subject: Driven) -> None:
    server.script.extend([refusal("ThrottlingException", "too fast")] * 9)
    with pytest.raises(RateLimiterUnavailable, match="too fast; request REQ1") as caught:
        subject.call("UpdateItem")
    assert len(server.seen) == 5
    assert isinstance(caught.value.cause, ServiceError)
    assert (caught.value.cause.code, caught.value.cause.request_id) == ("ThrottlingException", "REQ1")
    stats = subject.client.stats.snapshot()
    assert (stats.calls, stats.total_calls, stats.retries, stats.throttled) == ({"UpdateItem": 5}, 5, 4, 5)


def test_contention_is_no_outage(server: ScriptedServer, subject: Driven) -> None:
    """Whoever lost to other transactions tries until its time is up."""
    server.script.extend([refusal("TransactionConflictException")] * 30 + [reply({"ok": 1})])
    assert subject.call("UpdateItem", timeout=1000) == {"ok": 1}


@pytest.mark.parametrize("mode", MODES)
def test_no_pause_goes_beyond_the_deadline(server: ScriptedServer, mode: str) -> None:
    server.script.extend([refusal("ThrottlingException")] * 9)
    now = [0.0]
    with driven(mode, server.url, timer=lambda: now[0], chance=lambda: 1000.0) as subject:
        with pytest.raises(RateLimiterUnavailable):
            subject.call("UpdateItem", timeout=40)
        assert subject.pauses == [25], "the next pause, 50 s, would be too long"


@pytest.mark.parametrize("mode", MODES)
def test_a_refused_connection_was_not_sent(mode: str) -> None:
    with ScriptedServer() as server:
        url = server.url
    with driven(mode, url) as subject:
        with pytest.raises(RateLimiterUnavailable, match="cannot be reached") as caught:
            subject.call("UpdateItem")
        assert isinstance(caught.value.cause, NotSent)
        assert subject.client.stats.snapshot().retries == 4


@pytest.mark.parametrize("mode", MODES)
def test_a_name_without_address_was_not_sent(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with driven(mode, "http://nobody.invalid:8000") as subject:
        with pytest.raises(RateLimiterUnavailable) as caught:
            subject.call("UpdateItem")
        assert isinstance(caught.value.cause, NotSent)


@pytest.mark.parametrize("mode", MODES)
def test_a_recovered_service_is_used_again(mode: str) -> None:
    with ScriptedServer() as server, driven(mode, server.url) as subject:
        subject.call()
        server.script.extend([CLOSE])
        with pytest.raises(RateLimiterUnavailable):
            subject.call("UpdateItem")
        assert subject.call("UpdateItem") == {}


CONFIGURATION: dict[str, tuple[Step, type[InfrastructureError], str]] = {
    "denied": (refusal("AccessDeniedException", "not authorized to perform X"), AccessDeniedError, "not authorized"),
    "bad secret": (refusal("InvalidSignatureException", "does not match"), AccessDeniedError, "secret key"),
    "incomplete": (refusal("IncompleteSignatureException"), AccessDeniedError, "request REQ1"),
    "no table": (refusal("ResourceNotFoundException"), InfrastructureNotFoundError, r"'t' in eu-west-1.*create-table"),
    "bad type": (
        refusal("ValidationException", "An operand in the update expression has an incorrect data type"),
        CorruptRecordError,
        "unexpected type",
    ),
    "bad request": (refusal("ValidationException", "Value provided in X unused"), InfrastructureError, "unused"),
    "unknown": (refusal("SomethingNewException"), InfrastructureError, "SomethingNew"),
    "by header": (
        reply({}, 400, headers=("x-amzn-errortype: AccessDeniedException:http://x/",)),
        AccessDeniedError,
        "AccessDenied",
    ),
    "cancelled for a wrong type": (
        refusal(
            "TransactionCanceledException",
            CancellationReasons=[
                {"Code": "ValidationError", "Message": "has an incorrect data type"},
                {"Code": "None"},
            ],
        ),
        CorruptRecordError,
        "unexpected type",
    ),
}


@pytest.mark.parametrize(("step", "kind", "words"), CONFIGURATION.values(), ids=CONFIGURATION)
def test_a_fault_of_the_setup_is_no_outage(
    server: ScriptedServer, subject: Driven, step: Step, kind: type[InfrastructureError], words: str
) -> None:
    server.script.append(step)
    with pytest.raises(kind, match=words) as caught:
        subject.call("UpdateItem", GUARDED, repeatable=True)
    assert type(caught.value) is not RateLimiterUnavailable
    assert isinstance(caught.value.__cause__, ServiceError)
    assert len(server.seen) == 1


@pytest.mark.parametrize("code", ["ExpiredTokenException", "UnrecognizedClientException"])
def test_expired_credentials_are_renewed_once(
    server: ScriptedServer, subject: Driven, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "old")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    subject.call()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "new")
    server.script.append(refusal(code))
    subject.call("UpdateItem")
    used = [seen.headers["authorization"].partition("Credential=")[2].partition("/")[0] for seen in server.seen]
    assert used == ["old", "old", "new"]
    server.script.extend([refusal(code)] * 3)
    with pytest.raises(AccessDeniedError, match="log in again"):
        subject.call("UpdateItem")
    assert len(server.seen) == 5


@pytest.mark.parametrize("message", ["Signature expired: 2026 is now earlier than", "Signature not yet current: 2027"])
def test_a_skewed_signature_is_made_again_by_the_services_clock(
    server: ScriptedServer, subject: Driven, message: str
) -> None:
    server.script.append(refusal("InvalidSignatureException", message, date=formatdate(1_700_000_000, usegmt=True)))
    subject.call("UpdateItem")
    first, second = (seen.headers["x-amz-date"] for seen in server.seen)
    assert first > "2024"
    assert second.startswith("20231114T2213")
    server.script.extend([refusal("InvalidSignatureException", message)] * 3)
    with pytest.raises(AccessDeniedError, match="clock"):
        subject.call("UpdateItem")
    assert len(server.seen) == 4


def test_a_proxys_date_is_not_the_services(server: ScriptedServer, subject: Driven) -> None:
    server.script.append(reply(b"<html>", 403, headers=(), date=formatdate(1_700_000_000, usegmt=True)))
    with pytest.raises(RateLimiterUnavailable):
        subject.call("UpdateItem")
    assert subject.client.clock.interval is None


REFUSED: dict[str, dict[str, Any]] = {
    "ConditionalCheckFailedException": {"Item": {"tk": {"N": "5"}}},
    "TransactionCanceledException": {
        "CancellationReasons": [{"Code": "TransactionConflict"}, {"Code": "ConditionalCheckFailed", "Item": {}}]
    },
}


@pytest.mark.parametrize(("code", "more"), REFUSED.items(), ids=REFUSED)
def test_a_guard_that_does_not_hold_is_an_answer(
    server: ScriptedServer, subject: Driven, code: str, more: dict[str, Any]
) -> None:
    server.script.append(refusal(code, "The conditional request failed", **more))
    with pytest.raises(Refused) as caught:
        subject.call("UpdateItem", GUARDED, repeatable=True)
    assert caught.value.code == code
    assert more.items() <= caught.value.body.items()
    stats = subject.client.stats.snapshot()
    assert (stats.conflicts, stats.retries, len(server.seen)) == (1, 0, 1)
