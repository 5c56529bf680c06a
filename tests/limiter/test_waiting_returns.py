"""Waiters see what others give back: at once in the same process, within a second and a half across processes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from tests.support.virtual_time import Distant, VirtualLoop, put_apart, run_virtually
from zae_limiter import Lease, Limit, RateLimiter, RateLimitExceeded, Repository
from zae_limiter.stores.memory import MemoryStore
from zae_limiter.testing import Harness, ManualClock
from zae_limiter.testing.clock import DEFAULT_START_MS

WHOSE = ("key", "gpt-4")
TPM = [Limit.per_second("tpm", 1, burst=100)]
QUOTA = [Limit.quota("tpm", 100, every="day")]
END = 0.9
"""When the holder ends its lease, in seconds."""


class Meanwhile(ManualClock):
    """A clock on which something happens while somebody waits: ``event`` when ``at`` seconds have passed."""

    def __init__(self) -> None:
        super().__init__()
        self.at = END
        self.event: Callable[[], Awaitable[None]] | None = None
        self.pauses: list[float] = []

    @property
    def elapsed(self) -> float:
        """The seconds since the beginning."""
        return (self.now_ms() - DEFAULT_START_MS) / 1000

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await super().pause(seconds)
        if self.event is not None and self.elapsed >= self.at:
            event, self.event = self.event, None
            await event()


def prepare(harness: Harness) -> Meanwhile:
    harness.clock = clock = Meanwhile()
    return clock


async def reserve(limiter: RateLimiter, limits: list[Limit], amount: int = 100) -> Lease:
    lease = limiter.acquire(*WHOSE, {"tpm": amount}, limits)
    await lease.enter()
    return lease


async def use_a_tenth(lease: Lease) -> None:
    await lease.adjust(tpm=-90)
    await lease.exit()


async def is_granted(limiter: RateLimiter, limits: list[Limit], amount: int, max_wait: float) -> bool:
    try:
        async with limiter.acquire(*WHOSE, {"tpm": amount}, limits, max_wait=max_wait):
            return True
    except RateLimitExceeded:
        return False


@pytest.mark.parametrize("refusal_ttl", [0, 1, 60])
async def test_what_another_process_gives_back_is_seen_within_a_second_and_a_half(
    harness: Harness, refusal_ttl: float
) -> None:
    """However long refusals are repeated from memory."""
    clock = prepare(harness)
    lease, waiter = await reserve(harness.limiter(), TPM), put_apart(harness.limiter(refusal_ttl=refusal_ttl))
    clock.event = lambda: use_a_tenth(lease)
    assert await is_granted(waiter, TPM, 50, max_wait=10)
    assert END <= clock.elapsed <= END + 1.5
    assert max(clock.pauses) <= 1


async def test_nobody_is_refused_what_came_back_just_before_the_end(harness: Harness) -> None:
    clock = prepare(harness)
    lease, waiter = await reserve(harness.limiter(), TPM), put_apart(harness.limiter())
    clock.at, clock.event = 2.5, lambda: use_a_tenth(lease)
    assert await is_granted(waiter, TPM, 50, max_wait=2.5)
    assert clock.elapsed == 2.5


async def leave_by_exit(lease: Lease) -> None:
    await use_a_tenth(lease)


async def leave_by_error(lease: Lease) -> None:
    await lease.exit(give_back=True)


async def correct_late(lease: Lease) -> None:
    await lease.exit(final=False)
    await asyncio.sleep(1)
    await lease.release(tpm=90)


WAYS = {"settled": leave_by_exit, "failed": leave_by_error, "corrected after its end": correct_late}


@pytest.mark.parametrize("prefetch", [0, 1])
@pytest.mark.parametrize("way", WAYS)
def test_what_the_same_process_gives_back_is_passed_on_within_50_ms(way: str, prefetch: float) -> None:
    """First come, first served."""

    async def work() -> tuple[list[str], float]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        store = Distant(MemoryStore(loop), random.Random(1), (0.3, 1))
        limiter, order = RateLimiter(Repository(store), prefetch=prefetch), list[str]()
        lease = await reserve(limiter, TPM)

        async def wait(name: str, amount: int) -> None:
            assert await is_granted(limiter, TPM, amount, max_wait=60)
            order.append(name)

        waiters = [asyncio.create_task(wait(name, amount)) for name, amount in (("big", 60), ("small", 5))]
        await asyncio.sleep(END)
        await WAYS[way](lease)
        ended = loop.time()
        await asyncio.gather(*waiters)
        await limiter.close()
        return order, loop.time() - ended

    order, seconds = run_virtually(work())
    assert order == ["big", "small"]
    assert seconds <= 0.05


@pytest.mark.parametrize("shared", [True, False], ids=["one store", "two stores of the same records"])
def test_what_another_limiter_on_the_store_gives_back_is_passed_on_within_50_ms(*, shared: bool) -> None:
    async def work() -> float:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        records = MemoryStore(loop)
        stores = [Distant(records, random.Random(1), (0.3, 1)) for _ in range(2)]
        holder, waiter = (RateLimiter(Repository(stores[0 if shared else place])) for place in range(2))
        lease = await reserve(holder, TPM)
        waiting = asyncio.create_task(is_granted(waiter, TPM, 60, max_wait=60))
        await asyncio.sleep(END)
        await use_a_tenth(lease)
        ended = loop.time()
        assert await waiting
        return loop.time() - ended

    assert run_virtually(work()) <= 0.05


# Quotas.


async def test_a_quota_that_resets_too_late_is_refused_at_once_if_nothing_can_come_back(harness: Harness) -> None:
    clock = prepare(harness)
    limiter = harness.limiter()
    lease = await reserve(limiter, QUOTA)
    await lease.exit()
    assert not await is_granted(limiter, QUOTA, 1, max_wait=30)
    assert not await is_granted(harness.limiter(), QUOTA, 1, max_wait=30)
    assert clock.pauses == []


async def test_a_quota_is_waited_for_while_this_process_holds_a_reservation_on_it(harness: Harness) -> None:
    clock = prepare(harness)
    limiter = harness.limiter()
    lease = await reserve(limiter, QUOTA)
    clock.event = lambda: use_a_tenth(lease)
    assert await is_granted(limiter, QUOTA, 50, max_wait=30)
    assert END <= clock.elapsed <= END + 1.5


async def test_a_quota_is_not_waited_for_once_the_last_reservation_has_ended_without_a_return(harness: Harness) -> None:
    clock = prepare(harness)
    limiter = harness.limiter()
    lease = await reserve(limiter, QUOTA)
    clock.event = lease.exit
    assert not await is_granted(limiter, QUOTA, 50, max_wait=30)
    assert END <= clock.elapsed <= END + 1.5


@pytest.mark.parametrize(("seconds", "waits"), [(0, True), (59, True), (61, False)])
async def test_a_quota_that_has_risen_lately_may_rise_again(harness: Harness, seconds: int, waits: bool) -> None:
    clock = prepare(harness)
    holder, waiter = harness.limiter(), harness.limiter()
    first, second = await reserve(holder, QUOTA, 50), await reserve(holder, QUOTA, 50)
    assert not await is_granted(waiter, QUOTA, 1, max_wait=0)
    await first.adjust(tpm=-10)
    await first.exit()
    clock.advance(2)
    assert await is_granted(waiter, QUOTA, 10, max_wait=0)
    clock.advance(seconds)
    clock.at, clock.event = clock.elapsed + END, lambda: use_half(second)
    assert await is_granted(waiter, QUOTA, 20, max_wait=10) is waits
    assert bool(clock.pauses) is waits


async def use_half(lease: Lease) -> None:
    await lease.adjust(tpm=-25)
    await lease.exit()


async def test_a_quota_that_resets_in_time_is_waited_for(harness: Harness) -> None:
    clock = prepare(harness)
    limiter = harness.limiter()
    await (await reserve(limiter, QUOTA)).exit()
    left = 86_400 - clock.now_ms() // 1000 % 86_400
    clock.advance(left - 5)
    assert await is_granted(limiter, QUOTA, 100, max_wait=5)
