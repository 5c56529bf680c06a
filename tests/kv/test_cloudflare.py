"""Workers KV through the REST API: real httpx, real sockets, both modes."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.kv.cloud import ACCOUNT, NAMESPACE, TOKEN, VALUES, Asked, Cloud
from tests.kv.support import CLIENT, KEY, Mode
from zae_limiter import AccessDeniedError, RateLimiterUnavailable, ValidationError, ZAELimiterError
from zae_limiter.kv import (
    CloudflareRepository,
    RateLimitPolicy,
    RateLimitResult,
    SyncEnforceRateLimit,
    TokenBucket,
)
from zae_limiter.kv.repositories import API
from zae_limiter.runtime.blocking import run
from zae_limiter.testing import ManualClock

BUCKET = TokenBucket(9, 1_800_000_000_000, 10)


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    """An empty namespace."""
    with Cloud() as running:
        yield running


@contextlib.contextmanager
def repository(mode: Mode, cloud: Cloud, **options: Any) -> Iterator[CloudflareRepository]:
    """A repository of the mode that is closed at the end."""
    given = {"account_id": ACCOUNT, "namespace_id": NAMESPACE, "api_token": TOKEN, "base_url": cloud.url, **options}
    made = CloudflareRepository(**{"timeout": 60, **given}, blocking=mode.blocking)
    try:
        yield made
    finally:
        mode.run(made.close())


def test_granted_and_refused(mode: Mode, cloud: Cloud, clock: ManualClock) -> None:
    with repository(mode, cloud) as buckets:
        check = mode.check(buckets, clock=clock)
        assert [check(CLIENT).allowed for _ in range(11)] == [True] * 10 + [False]
        assert [asked.method for asked in cloud.asked] == ["GET", "PUT"] * 10 + ["GET"]
        clock.advance(6)
        assert check(CLIENT) == RateLimitResult(True, 0, 0, 10, clock.now_ms() + 60_000)


def test_what_goes_over_the_wire(mode: Mode, cloud: Cloud) -> None:
    with repository(mode, cloud) as buckets:
        assert mode.run(buckets.get(KEY)) is None
        mode.run(buckets.save(KEY, BUCKET))
        assert mode.run(buckets.get(KEY)) == BUCKET
    read, write, _ = cloud.asked
    escaped = KEY.replace(":", "%3A")
    assert (read.target, write.target) == (f"{VALUES}{escaped}", f"{VALUES}{escaped}?expiration_ttl=300")
    assert {asked.headers["authorization"] for asked in (read, write)} == {f"Bearer {TOKEN}"}
    assert write.headers["content-type"] == "text/plain; charset=utf-8"
    assert json.loads(write.body) == {"tokens": 9, "lastRefill": 1_800_000_000_000, "capacity": 10}
    assert cloud.ttls == {KEY: 300}


def test_keys_are_escaped(mode: Mode, cloud: Cloud) -> None:
    key = "a/b?c#d%e é\u2028"
    with repository(mode, cloud, ttl_seconds=60) as buckets:
        mode.run(buckets.save(key, BUCKET))
        assert mode.run(buckets.get(key)) == BUCKET
    assert cloud.ttls == {key: 60}
    assert cloud.asked[0].target.startswith(f"{VALUES}a%2Fb%3Fc%23d%25e%20%C3%A9%E2%80%A8?")


@pytest.mark.parametrize("status", [400, 401, 403, 404, 429, 500, 502, 503, 301], ids=str)
@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_a_status_is_never_read_as_a_state(
    method: str, status: int, mode: Mode, cloud: Cloud, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    cloud.values[KEY] = b'{"tokens":0,"lastRefill":1800000000000,"capacity":10}' if method == "GET" else b""
    cloud.trouble[method] = status
    with repository(mode, cloud) as buckets:
        result = mode.check(buckets, clock=clock)(CLIENT)
    assert result.allowed
    absent = (method, status) == ("GET", 404)
    assert result.degraded is not absent
    warnings = [record for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == (0 if absent else 1)
    assert all(str(status) in record.getMessage() for record in warnings)


@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_a_server_that_hangs_up(
    method: str, mode: Mode, cloud: Cloud, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    cloud.trouble[method] = "hang up"
    with repository(mode, cloud) as buckets:
        check = mode.check(buckets, clock=clock)
        result = check(CLIENT)
        assert (result.allowed, result.degraded) == (True, True)
        assert [asked.method for asked in cloud.asked] == ["GET", "PUT"][: 1 if method == "GET" else 2]
        cloud.trouble.clear()
        assert not check(CLIENT).degraded
    assert [record.levelname for record in caplog.records if record.name == "zae_limiter.kv"] == ["WARNING"]


def test_a_server_that_does_not_answer(mode: Mode, cloud: Cloud, clock: ManualClock) -> None:
    cloud.trouble.update(GET="slow", PUT="slow")
    with repository(mode, cloud, timeout=0.1) as buckets:
        result = mode.check(buckets, clock=clock)(CLIENT)
        assert (result.allowed, result.degraded) == (True, True)
        with pytest.raises(httpx.ReadTimeout):
            mode.run(buckets.save(KEY, BUCKET))


def test_the_timeout_is_the_repositorys_whoever_has_made_the_client() -> None:
    seen = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(set(request.extensions["timeout"].values()))
        return httpx.Response(404)

    with httpx.Client(transport=httpx.MockTransport(answer), timeout=None) as client:
        buckets = CloudflareRepository(ACCOUNT, NAMESPACE, TOKEN, client, timeout=0.7)
        assert run(buckets.get(KEY)) is None
    assert seen == [{0.7}]


def test_errors_have_types(mode: Mode, cloud: Cloud) -> None:
    with repository(mode, cloud) as buckets:
        cloud.trouble.update(GET=403, PUT=500)
        with pytest.raises(AccessDeniedError, match="403"):
            mode.run(buckets.get(KEY))
        with pytest.raises(RateLimiterUnavailable, match="500"):
            mode.run(buckets.save(KEY, BUCKET))


def test_a_missing_namespace_is_noticed_by_the_write(
    mode: Mode, cloud: Cloud, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    with repository(mode, cloud, namespace_id="elsewhere") as buckets:
        assert mode.check(buckets, clock=clock)(CLIENT).degraded
    assert "404" in caplog.text


def test_an_error_page_is_no_state(
    mode: Mode, cloud: Cloud, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "zae_limiter.kv")
    cloud.values[KEY] = b"<html>Checking your browser</html>" * 1_000
    with repository(mode, cloud) as buckets:
        assert not mode.check(buckets, clock=clock)(CLIENT).degraded
    assert "INFO" in [record.levelname for record in caplog.records if record.name == "zae_limiter.kv"]


def test_the_token_is_nowhere_to_be_seen(
    mode: Mode, cloud: Cloud, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with repository(mode, cloud, timeout=0.2) as buckets:
        assert TOKEN not in repr(buckets)
        assert ACCOUNT in repr(buckets)
        for trouble in (401, 500, "hang up", "slow"):
            cloud.trouble.update(GET=trouble)
            mode.check(buckets, clock=clock)(CLIENT)
            with pytest.raises((ZAELimiterError, httpx.HTTPError)) as caught:
                mode.run(buckets.get(KEY))
            assert TOKEN not in f"{caught.value!r} {caught.value}"
    assert len(caplog.records) >= 4
    assert not [record for record in caplog.records if TOKEN in repr(record.__dict__)]


def test_a_client_of_ones_own(mode: Mode, cloud: Cloud) -> None:
    """Its proxies, certificates and pool count; and it stays open."""
    client = httpx.Client() if mode.blocking else httpx.AsyncClient()
    buckets = CloudflareRepository(ACCOUNT, NAMESPACE, TOKEN, client, base_url=f"{cloud.url}/")
    assert buckets.blocking is mode.blocking
    mode.run(buckets.save(KEY, BUCKET))
    mode.run(buckets.close())
    assert not client.is_closed
    assert mode.run(buckets.get(KEY)) == BUCKET
    if isinstance(client, httpx.Client):
        client.close()
    else:
        mode.run(client.aclose())
    assert cloud.asked[0] == Asked("PUT", cloud.asked[0].target, cloud.asked[0].headers, cloud.values[KEY])


def test_the_client_that_was_opened_here_is_closed(mode: Mode, cloud: Cloud) -> None:
    with repository(mode, cloud) as buckets:
        mode.run(buckets.get(KEY))
    with pytest.raises(RuntimeError, match="closed"):
        mode.run(buckets.get(KEY))


def test_the_default_is_cloudflare_for_async_code() -> None:
    buckets = CloudflareRepository(ACCOUNT, NAMESPACE, TOKEN)
    assert repr(buckets) == f"CloudflareRepository('{API}{VALUES.removeprefix('/client/v4')}', ttl_seconds=300)"
    with pytest.raises(ValidationError, match="async code only"):
        SyncEnforceRateLimit(buckets)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("ttl_seconds", 59),
        ("ttl_seconds", 60.0),
        ("ttl_seconds", True),
        ("account_id", ""),
        ("account_id", "a/b"),
        ("account_id", None),
        ("namespace_id", ".."),
        ("namespace_id", "id\n"),
        ("base_url", "api.cloudflare.com"),
        ("base_url", "http://api.cloudflare.com/client/v4"),
        ("base_url", "http://localhost.example.com/"),
        ("base_url", "https://user:password@example.com"),
        ("base_url", "https://example.com/?a=1"),
        ("timeout", 0),
        ("timeout", float("nan")),
        ("client", "httpx"),
    ],
    ids=repr,
)
def test_options_that_cannot_be(option: str, value: Any) -> None:
    given: dict[str, Any] = {"account_id": ACCOUNT, "namespace_id": NAMESPACE, "api_token": TOKEN, option: value}
    with pytest.raises(ValidationError, match=option):
        CloudflareRepository(**given)


@pytest.mark.parametrize("token", ["", "two words", "secret-line\n", "secret-é", None, 17], ids=repr)
def test_tokens_that_cannot_be(token: Any) -> None:
    with pytest.raises(ValidationError, match=r"api_token = '\*\*\*'") as caught:
        CloudflareRepository(ACCOUNT, NAMESPACE, token)
    assert "secret" not in str(caught.value)


def test_a_missing_library_is_named_with_its_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(ImportError, match=r'pip install "zae-limiter\[cloudflare\]"'):
        CloudflareRepository(ACCOUNT, NAMESPACE, TOKEN)


def test_the_policy_has_to_fit_the_expiry(mode: Mode, cloud: Cloud) -> None:
    with (
        repository(mode, cloud, ttl_seconds=60) as buckets,
        pytest.raises(ValidationError, match=r"ttl_seconds = 60.*at least 120"),
    ):
        mode.check(buckets, RateLimitPolicy.create(1, 2))
