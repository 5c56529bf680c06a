"""Workers KV through the binding of a Python Worker, as Pyodide presents it to Python.

Calling a JavaScript function gives a promise, which can be awaited once; keyword arguments become an object that is its
last argument; ``null`` arrives as None or, in newer versions, as an object that is false; an error is an exception.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any

import pytest

from tests.kv.support import CLIENT, KEY
from zae_limiter import ValidationError
from zae_limiter.kv import EnforceRateLimit, RateLimitResult, SyncEnforceRateLimit, TokenBucket, WorkersKVRepository
from zae_limiter.testing import ManualClock


class JsNull:
    """``pyodide.ffi.jsnull``."""

    def __bool__(self) -> bool:
        return False


class JsException(Exception):
    """What a rejected promise raises."""


class Promise:
    """Awaitable, but no coroutine; it is settled by the event loop."""

    def __init__(self, value: Any = None, error: Exception | None = None) -> None:
        self._value = value
        self._error = error

    def __await__(self) -> Generator[Any, None, Any]:
        yield from asyncio.sleep(0).__await__()
        if self._error is not None:
            raise self._error
        return self._value


class Namespace:
    """A binding with one value per key."""

    def __init__(self, null: Any = None) -> None:
        self.null = null
        self.values: dict[str, Any] = {}
        self.puts: list[tuple[str, str, dict[str, Any]]] = []
        self.error: Exception | None = None

    def get(self, key: str) -> Promise:
        return Promise(self.values.get(key, self.null), self.error)

    def put(self, key: str, value: str, **options: Any) -> Promise:
        self.puts.append((key, value, options))
        self.values[key] = value
        return Promise(self.null, self.error)


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


def test_the_expiry_is_an_option() -> None:
    namespace = Namespace()
    asyncio.run(WorkersKVRepository(namespace, ttl_seconds=60).save(KEY, TokenBucket(1, 2, 3)))
    assert namespace.puts == [(KEY, '{"tokens":1,"lastRefill":2,"capacity":3}', {"expirationTtl": 60})]


@pytest.mark.parametrize("value", [0, 59, True, 300.0, None], ids=repr)
def test_expiries_that_cannot_be(value: Any) -> None:
    with pytest.raises(ValidationError, match="ttl_seconds"):
        WorkersKVRepository(Namespace(), ttl_seconds=value)


def test_promises_are_not_for_blocking_code() -> None:
    with pytest.raises(ValidationError, match="async code only"):
        SyncEnforceRateLimit(WorkersKVRepository(Namespace()))
