"""Buckets in a real Redis, over both kinds of client."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest
import redis
import redis.asyncio

from tests.kv.support import Mode, somebody
from tests.support.redis import shared
from zae_limiter import ValidationError
from zae_limiter.kv import ClientIdentity, RateLimitPolicy, RedisRepository, SyncEnforceRateLimit
from zae_limiter.testing import ManualClock


@contextlib.contextmanager
def connected(mode: Mode, url: str, **options: Any) -> Iterator[Any]:
    """A client of the mode that is closed at the end."""
    if mode.blocking:
        with contextlib.closing(redis.Redis.from_url(url, **options)) as blocking:
            yield blocking
    else:
        suspending = redis.asyncio.Redis.from_url(url, **options)
        yield suspending
        mode.run(suspending.aclose())


@pytest.fixture
def client() -> ClientIdentity:
    """A client of this test only: others may use the server."""
    return ClientIdentity.from_ip(somebody())


@pytest.mark.parametrize("texts", [False, True], ids=["bytes", "texts"])
def test_granted_and_refused(texts: bool, mode: Mode, clock: ManualClock, client: ClientIdentity) -> None:
    with connected(mode, shared.server().url, decode_responses=texts) as connection:
        check = mode.check(RedisRepository(connection), clock=clock)
        assert [check(client).allowed for _ in range(11)] == [True] * 10 + [False]
        clock.advance(6)
        assert check(client).allowed


def test_the_stored_text_and_its_expiry(mode: Mode, clock: ManualClock, client: ClientIdentity) -> None:
    server = shared.server()
    with connected(mode, server.url) as connection:
        mode.check(RedisRepository(connection, ttl_seconds=120), clock=clock)(client)
    assert json.loads(server.aside("GET", client.kv_key)) == {
        "tokens": 9,
        "lastRefill": clock.now_ms(),
        "capacity": 10,
    }
    assert 0 < server.aside("TTL", client.kv_key) <= 120


def test_a_refusal_does_not_renew_the_expiry(mode: Mode, clock: ManualClock, client: ClientIdentity) -> None:
    server = shared.server()
    with connected(mode, server.url) as connection:
        check = mode.check(RedisRepository(connection), RateLimitPolicy.create(1), clock)
        assert check(client).allowed
        server.aside("EXPIRE", client.kv_key, 70)
        assert not check(client).allowed
    assert server.aside("TTL", client.kv_key) <= 70


def test_somebody_elses_key(
    mode: Mode, clock: ManualClock, client: ClientIdentity, caplog: pytest.LogCaptureFixture
) -> None:
    server = shared.server()
    caplog.set_level("INFO", "zae_limiter.kv")
    with connected(mode, server.url) as connection:
        check = mode.check(RedisRepository(connection), clock=clock)
        server.aside("SET", client.kv_key, b"\xff\xfe")
        assert not check(client).degraded
        server.aside("DEL", client.kv_key)
        server.aside("LPUSH", client.kv_key, "not a text")
        assert check(client).degraded
        server.aside("DEL", client.kv_key)
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING"]


def test_a_server_that_is_down(
    mode: Mode, clock: ManualClock, client: ClientIdentity, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # and does not listen: whoever connects is refused
        url = f"redis://127.0.0.1:{bound.getsockname()[1]}/0"
        with connected(mode, url, retry=None) as connection:
            result = mode.check(RedisRepository(connection), clock=clock)(client)
    assert (result.allowed, result.degraded) == (True, True)
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_an_async_client_is_not_for_blocking_code() -> None:
    with pytest.raises(ValidationError, match="async code only"):
        SyncEnforceRateLimit(RedisRepository(redis.asyncio.Redis()))


@pytest.mark.parametrize("value", [0, -1, True, 1.5, None], ids=repr)
def test_expiries_that_cannot_be(value: Any) -> None:
    with pytest.raises(ValidationError, match="ttl_seconds"):
        RedisRepository(redis.Redis(), ttl_seconds=value)


def test_a_url_is_no_client() -> None:
    with pytest.raises(ValidationError, match=r"client = 'str': .*from_url"):
        RedisRepository("redis://localhost")
