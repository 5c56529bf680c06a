"""Workers KV through the binding of a Python Worker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.kv.binding import JsException, JsNull, Namespace
from tests.kv.support import CLIENT, KEY
from zae_limiter import ValidationError
from zae_limiter.kv import EnforceRateLimit, RateLimitResult, SyncEnforceRateLimit, TokenBucket, WorkersKVRepository
from zae_limiter.testing import ManualClock


def checked(namespace: Namespace, clock: ManualClock, times: int = 1) -> list[RateLimitResult]:
    """The results of so many requests, one after the other."""

    async def requests() -> list[RateLimitResult]:
        work = EnforceRateLimit(WorkersKVRepository(namespace), clock=clock)
        return [await work.check(CLIENT) for _ in range(times)]

    return asyncio.run(requests())


@pytest.mark.parametrize("null", [None, JsNull()], ids=["None", "jsnull"])
def test_granted_and_refused(null: Any, clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "zae_limiter.kv")
    namespace = Namespace(null)
    results = checked(namespace, clock, 11)
    assert [result.allowed for result in results] == [True] * 10 + [False]
    assert not any(result.degraded for result in results)
    assert not caplog.records
    text = f'{{"tokens":9,"lastRefill":{clock.now_ms()},"capacity":10}}'
    assert namespace.puts[0] == (KEY, text, {"expirationTtl": 300})
    assert len(namespace.puts) == 10


@pytest.mark.parametrize("value", ["", "null", "[object Object]", 17, ["a"]], ids=repr)
def test_what_is_no_state_resets(value: Any, clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "zae_limiter.kv")
    namespace = Namespace()
    namespace.values[KEY] = value
    (result,) = checked(namespace, clock)
    assert (result.tokens_remaining, result.degraded) == (9, False)
    assert [record.levelname for record in caplog.records] == ["INFO"]


def test_a_rejected_promise_lets_through(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    namespace = Namespace()
    namespace.error = JsException("KV GET failed: 500 Internal Server Error")
    assert [result.degraded for result in checked(namespace, clock)] == [True]
    assert "KV GET failed: 500" in caplog.text
    assert not namespace.puts


async def test_the_expiry_is_an_option() -> None:
    namespace = Namespace()
    await WorkersKVRepository(namespace, ttl_seconds=60).save(KEY, TokenBucket(1, 2, 3))
    assert namespace.puts == [(KEY, '{"tokens":1,"lastRefill":2,"capacity":3}', {"expirationTtl": 60})]


@pytest.mark.parametrize("value", [0, 59, True, 300.0, None], ids=repr)
def test_expiries_that_cannot_be(value: Any) -> None:
    with pytest.raises(ValidationError, match="ttl_seconds"):
        WorkersKVRepository(Namespace(), ttl_seconds=value)


def test_promises_are_not_for_blocking_code() -> None:
    with pytest.raises(ValidationError, match="async code only"):
        SyncEnforceRateLimit(WorkersKVRepository(Namespace()))
