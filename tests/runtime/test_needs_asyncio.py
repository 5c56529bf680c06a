"""Async code that asyncio does not run, as under trio: one clear error, and the store is never asked.

Such code is a coroutine that somebody else sends values to; that is what the tests do.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.sync.test_facade import OF_LIMITER, OF_REPOSITORY, RPM
from zae_limiter import RateLimiter, Repository
from zae_limiter.stores.memory import MemoryStore
from zae_limiter.testing import FaultyStore, ManualClock

CLEAR = "needs asyncio, and no asyncio task is running here.*SyncRateLimiter in a thread"

OTHERWISE: dict[str, Callable[[Any], object]] = {
    "recover_namespace": lambda it: it.recover_namespace("an-id"),
    "purge_namespace": lambda it: it.purge_namespace("an-id"),
}
ENTERED: dict[str, Callable[[Any], object]] = {
    "acquire": lambda it: it.acquire("key", "gpt-4", {"rpm": 1}, RPM).__aenter__(),
    "acquire, waiting": lambda it: it.acquire("key", "gpt-4", {"rpm": 1}, RPM, max_wait=1).__aenter__(),
    "acquire, allow": lambda it: it.acquire("key", "gpt-4", {"rpm": 1}, RPM, on_unavailable="allow").__aenter__(),
    "__aenter__": lambda it: it.__aenter__(),
}


def coroutines_of(kind: type, calls: dict[str, Callable[[Any], object]]) -> dict[str, Callable[[Any], object]]:
    """The calls whose methods are coroutines."""
    return {name: call for name, call in calls.items() if inspect.iscoroutinefunction(getattr(kind, name, None))}


CASES = [
    pytest.param(kind, call, id=f"{kind.__name__}.{name}")
    for kind, calls in (
        (Repository, coroutines_of(Repository, OF_REPOSITORY | OTHERWISE) | {"__aenter__": ENTERED["__aenter__"]}),
        (RateLimiter, coroutines_of(RateLimiter, OF_LIMITER) | ENTERED),
    )
    for name, call in calls.items()
]


def drive(work: Any) -> None:
    """Run a coroutine as another library would."""
    try:
        work.send(None)
    finally:
        work.close()


@pytest.mark.filterwarnings("ignore:create_stack is deprecated:DeprecationWarning")
@pytest.mark.parametrize(("kind", "call"), CASES)
def test_every_method_says_what_it_needs_before_it_asks_the_store(
    kind: type[Repository | RateLimiter], call: Callable[[Any], object]
) -> None:
    store = FaultyStore(MemoryStore(ManualClock()))
    with pytest.raises(RuntimeError, match=CLEAR):
        drive(call(kind(store)))
    assert not store.calls


@pytest.mark.parametrize("url", ["memory://", "sqlite:///limits.db", "redis://127.0.0.1:1", "dynamodb://my-app"])
def test_every_store_has_the_same_error(url: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RuntimeError, match=CLEAR):
        drive(RateLimiter(url).acquire("key", "gpt-4", {"rpm": 1}, RPM).__aenter__())
    assert not list(tmp_path.iterdir())


def test_a_builder_says_it_too() -> None:
    with pytest.raises(RuntimeError, match=CLEAR):
        drive(Repository.builder().url("memory://").build())


def test_a_limiter_that_asyncio_has_used_before_says_it_too() -> None:
    store = FaultyStore(MemoryStore(ManualClock()))
    limiter = RateLimiter(store)

    async def take() -> None:
        async with limiter.acquire("key", "gpt-4", {"rpm": 1}, RPM):
            pass

    asyncio.run(take())
    store.calls.clear()
    with pytest.raises(RuntimeError, match=CLEAR):
        drive(take())
    assert not store.calls


def test_a_loop_that_runs_beside_the_other_library_is_not_enough() -> None:
    """As when trio is a guest of an asyncio loop: the loop is running, but no task of it."""
    raised: list[BaseException] = []

    def step(work: Coroutine[Any, Any, Any], done: asyncio.Future[None]) -> None:
        try:
            drive(work)
        except (RuntimeError, StopIteration) as error:
            raised.append(error)
        done.set_result(None)

    async def host() -> None:
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        loop.call_soon(step, RateLimiter("memory://").available("key", "gpt-4", RPM), done)
        await done

    asyncio.run(host())
    assert "needs asyncio" in str(raised[0])
