"""Waiting for a slot: it is noticed soon, whoever frees it and whenever."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tests.limiter.test_slot_leases import ONE, WHOSE, enter, free
from tests.support.virtual_time import VirtualLoop, run_virtually
from zae_limiter import Lease, RateLimiter
from zae_limiter.records.algebra import Committed, Conflict, Image, Key, Write
from zae_limiter.stores.memory import MemoryStore
from zae_limiter.testing import FaultyStore, Harness, ManualClock
from zae_limiter.testing.clock import DEFAULT_START_MS


class Freeing(ManualClock):
    """A clock that notes for how long somebody waits on it, and ends a lease when its time has come."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses: list[float] = []
        self.lease: Lease | None = None
        self.end_seconds: float = 0.0

    @property
    def elapsed(self) -> float:
        """The seconds since the beginning."""
        return (self.now_ms() - DEFAULT_START_MS) / 1000

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await super().pause(seconds)
        if self.lease is not None and self.elapsed >= self.end_seconds:
            lease, self.lease = self.lease, None
            await lease.exit()


@pytest.mark.parametrize("end", [0.5, 5.5, 14.5, 45.5])
async def test_what_another_process_frees_is_noticed_within_about_a_second_however_long_it_took(
    harness: Harness, end: float
) -> None:
    harness.clock = clock = Freeing()
    holder, waiter = harness.limiter(), harness.limiter()
    clock.lease, clock.end_seconds = await enter(holder), end
    async with waiter.acquire(*WHOSE, {}, limits=ONE, max_wait=60):
        assert end <= clock.elapsed <= end + 2.4
        assert max(clock.pauses) <= 1.2
        assert len(clock.pauses) <= end + 3, "nor is it asked more often than that"
    assert await free(holder) == 1


class Slow(FaultyStore):
    """A store whose answers take a while, but for those to writes that free something."""

    async def read(self, keys: Sequence[Key], *, timeout: float | None = None) -> list[Image | None]:
        images = await super().read(keys, timeout=timeout)
        await asyncio.sleep(0.06)
        return images

    async def commit(self, writes: Sequence[Write], *, timeout: float | None = None) -> Committed | Conflict:
        outcome = await super().commit(writes, timeout=timeout)
        if not any(write.remove for write in writes):
            await asyncio.sleep(0.06)
        return outcome


@pytest.mark.parametrize("pause_ms", [10, 30, 50, 70, 100])
def test_a_slot_that_is_freed_while_the_first_in_line_is_trying_is_passed_on_at_once(pause_ms: int) -> None:
    """What it is answered then is older than the release, which wakes it."""

    async def work() -> float:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        limiter = RateLimiter(Slow(MemoryStore(loop), suspend=True))
        first = await enter(limiter)

        async def end() -> float:
            await asyncio.sleep(pause_ms / 1000)
            await first.exit()
            return loop.time()

        async def follow() -> float:
            second = await enter(limiter, max_wait=30)
            passed_on = loop.time()
            await second.exit()
            return passed_on

        ended, passed_on = await asyncio.gather(end(), follow())
        return passed_on - ended

    assert run_virtually(work()) < 0.3
