"""Credentials: found wherever botocore finds them, renewed in time, missed in plain words."""

from __future__ import annotations

import asyncio
import datetime as dt
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from botocore.credentials import Credentials as Static, RefreshableCredentials
from botocore.exceptions import (
    ClientError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    PartialCredentialsError,
    UnauthorizedSSOTokenError,
)

from tests.support.modes import MODES
from tests.support.scripted_server import ScriptedServer, driven, isolate, refusal
from zae_limiter import AccessDeniedError, InfrastructureError, RateLimiterUnavailable, ValidationError
from zae_limiter.runtime import blocking
from zae_limiter.stores.dynamodb.client import open_client
from zae_limiter.stores.dynamodb.credentials import Credentials, CredentialSource

CONFIG = """
[profile paris]
aws_access_key_id = paris-id
aws_secret_access_key = paris-secret
[profile tokyo]
credential_process = echo '{"Version": 1, "AccessKeyId": "tokyo-id", "SecretAccessKey": "s", "SessionToken": "tok"}'
"""


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    isolate(monkeypatch)


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(CONFIG, encoding="utf-8")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(path))


def used(server: ScriptedServer) -> str:
    """The access key of the last request."""
    return server.seen[-1].headers["authorization"].partition("Credential=")[2].partition("/")[0]


@pytest.mark.usefixtures("config")
@pytest.mark.parametrize("mode", MODES)
def test_credentials_of_environment_profile_and_process(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedServer() as server:
        with driven(mode, server.url) as subject:
            subject.call()
            assert used(server) == "local", "a local engine needs no setup"
        with driven(mode, server.url, profile="paris") as subject:
            subject.call()
            assert used(server) == "paris-id"
        with driven(mode, server.url, profile="tokyo") as subject:
            subject.call()
            assert used(server) == "tokyo-id"
            assert server.seen[-1].headers["x-amz-security-token"] == "tok"
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "env-id")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "env-secret")
        with driven(mode, server.url) as subject:
            subject.call()
            assert used(server) == "env-id"


@pytest.mark.parametrize("mode", MODES)
def test_missing_credentials_are_no_outage(mode: str) -> None:
    with driven(mode, "http://dynamodb:8000") as subject:
        for _ in range(2):
            with pytest.raises(AccessDeniedError, match=r"AWS_ACCESS_KEY_ID.*aws sso login.*role"):
                subject.call()
        assert subject.client.stats.snapshot().total_calls == 0


@pytest.mark.parametrize("mode", MODES)
def test_a_config_file_that_is_none(mode: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "config"
    broken.write_text("[default\nregion", encoding="utf-8")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(broken))
    with driven(mode, "http://127.0.0.1:9") as subject, pytest.raises(ValidationError, match=r"config.*understood"):
        subject.call()


@pytest.mark.parametrize("mode", MODES)
def test_a_profile_that_does_not_exist(mode: str) -> None:
    with (
        driven(mode, "http://127.0.0.1:9", profile="nobody") as subject,
        pytest.raises(ValidationError, match=r"profile = 'nobody'"),
    ):
        subject.call()


class FakeSession:
    """Stands for botocore: hands out what a test says."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make
        self.asked = 0

    def __call__(self) -> FakeSession:
        return self

    def get_credentials(self) -> Any:
        self.asked += 1
        return self.make()


class Chain:
    """botocore's chain of providers, as far as it is touched."""

    def __init__(self) -> None:
        self.removed: list[str] = []

    def remove(self, name: str) -> None:
        self.removed.append(name)


def source(session: FakeSession, now: list[float]) -> CredentialSource:
    return CredentialSource(session, local=lambda: False, timer=lambda: now[0])


@pytest.mark.parametrize("local", [True, False])
def test_a_local_engine_asks_for_no_instance_role(local: bool) -> None:
    session, chain = FakeSession(lambda: None), Chain()
    session.get_component = lambda name: chain  # type: ignore[attr-defined]  # only the chain is asked for
    subject = CredentialSource(session, local=lambda: local)
    if local:
        assert subject.ask() == Credentials("local", "local")
    else:
        with pytest.raises(AccessDeniedError):
            subject.ask()
    assert chain.removed == ["iam-role"] * local


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_in_the_middle_of_a_renewal_does_not_hang_the_child() -> None:
    subject = source(FakeSession(lambda: Static("a", "b")), [0.0])
    with subject._turn:
        child = os.fork()
        if child == 0:
            signal.alarm(5)
            os._exit(0 if subject.ask() == Credentials("a", "b") else 1)
    assert os.waitpid(child, 0)[1] == 0


def raising(error: Exception) -> Callable[[], Any]:
    def make() -> Any:
        raise error

    return make


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (PartialCredentialsError(provider="env", cred_var="AWS_SECRET_ACCESS_KEY"), AccessDeniedError),
        (UnauthorizedSSOTokenError(), AccessDeniedError),
        (CredentialRetrievalError(provider="process", error_msg="exit 1"), AccessDeniedError),
        (ClientError({"Error": {"Code": "AccessDenied"}}, "AssumeRole"), AccessDeniedError),
        (ConnectTimeoutError(endpoint_url="http://sts"), RateLimiterUnavailable),
        (ClientError({"ResponseMetadata": {"HTTPStatusCode": 503}}, "AssumeRole"), RateLimiterUnavailable),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_what_botocore_cannot_resolve(error: Exception, kind: type[InfrastructureError]) -> None:
    now = [100.0]
    session = FakeSession(raising(error))
    subject = source(session, now)
    for _ in range(3):
        with pytest.raises(kind):
            subject.ask()
    assert session.asked == 1, "not asked again at once"
    now[0] += 3
    session.make = lambda: Static("a", "b")
    assert subject.ask() == Credentials("a", "b"), "recovers by itself"


@pytest.mark.parametrize("secret", ["s\n", "", "s p", "ü"])
def test_credentials_that_fit_into_no_header(secret: str) -> None:
    with pytest.raises(AccessDeniedError) as caught:
        source(FakeSession(lambda: Static("id", secret)), [0.0]).ask()
    assert not secret or secret not in str(caught.value)


class Lessor:
    """Credentials that end, as STS gives them: by a number that counts up."""

    def __init__(self, lifetime: dt.timedelta) -> None:
        self.lifetime = lifetime
        self.given = 0

    def refresh(self) -> dict[str, str]:
        self.given += 1
        end = dt.datetime.now(dt.UTC) + self.lifetime
        return {"access_key": f"k{self.given}", "secret_key": "s", "token": "t", "expiry_time": end.isoformat()}

    def credentials(self) -> RefreshableCredentials:
        return RefreshableCredentials.create_from_metadata(self.refresh(), self.refresh, "test")


def test_what_expires_is_renewed_before_its_time() -> None:
    now = [0.0]
    lessor = Lessor(dt.timedelta(minutes=12))  # botocore renews from 15 minutes before the end on
    subject = source(FakeSession(lessor.credentials), now)
    first = subject.ask()
    for _ in range(100):
        assert subject.cached == first
        assert not subject.due
    now[0] += 60
    assert subject.due
    assert subject.ask() != first
    assert not subject.due


def test_what_lasts_is_not_renewed() -> None:
    now = [0.0]
    lessor = Lessor(dt.timedelta(hours=6))
    session = FakeSession(lessor.credentials)
    subject = source(session, now)
    for _ in range(10):
        assert subject.ask().access_key == "k1"
        now[0] += 61
    assert session.asked == lessor.given == 1


def test_refused_credentials_are_resolved_once_for_all_who_met_the_refusal() -> None:
    session = FakeSession(iter([Static("old", "s"), Static("new", "s"), Static("newer", "s")]).__next__)
    subject = source(session, [0.0])
    old = subject.ask()
    assert [subject.ask(old).access_key for _ in range(5)] == ["new"] * 5
    assert session.asked == 2


async def test_a_renewal_runs_beside_the_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    asked, release, threads = threading.Event(), threading.Event(), []

    def slow() -> Credentials:
        threads.append(threading.current_thread())
        asked.set()
        release.wait()
        return Credentials("id", "secret")

    async def work(server: ScriptedServer) -> None:
        client = open_client("t", blocking=False, region="eu-west-1", endpoint_url=server.url)
        await client.call("GetItem", {})
        monkeypatch.setattr(client._credentials, "ask", slow)
        monkeypatch.setattr(CredentialSource, "due", True)
        for _ in range(5):
            await client.call("GetItem", {})
        await asyncio.to_thread(asked.wait)
        release.set()

    with ScriptedServer() as server:
        await work(server)
        assert len(server.seen) == 6
    assert len(threads) == 1
    assert threads[0] is not threading.main_thread()


async def test_a_renewal_under_way_that_has_not_heard_of_the_refusal_is_not_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "old")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    release = threading.Event()
    old, new = Credentials("old", "secret"), Credentials("new", "secret")

    def ask(refused: Credentials | None = None) -> Credentials:
        if refused is None:
            release.wait()
        return new if refused == old else old

    async def work(server: ScriptedServer) -> None:
        client = open_client("t", blocking=False, region="eu-west-1", endpoint_url=server.url)
        await client.call("GetItem", {})
        aside = client.connections.sockets.aside

        async def joined(job: Callable[[], Any], timeout: float) -> Any:
            release.set()
            return await aside(job, timeout)

        monkeypatch.setattr(client._credentials, "ask", ask)
        monkeypatch.setattr(CredentialSource, "due", True)
        monkeypatch.setattr(client.connections.sockets, "aside", joined)
        server.script.append(refusal("ExpiredTokenException"))
        await client.call("GetItem", {})

    with ScriptedServer() as server:
        await work(server)
        assert used(server) == "new"


async def test_a_cancelled_caller_does_not_end_the_search_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    release, asked = threading.Event(), threading.Event()
    runs: list[int] = []

    def ask(self: CredentialSource, refused: Credentials | None = None) -> Credentials:
        runs.append(1)
        asked.set()
        release.wait()
        return Credentials("id", "secret")

    monkeypatch.setattr(CredentialSource, "ask", ask)

    async def work(server: ScriptedServer) -> None:
        client = open_client("t", blocking=False, region="eu-west-1", endpoint_url=server.url)
        first, second = (asyncio.ensure_future(client.call("GetItem", {})) for _ in range(2))
        await asyncio.to_thread(asked.wait)
        first.cancel()
        await asyncio.wait((first,))
        release.set()
        assert await second == {}
        assert first.cancelled()

    with ScriptedServer() as server:
        await work(server)
    assert len(runs) == 1


async def test_credentials_that_take_too_long_are_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    monkeypatch.setattr(CredentialSource, "ask", lambda self, refused=None: release.wait())
    client = open_client("t", blocking=False, region="eu-west-1", endpoint_url="http://127.0.0.1:9")
    try:
        with pytest.raises(RateLimiterUnavailable, match="credentials"):
            await client.call("GetItem", {}, timeout=0.02)
    finally:
        release.set()


def test_a_blocking_client_renews_in_the_callers_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[threading.Thread] = []
    with ScriptedServer() as server:
        client = open_client("t", blocking=True, region="eu-west-1", endpoint_url=server.url)
        blocking.run(client.call("GetItem", {}))
        monkeypatch.setattr(CredentialSource, "due", True)
        monkeypatch.setattr(client._credentials, "ask", lambda: asked.append(threading.current_thread()))
        blocking.run(client.call("GetItem", {}))
    assert asked == [threading.main_thread()]
