"""Several event loops on one limiter: one that is stuck or dead keeps nobody else waiting."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import warnings
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.acquiring import granted
from tests.support.deadlines import PATIENCE
from tests.support.redis import shared
from zae_limiter import Limit, RateLimiter, RateLimitExceeded, Repository
from zae_limiter.records.algebra import Committed, Conflict, Image, Key, Write
from zae_limiter.runtime.aio import AsyncioRuntime
from zae_limiter.runtime.single_flight import Once
from zae_limiter.stores.memory import MemoryStore
from zae_limiter.stores.opening import open_store
from zae_limiter.testing import FaultyStore

RPM = [Limit.per_hour("rpm", 100)]


class HeldStore(FaultyStore):
    """A store that suspends; calls of ``verb`` never come back while it is held."""

    def __init__(self) -> None:
        super().__init__(MemoryStore(), suspend=True)
        self.verb: str | None = None
        self.reached = threading.Event()

    async def read(self, keys: Sequence[Key], *, timeout: float | None = None) -> list[Image | None]:
        await self._hold("read")
        return await super().read(keys, timeout=timeout)

    async def commit(self, writes: Sequence[Write], *, timeout: float | None = None) -> Committed | Conflict:
        await self._hold("commit")
        return await super().commit(writes, timeout=timeout)

    async def _hold(self, verb: str) -> None:
        if self.verb == verb:
            self.reached.set()
            await asyncio.get_running_loop().create_future()


async def take(limiter: RateLimiter, entity: str = "key", amount: int = 1, **options: Any) -> None:
    async with limiter.acquire(entity, "gpt-4", {"rpm": amount}, RPM, **options):
        pass


@contextlib.contextmanager
def dead_loop(work: Callable[[], Awaitable[None]], *, closed: bool = True) -> Iterator[None]:
    """A loop that was in the middle of ``work`` when it stopped for good; what it leaves is collected at the end."""
    loop = asyncio.new_event_loop()
    task = loop.create_task(_awaited(work))
    for _ in range(50):
        loop.run_until_complete(asyncio.sleep(0))
    assert not task.done()
    if closed:
        loop.close()
    try:
        yield
    finally:
        if not closed:
            left = asyncio.all_tasks(loop)
            for each in left:
                each.cancel()
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            loop.close()
            del left
        _forget(task)
        del task, loop
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what was never awaited to its end is what is tested
            gc.collect()


async def _awaited(work: Callable[[], Awaitable[None]]) -> None:
    await work()


def _forget(task: asyncio.Task[None]) -> None:
    """The loop is dead on purpose: nobody need hear of the task that it leaves."""
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # asyncio has no other switch
    for other in asyncio.all_tasks(task.get_loop()):
        other._log_destroy_pending = False  # type: ignore[attr-defined]  # the same


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "stopped"])
@pytest.mark.parametrize("verb", ["read", "commit"])
def test_a_dead_loop_in_the_middle_of_an_acquire_jams_nobody(verb: str, closed: bool) -> None:
    store = HeldStore()
    limiter = RateLimiter(store)
    asyncio.run(take(limiter, "other"))  # the namespace is known
    if verb == "commit":
        asyncio.run(take(limiter))
    store.verb = verb
    with dead_loop(lambda: take(limiter), closed=closed):
        store.verb = None

        async def work() -> None:
            await asyncio.gather(*(take(limiter) for _ in range(5)))
            assert (await limiter.available("key", "gpt-4", RPM))["rpm"] == (95 if verb == "read" else 94)

        asyncio.run(work())


@pytest.mark.parametrize("known", [False, True], ids=["new key", "known key"])
def test_a_dead_loop_leaves_an_async_sqlite_file_usable(tmp_path: Path, known: bool) -> None:
    url = f"sqlite:///{tmp_path}/limits.db"
    limiter = RateLimiter(url)
    asyncio.run(take(limiter, "key" if known else "other"))
    loop = asyncio.new_event_loop()
    task = loop.create_task(take(limiter))
    loop.run_until_complete(asyncio.sleep(0))
    loop.run_until_complete(asyncio.sleep(0))
    assert not task.done()
    loop.close()

    async def work() -> None:
        await asyncio.gather(*(take(limiter) for _ in range(5)))
        await limiter.close()

    asyncio.run(work())
    _forget(task)


def test_a_blocked_loop_keeps_no_other_loop_waiting() -> None:
    """Its write is in flight and its thread is busy with something else."""
    store = HeldStore()
    limiter = RateLimiter(store)
    asyncio.run(take(limiter))
    done = threading.Event()

    async def busy() -> None:
        acquiring = asyncio.create_task(take(limiter))
        while not store.reached.is_set():  # noqa: ASYNC110  # it is set in this very loop
            await asyncio.sleep(0)
        done.wait(PATIENCE)  # what is tested
        acquiring.cancel()

    store.verb = "commit"
    thread = threading.Thread(target=lambda: asyncio.run(busy()))
    thread.start()
    assert store.reached.wait(PATIENCE)
    store.verb = None
    try:
        asyncio.run(take(limiter))
        assert not done.is_set()
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "stopped"])
def test_a_dead_loop_at_the_head_of_a_line_holds_nobody_up(closed: bool) -> None:
    limiter = RateLimiter(MemoryStore())
    asyncio.run(take(limiter, amount=99))
    with dead_loop(lambda: take(limiter, amount=50, max_wait=100_000), closed=closed):

        async def work() -> None:
            await take(limiter)
            await take(limiter, amount=0, max_wait=1)
            with pytest.raises(RateLimitExceeded):
                await take(limiter, max_wait=1)

        asyncio.run(work())
        assert closed == (not limiter._lines.waiting), "what a closed loop has left is cleared away"


def test_tokens_that_come_back_wake_the_waiters_of_every_loop() -> None:
    limiter = RateLimiter(MemoryStore())
    waiting = threading.Event()

    async def waits() -> None:
        task = asyncio.create_task(take(limiter, amount=100, max_wait=100_000))
        while not limiter._lines.waiting:  # noqa: ASYNC110  # a task of this loop joins
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        waiting.set()
        await asyncio.wait_for(task, PATIENCE)

    async def fails() -> None:
        with contextlib.suppress(ZeroDivisionError):
            async with limiter.acquire("key", "gpt-4", {"rpm": 100}, RPM):
                thread.start()
                assert await asyncio.to_thread(waiting.wait, PATIENCE)
                raise ZeroDivisionError

    failures: list[BaseException] = []

    def run_thread() -> None:
        try:
            asyncio.run(waits())
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run_thread)
    asyncio.run(fails())
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert not failures


def test_what_is_done_once_is_done_by_another_loop_if_the_first_dies() -> None:
    done: list[str] = []
    first = True

    async def prepare() -> None:
        nonlocal first
        if first:
            first = False
            await asyncio.get_running_loop().create_future()
        done.append("prepared")

    once = Once(AsyncioRuntime(), prepare)
    with dead_loop(once.finish):

        async def work() -> None:
            await asyncio.gather(*(once.finish() for _ in range(3)))

        asyncio.run(work())
        assert done == ["prepared"]


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_a_limiter_closes_although_another_loop_is_dead(tmp_path: Path, kind: str) -> None:
    url = f"sqlite:///{tmp_path}/limits.db" if kind == "sqlite" else f"{shared.server().url}?prefix={tmp_path.name}"
    limiter = RateLimiter(Repository(open_store(url, blocking=False)))
    loop = asyncio.new_event_loop()
    loop.run_until_complete(take(limiter))
    task = loop.create_task(take(limiter))
    loop.run_until_complete(asyncio.sleep(0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its connection is left open, as a dead loop leaves it
        loop.close()

        async def work() -> None:
            await take(limiter)
            await limiter.close()
            await limiter.close()

        asyncio.run(work())
        _forget(task)
        del task, loop
        gc.collect()


class Announcing(FaultyStore):
    """Calls ``then`` when the next read has its answer, just before whoever has asked goes on."""

    then: Callable[[], None] | None = None

    async def read(self, keys: Sequence[Key], *, timeout: float | None = None) -> list[Image | None]:
        answer = await super().read(keys, timeout=timeout)
        if self.then is not None:
            then, self.then = self.then, None
            then()
        return answer


async def test_who_waited_while_the_first_read_the_config_comes_before_later_ones() -> None:
    """There are two tokens: the one who comes when the config has just been read is the third."""
    store = Announcing(MemoryStore(), suspend=True)
    limiter = RateLimiter(store)
    await limiter.set_system_defaults([Limit.per_hour("rpm", 2)])
    granted: list[str] = []
    tasks: list[asyncio.Task[None]] = []

    async def ask(name: str) -> None:
        with contextlib.suppress(RateLimitExceeded):
            async with limiter.acquire("key", "gpt-4", {"rpm": 1}):
                granted.append(name)

    def come(name: str) -> None:
        tasks.append(asyncio.create_task(ask(name)))

    store.then = lambda: come("third")
    come("first")
    come("second")
    while len(tasks) < 3:  # noqa: ASYNC110  # the third one comes by itself
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    assert granted == ["first", "second"]


async def test_who_gives_up_while_others_read_the_config_lets_the_next_one_through() -> None:
    store = HeldStore()
    limiter = RateLimiter(store)
    await take(limiter, "other")
    store.verb = "read"
    tasks = [asyncio.create_task(take(limiter)) for _ in range(4)]
    for _ in range(20):
        await asyncio.sleep(0)
    store.verb = None
    tasks[1].cancel()
    tasks[0].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert [task.cancelled() for task in tasks] == [True, True, False, False]
    assert not limiter._chains.resolving


def test_one_limiter_serves_one_loop_after_another(tmp_path: Path) -> None:
    for url in ("memory://", f"sqlite:///{tmp_path}/limits.db"):
        limiter = RateLimiter(Repository(url))
        assert [asyncio.run(granted(limiter, {"rpm": 40}, limits=RPM)) for _ in range(3)] == [True, True, False]
        asyncio.run(limiter.close())
