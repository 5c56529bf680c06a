"""Credentials: found wherever botocore finds them, renewed in time, missed in plain words."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
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

from tests.support.deadlines import PATIENCE
from tests.support.modes import MODES, Mode
from tests.support.scripted_server import ScriptedServer, driven, isolate, refusal
from zae_limiter import (
    AccessDeniedError,
    InfrastructureError,
    RateLimiterUnavailable,
    ValidationError,
)
from zae_limiter.repository.backend import Backend, BackendOptions
from zae_limiter.runtime.aio import AsyncioRuntime
from zae_limiter.runtime.blocking import BlockingRuntime
from zae_limiter.runtime.port import Runtime
from zae_limiter.stores.dynamodb import client as client_module
from zae_limiter.stores.dynamodb.client import Client, Options, open_client
from zae_limiter.stores.dynamodb.credentials import Credentials, CredentialSource
from zae_limiter.stores.dynamodb.store import DynamoStore

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


class ChargePath:
    """botocore's chain of providers, as far as it is touched."""

    def __init__(self) -> None:
        self.removed: list[str] = []

    def remove(self, name: str) -> None:
        self.removed.append(name)


def source(session: FakeSession, now: list[float]) -> CredentialSource:
    return CredentialSource(session, local=lambda: False, timer=lambda: now[0])


@pytest.mark.parametrize("local", [True, False])
def test_a_local_engine_asks_for_no_instance_role(local: bool) -> None:
    session, chain = FakeSession(lambda: None), ChargePath()
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
    asked, release = threading.Event(), threading.Event()

    def slow() -> Any:
        asked.set()
        assert release.wait(PATIENCE)
        return Static("a", "b")

    session = FakeSession(slow)
    subject = source(session, [0.0])
    run = subject.renew()
    asked.wait(PATIENCE)
    child = os.fork()
    if child == 0:
        signal.alarm(5)
        session.make = lambda: Static("a", "b")
        os._exit(0 if subject.renew().result() == Credentials("a", "b") else 1)
    assert os.waitpid(child, 0)[1] == 0
    release.set()
    assert run.result() == Credentials("a", "b"), "the parent's goes on"


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


@pytest.mark.parametrize(
    "given", [("AccessKeyId", 5), ("AccessKeyId", None), ("SecretAccessKey", True), ("SessionToken", ["a"])]
)
@pytest.mark.parametrize("mode", MODES)
def test_a_process_that_prints_no_texts(
    mode: str, given: tuple[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = {"Version": 1, "AccessKeyId": "A", "SecretAccessKey": "S", "SessionToken": "T", given[0]: given[1]}
    (tmp_path / "printed.json").write_text(json.dumps(printed), encoding="utf-8")
    (tmp_path / "config").write_text(f"[default]\ncredential_process = cat {tmp_path}/printed.json\n", encoding="utf-8")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    with ScriptedServer() as server, driven(mode, server.url) as subject:
        with pytest.raises(AccessDeniedError, match="not all texts"):
            subject.call()
        assert not server.seen


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
        assert now[0] < subject.due_at
    now[0] += 60
    assert now[0] >= subject.due_at
    assert subject.ask() != first
    assert now[0] < subject.due_at


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


class Provider:
    """Stands for what finds credentials: hands out those that are set, when it is let."""

    def __init__(self) -> None:
        self.found: Credentials | Exception = Credentials("old", "secret")
        self.asked, self.release = threading.Event(), threading.Event()
        self.threads: list[threading.Thread] = []
        self.sources: list[CredentialSource] = []
        """Who has asked; clients that earlier tests have left behind may be among them."""
        self.release.set()

    def resolve(self, source: CredentialSource) -> Credentials:
        found = self.found  # as of when it was asked
        self.threads.append(threading.current_thread())
        self.sources.append(source)
        self.asked.set()
        assert self.release.wait(PATIENCE)
        if isinstance(found, Exception):
            raise found
        return found

    def hang(self) -> None:
        """Do not answer from now on."""
        self.release.clear()
        self.asked.clear()


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[Provider]:
    """The provider of every client of a test; whoever still waits for it at the end is let go."""
    made = Provider()
    monkeypatch.setattr(CredentialSource, "_resolve", lambda source: made.resolve(source))
    yield made
    made.release.set()
    for thread in made.threads:
        thread.join()


@pytest.mark.parametrize("mode", MODES)
def test_nobody_waits_for_a_renewal_while_there_are_valid_credentials(mode: str, provider: Provider) -> None:
    with ScriptedServer() as server, driven(mode, server.url) as subject:
        subject.call()
        provider.hang()
        subject.client._credentials.due_at = 0.0
        for _ in range(5):
            subject.call()
        assert provider.asked.wait(PATIENCE)
        subject.client._credentials.due_at = 0.0
        subject.call()
        provider.release.set()
        assert len(server.seen) == 7
        assert used(server) == "old"
    assert len(provider.threads) == 2, "one at a time"
    assert all(thread.daemon for thread in provider.threads), "a program can end while a provider hangs"


@pytest.mark.parametrize("mode", MODES)
def test_a_renewal_that_fails_is_logged_while_the_old_credentials_are_valid(
    mode: str, provider: Provider, caplog: pytest.LogCaptureFixture
) -> None:
    with ScriptedServer() as server, driven(mode, server.url) as subject:
        subject.call()
        provider.found = RateLimiterUnavailable("sts is down")
        subject.client._credentials.due_at = 0.0
        subject.call()
        for thread in provider.threads:
            thread.join()
        subject.call()
        assert len(server.seen) == 3
    (record,) = caplog.records
    assert record.__dict__["zae_event"] == "credentials.not_renewed"
    assert "sts is down" in record.getMessage()


@pytest.mark.parametrize("mode", MODES)
def test_refused_credentials_are_awaited_no_longer_than_the_call_may_take(mode: str, provider: Provider) -> None:
    with ScriptedServer() as server, driven(mode, server.url) as subject:
        subject.call()
        provider.hang()
        server.script.append(refusal("ExpiredTokenException"))
        with pytest.raises(RateLimiterUnavailable, match=r"AWS credentials could not be found within 0\.[0-9]+ s"):
            subject.call(timeout=0.2)
        provider.found = Credentials("new", "secret")
        provider.release.set()


@pytest.mark.parametrize("mode", MODES)
def test_a_renewal_under_way_that_has_not_heard_of_the_refusal_is_not_enough(mode: str, provider: Provider) -> None:
    with ScriptedServer() as server, driven(mode, server.url) as subject:
        subject.call()
        provider.hang()
        subject.client._credentials.due_at = 0.0

        def refuse() -> None:
            """While somebody asks for credentials, who will get the old ones."""
            assert provider.asked.wait(PATIENCE)
            provider.found = Credentials("new", "secret")
            provider.release.set()

        server.script.append(refusal("ExpiredTokenException")._replace(before=refuse))
        subject.call()
        assert used(server) == "new"


@pytest.mark.parametrize("mode", MODES)
def test_the_first_call_has_all_its_time_when_there_are_credentials(mode: str, provider: Provider) -> None:
    now = [0.0]
    resolve = provider.resolve

    def slow(source: CredentialSource) -> Credentials:
        now[0] += 19.0
        return resolve(source)

    provider.resolve = slow  # type: ignore[method-assign]
    with ScriptedServer() as server, driven(mode, server.url, timer=lambda: now[0]) as subject:
        assert subject.call(timeout=2) == {}


@pytest.mark.parametrize("mode", MODES)
def test_the_first_call_of_a_limiter_has_all_its_time_too(mode: str, provider: Provider) -> None:
    """Its deadline begins when there are credentials."""
    now = [0.0]
    resolve = provider.resolve

    def slow(source: CredentialSource) -> Credentials:
        now[0] += 19.0
        return resolve(source)

    provider.resolve = slow  # type: ignore[method-assign]
    subject = Mode(mode)
    runtime: Runtime = BlockingRuntime() if mode == "blocking" else AsyncioRuntime()
    client = Client(Options("t", "eu-west-1", "http://127.0.0.1:9"), blocking=mode == "blocking", timer=lambda: now[0])
    backend = Backend(DynamoStore(client), runtime, "default", BackendOptions(60.0, 2.0))
    backend.stopwatch = lambda: now[0]
    try:
        deadline = subject.run(backend.begin())
        assert (now[0], deadline.left()) == (19.0, 2.0)
        assert backend.unprepared is None, "later calls do not look"
    finally:
        subject.close()


@pytest.mark.parametrize("mode", MODES)
def test_credentials_that_are_never_found_are_an_outage_of_their_own(
    mode: str, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider.hang()
    monkeypatch.setattr(client_module, "FIND_SECONDS", 0.05)
    now = [0.0]
    with driven(mode, "http://127.0.0.1:9", timer=lambda: now[0]) as subject:
        with pytest.raises(RateLimiterUnavailable, match=r"AWS credentials could not be found within 0\.05 s"):
            subject.call(timeout=1000)
        now[0] = 30.0
        with pytest.raises(RateLimiterUnavailable, match="AWS credentials"):
            subject.call()
        own = subject.client._credentials
        assert provider.sources.count(own) == 1, "others do not ask a provider that hangs"
        now[0] = 61.0
        with pytest.raises(RateLimiterUnavailable, match="AWS credentials"):
            subject.call()
        assert provider.sources.count(own) == 2, "but it is tried again"


def test_a_process_that_ends_finds_credentials_without_a_thread(
    monkeypatch: pytest.MonkeyPatch, provider: Provider
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread at interpreter shutdown")

    with ScriptedServer() as server, driven("blocking", server.url) as subject:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            run = subject.client._credentials.renew()
        assert run.result(0) == Credentials("old", "secret")
        provider.threads.clear()  # this one


async def test_a_cancelled_caller_does_not_end_the_search_of_the_others(provider: Provider) -> None:
    provider.hang()

    async def work(server: ScriptedServer) -> None:
        client = open_client("t", blocking=False, region="eu-west-1", endpoint_url=server.url)
        first, second = (asyncio.ensure_future(client.call("GetItem", {})) for _ in range(2))
        await asyncio.to_thread(provider.asked.wait)
        first.cancel()
        await asyncio.wait((first,))
        provider.release.set()
        assert await second == {}
        assert first.cancelled()
        await client.close()

    with ScriptedServer() as server:
        await work(server)
    assert len(provider.threads) == 1


def test_threads_that_need_credentials_at_once_share_one_search(provider: Provider) -> None:
    provider.hang()
    with ScriptedServer() as server, driven("blocking", server.url) as subject:
        threads = [threading.Thread(target=subject.call) for _ in range(8)]
        for thread in threads:
            thread.start()
        assert provider.asked.wait(PATIENCE)
        provider.release.set()
        for thread in threads:
            thread.join()
        assert len(server.seen) == 8
    assert len(provider.threads) == 1
