"""After `close` nothing is granted: one error on every store and in both modes, whatever is asked."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from zae_limiter import (
    Limit,
    OnUnavailable,
    RateLimiter,
    RateLimiterClosedError,
    RateLimiterUnavailable,
    SyncRateLimiter,
    SyncRepository,
)
from zae_limiter.kv import DictRepository, EnforceRateLimit, SyncEnforceRateLimit
from zae_limiter.runtime.blocking import run
from zae_limiter.stores.memory import MemoryStore
from zae_limiter.testing import FaultyStore, Harness
from zae_limiter.web.asgi import RateLimitMiddleware

RPM = [Limit.per_minute("rpm", 100)]
COST = {"rpm": 10}


async def enter(limiter: RateLimiter, **options: Any) -> None:
    async with limiter.acquire("key-1", "gpt-4", COST, **options):
        pass


Work = Callable[[RateLimiter], Coroutine[Any, Any, Any]]

USES: dict[str, Work] = {
    "acquire": enter,
    "acquire with limits": lambda limiter: enter(limiter, limits=RPM),
    "acquire and wait": lambda limiter: enter(limiter, max_wait=5),
    "acquire, whatever happens": lambda limiter: enter(limiter, on_unavailable=OnUnavailable.ALLOW),
    "available": lambda limiter: limiter.available("key-1", "gpt-4"),
    "get_status": lambda limiter: limiter.get_status("key-1", "gpt-4"),
    "time_until_available": lambda limiter: limiter.time_until_available("key-1", "gpt-4", COST),
    "get_resource_capacity": lambda limiter: limiter.get_resource_capacity("gpt-4", "rpm"),
    "is_available": lambda limiter: limiter.is_available(),
    "get_entity": lambda limiter: limiter.get_entity("key-1"),
    "create_entity": lambda limiter: limiter.create_entity("key-2"),
    "set_system_defaults": lambda limiter: limiter.set_system_defaults(RPM),
    "get_limits": lambda limiter: limiter.get_limits("key-1"),
    "list_entities_with_custom_limits": lambda limiter: limiter.list_entities_with_custom_limits(),
    "get_audit_events": lambda limiter: limiter.get_audit_events("key-1"),
    "get_usage_snapshots": lambda limiter: limiter.get_usage_snapshots("key-1"),
    "get_usage_summary": lambda limiter: limiter.get_usage_summary("key-1"),
    "get_buckets": lambda limiter: limiter.get_buckets("key-1"),
    "survey_buckets": lambda limiter: limiter.repository.survey_buckets(),
    "list_namespaces": lambda limiter: limiter.repository.list_namespaces(),
    "register_namespace": lambda limiter: limiter.repository.register_namespace("prod"),
    "status": lambda limiter: limiter.repository.status(),
    "create_table": lambda limiter: limiter.repository.create_table(),
    "ensure_infrastructure": lambda limiter: limiter.repository.ensure_infrastructure(),
    "entered again": lambda limiter: limiter.__aenter__(),
    "repository entered again": lambda limiter: limiter.repository.__aenter__(),
}


async def used(limiter: RateLimiter) -> RateLimiter:
    """The limiter after some use: everything that it remembers is remembered."""
    await limiter.set_system_defaults(RPM)
    for _ in range(3):
        await enter(limiter)
        await enter(limiter, limits=RPM)
    return limiter


async def test_everything_is_refused_after_close(harness: Harness) -> None:
    limiter = await used(harness.limiter())
    for _ in range(2):
        await limiter.close()
        for name, use in USES.items():
            with contextlib.suppress(RateLimiterClosedError):
                await use(limiter)
                raise AssertionError(f"{name} went on")
    assert await harness.limiter().available("key-1", "gpt-4") == {"rpm": 40}, "others go on, and nothing was taken"


@pytest.mark.parametrize("name", USES)
def test_no_store_is_asked_after_close(name: str) -> None:
    harness = Harness(lambda clock, blocking: MemoryStore(clock), blocking=True)
    store = FaultyStore(harness.store())
    limiter = run(used(harness.limiter(store)))
    run(limiter.close())
    store.calls.clear()
    with pytest.raises(RateLimiterClosedError, match="closed"):
        run(USES[name](limiter))
    assert not store.calls


async def test_closing_one_limiter_closes_all_of_its_repository(harness: Harness) -> None:
    repository = harness.repository()
    one, other = await used(harness.limiter(repository)), harness.limiter(repository)
    await enter(other)
    await one.close()
    with pytest.raises(RateLimiterClosedError):
        await enter(other)


@pytest.mark.parametrize("failed", [False, True])
async def test_a_lease_that_was_open_still_settles(harness: Harness, failed: bool) -> None:
    limiter = await used(harness.limiter())
    with contextlib.suppress(ZeroDivisionError):
        async with limiter.acquire("key-1", "gpt-4", COST) as lease:
            await limiter.close()
            with pytest.raises(RateLimiterClosedError):
                await lease.consume(COST)
            await lease.adjust(rpm=5)
            if failed:
                raise ZeroDivisionError
    with pytest.raises(RateLimiterClosedError):
        await enter(limiter)
    assert await harness.limiter().available("key-1", "gpt-4") == {"rpm": 40 if failed else 25}


def test_a_file_that_a_late_lease_opened_is_closed_again(tmp_path: Path) -> None:
    limiter = SyncRateLimiter(f"sqlite:///{tmp_path}/limits.db")
    with limiter.acquire("key-1", "gpt-4", COST, RPM) as lease:
        lease.adjust(rpm=1)
        limiter.close()
    assert limiter.repository.store._connection is None  # type: ignore[attr-defined]  # of SQLite's store


async def test_whoever_waits_for_tokens_is_woken() -> None:
    hourly = [Limit.per_hour("rpm", 10)]
    limiter = RateLimiter("memory://")
    await enter(limiter, limits=hourly)
    waiting = [asyncio.create_task(enter(limiter, limits=hourly, max_wait=36_000)) for _ in range(3)]
    for _ in range(10):
        await asyncio.sleep(0)
    assert [len(line.tickets) for lines in limiter._lines.waiting.values() for line in lines.values()] == [len(waiting)]
    await limiter.close()
    ended = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 30)
    assert [type(error) for error in ended] == [RateLimiterClosedError] * len(waiting)


def test_blocking_facades_are_not_entered_again() -> None:
    with SyncRepository("memory://") as repository:
        limiter = SyncRateLimiter(repository)
        with limiter.acquire("key-1", "gpt-4", COST, RPM):
            pass
    for closed in (repository, limiter):
        with pytest.raises(RateLimiterClosedError), closed:
            raise AssertionError("entered")
    with pytest.raises(RateLimiterClosedError), limiter.acquire("key-1", "gpt-4", COST, RPM):
        raise AssertionError("granted")
    with pytest.raises(RateLimiterClosedError):
        limiter.get_entity("key-1")


def test_the_error_is_no_outage_and_can_be_pickled() -> None:
    error = RateLimiterClosedError()
    assert not isinstance(error, RateLimiterUnavailable)
    assert isinstance(error, RuntimeError)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


async def test_a_closed_key_value_limiter_lets_nobody_through() -> None:
    limiter = EnforceRateLimit(DictRepository())
    async with limiter:
        assert (await limiter.check("203.0.113.7")).allowed
    await limiter.close()
    with pytest.raises(RateLimiterClosedError):
        await limiter.check("203.0.113.7")
    with pytest.raises(RateLimiterClosedError):
        await limiter.__aenter__()
    blocking = SyncEnforceRateLimit(DictRepository())
    blocking.close()
    with pytest.raises(RateLimiterClosedError):
        blocking.check("203.0.113.7")
    with pytest.raises(RateLimiterClosedError), blocking:
        raise AssertionError("entered")


async def test_an_app_that_ends_its_lifespan_and_goes_on_serving_is_limited(tmp_path: Path) -> None:
    """An app without lifespan fails at once when it is asked for one, and servers go on with it."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http", "this app has no lifespan"
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def work() -> list[int]:
        middleware = RateLimitMiddleware(
            app, limiter=f"sqlite:///{tmp_path}/limits.db", limits=[Limit.per_hour("rpm", 1)]
        )
        statuses: list[int] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        scope = {
            "type": "http",
            "method": "GET",
            "path": "/",
            "headers": [],
            "client": ("203.0.113.7", 1),
            "query_string": b"",
        }
        with pytest.raises(AssertionError, match="no lifespan"):
            await middleware({"type": "lifespan"}, receive, send)
        for _ in range(2):
            await middleware(dict(scope), receive, send)
        await middleware.limiter.repository.store.close()
        return statuses

    assert await work() == [200, 429]
