"""A level that answers late: what the other level gives back is not worth more than it would hold."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from typing import TYPE_CHECKING

import pytest

from tests.support.deadlines import PATIENCE
from zae_limiter import Limit, RateLimitExceeded
from zae_limiter.runtime.blocking import BlockingRuntime, run
from zae_limiter.stores.memory import MemoryStore
from zae_limiter.testing import Harness, ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from typing import Any

    from zae_limiter.records.algebra import Committed, Conflict, Image, Key, Page, Query, Write

LIMIT = Limit("tpm", 100, 10, 1)


class Late:
    """A store without free atomic commits, at one level of which time passes before a write lands."""

    def __init__(self, shared: MemoryStore) -> None:
        self._shared = shared
        self.clock = shared.clock
        self.capabilities = dataclasses.replace(shared.capabilities, instant=False, free_atomic_commit=False)
        self.late = ""
        self.meanwhile: Callable[[], Coroutine[Any, Any, None]] | None = None

    async def read(self, keys: Sequence[Key], *, timeout: float | None = None) -> list[Image | None]:
        return await self._shared.read(keys)

    async def commit(self, writes: Sequence[Write], *, timeout: float | None = None) -> Committed | Conflict:
        if self.late and self.late in writes[0].key.pk and self.meanwhile is not None:
            for _ in range(3):
                await asyncio.sleep(0)
            work, self.meanwhile = self.meanwhile, None
            await work()
        return await self._shared.commit(writes)

    async def query(self, query: Query, *, timeout: float | None = None) -> Page:
        return await self._shared.query(query)

    async def close(self) -> None: ...


@pytest.mark.parametrize("wait_s", [1, 4, 6])
def test_what_was_taken_goes_back_in_full_after_a_late_refusal(wait_s: int) -> None:
    clock = ManualClock()
    shared = MemoryStore(clock)
    harness = Harness(lambda clock, blocking: shared, blocking=False)
    granted = 0

    async def work() -> None:
        nonlocal granted
        store = Late(shared)
        first, second = harness.limiter(store, timeout=3_600), harness.limiter()
        await first.create_entity("org")
        await first.create_entity("key", parent_id="org", cascade=True)
        await first.set_limits("key", [LIMIT])
        await first.set_limits("org", [LIMIT])
        async with first.acquire("key", "gpt-4", {"tpm": 0}), second.acquire("key", "gpt-4", {"tpm": 0}):
            pass

        async def meanwhile() -> None:
            nonlocal granted
            clock.advance(wait_s)
            async with second.acquire("key", "gpt-4", {"tpm": 10 * wait_s}):  # what has come in meanwhile
                granted += 10 * wait_s

        store.late, store.meanwhile = "#org#", meanwhile
        with pytest.raises(RateLimitExceeded):
            async with first.acquire("key", "gpt-4", {"tpm": 100}):
                pass
        left = (await second.get_status("key", "gpt-4"))[0].available
        assert granted == 10 * wait_s
        assert left == LIMIT.capacity

    harness.run(work())


def test_together_may_be_used_inside_together() -> None:
    """Many who wait for several things at once, each of which does the same, all come to an end."""
    runtime = BlockingRuntime()

    async def leaf(number: int) -> int:
        return number

    async def branch(number: int) -> int:
        found = await runtime.run_together([leaf(number), leaf(number)])
        return sum(each for each in found if isinstance(each, int))

    answers: list[list[int | BaseException]] = []

    def tree() -> None:
        answers.append(run(runtime.run_together([branch(1), branch(2), branch(3)])))

    threads = [threading.Thread(target=tree) for _ in range(48)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert answers == [[2, 4, 6]] * 48
