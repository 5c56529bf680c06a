"""Waiting for tokens: first come, first served, and no longer than was agreed."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.acquiring import granted
from zae_limiter import (
    CapacityExceeded,
    Limit,
    RateLimiter,
    RateLimiterUnavailable,
    RateLimitExceeded,
    Repository,
    SyncRateLimiter,
    SyncRepository,
)
from zae_limiter.stores.memory import MemoryStore
from zae_limiter.testing import Fault, FaultyStore, Harness, ManualClock

SLOW = [Limit.per_second("rpm", 1, burst=100)]
START_MS = ManualClock().now_ms()


async def drained(limiter: RateLimiter, limits: list[Limit] = SLOW) -> None:
    async with limiter.acquire("key", "gpt-4", {"rpm": limits[0].capacity}, limits):
        pass


async def test_a_waiter_is_served_at_the_first_moment(harness: Harness) -> None:
    limiter = harness.limiter()
    await drained(limiter)
    async with limiter.acquire("key", "gpt-4", {"rpm": 5}, SLOW, max_wait=60) as lease:
        assert lease.available == {"rpm": 0}
    assert harness.clock.now_ms() == START_MS + 5_000


async def test_just_long_enough_is_long_enough(harness: Harness) -> None:
    limiter = harness.limiter()
    await drained(limiter)
    async with limiter.acquire("key", "gpt-4", {"rpm": 5}, SLOW, max_wait=5):
        pass


@pytest.mark.parametrize("max_wait", [0.0, None])
async def test_a_caller_that_does_not_wait_is_refused_at_once(harness: Harness, max_wait: float | None) -> None:
    limiter = harness.limiter()
    await drained(limiter)
    with pytest.raises(RateLimitExceeded) as refused:
        async with limiter.acquire("key", "gpt-4", {"rpm": 5}, SLOW, max_wait=max_wait):
            pass
    assert refused.value.retry_after_seconds == 5.0
    with pytest.raises(CapacityExceeded):
        async with limiter.acquire("key", "gpt-4", {"rpm": 101}, SLOW, max_wait=10**6):
            pass
    assert harness.clock.now_ms() == START_MS, "at once"
    assert await limiter.available("key", "gpt-4", SLOW) == {"rpm": 0}


async def test_a_rate_waits_to_the_end_as_tokens_may_come_back(harness: Harness) -> None:
    limiter = harness.limiter()
    await drained(limiter)
    with pytest.raises(RateLimitExceeded) as refused:
        async with limiter.acquire("key", "gpt-4", {"rpm": 5}, SLOW, max_wait=4.999):
            pass
    assert refused.value.retry_after_seconds == 0.001
    assert harness.clock.now_ms() == START_MS + 4_999
    assert await limiter.available("key", "gpt-4", SLOW) == {"rpm": 4}


class SteppedClock(ManualClock):
    """Who waits on it really waits, until the test moves it."""

    async def pause(self, seconds: float) -> None:
        until_ms = self.now_ms() - int(-seconds * 1000 // 1)
        while self.now_ms() < until_ms:  # noqa: ASYNC110  # the clock has no event to wait for
            await asyncio.sleep(0)


class Line:
    """Waiters on one drained bucket that refills one token a second."""

    def __init__(self, *, suspend: bool = False, limits: list[Limit] = SLOW) -> None:
        self.clock = SteppedClock()
        self.store = FaultyStore(MemoryStore(self.clock), suspend=suspend)
        self.limiter = RateLimiter(Repository(self.store))
        self.limits = limits
        self.served: list[tuple[str, float]] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def ask(self, name: str, amount: int, max_wait: float | None = 1_000, **options: Any) -> None:
        entity = options.pop("entity", "key")
        async with self.limiter.acquire(entity, "gpt-4", {"rpm": amount}, self.limits, max_wait=max_wait, **options):
            self.served.append((name, (self.clock.now_ms() - START_MS) / 1000))

    async def join(self, name: str, amount: int, max_wait: float | None = 1_000, **options: Any) -> asyncio.Task[None]:
        task = asyncio.create_task(self.ask(name, amount, max_wait, **options))
        self.tasks.append(task)
        await settled()
        return task

    async def pass_time(self, seconds: int, step_ms: int = 1_000) -> None:
        for _ in range(seconds * 1_000 // step_ms):
            self.clock.advance_ms(step_ms)
            await settled()

    async def end(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


async def settled() -> None:
    """Let everybody go on who can."""
    for _ in range(40):
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def scene(*, suspend: bool = False) -> AsyncIterator[Line]:
    """A line at a bucket that is empty; whoever still waits at the end is sent away."""
    line = Line(suspend=suspend)
    await drained(line.limiter)
    try:
        yield line
    finally:
        await line.end()


@pytest.mark.parametrize("suspend", [False, True])
async def test_first_come_first_served(suspend: bool) -> None:
    async with scene(suspend=suspend) as line:
        for name, amount in (("a", 3), ("b", 1), ("c", 2)):
            await line.join(name, amount)
        await line.pass_time(10)
        assert line.served == [("a", 3.0), ("b", 4.0), ("c", 6.0)]


async def test_a_newcomer_counts_those_before_it() -> None:
    async with scene() as line:
        await line.join("a", 5)
        with pytest.raises(RateLimitExceeded) as refused:
            await line.ask("b", 1, max_wait=0)
        assert refused.value.retry_after_seconds == 6.0
        await line.join("c", 1, max_wait=6)
        await line.pass_time(8)
        assert line.served == [("a", 5.0), ("c", 6.0)]


async def test_who_does_not_wait_does_not_overtake() -> None:
    async with scene() as line:
        await line.join("a", 5)
        await line.pass_time(3)
        for _ in range(3):
            with pytest.raises(RateLimitExceeded):
                await line.ask("rude", 1, max_wait=None)
        await line.ask("nothing", 0, max_wait=None)
        await line.pass_time(3)
        assert line.served == [("nothing", 3.0), ("a", 5.0)]
        await line.ask("later", 1, max_wait=None)


async def test_a_sibling_does_not_overtake_at_the_common_parent() -> None:
    async with scene() as line:
        limiter = line.limiter
        await limiter.create_entity("org")
        for key in ("one", "two"):
            await limiter.create_entity(key, parent_id="org", cascade=True)
        await line.ask("first", 100, entity="org")
        await line.join("a", 5, entity="one")
        await line.pass_time(3)
        with pytest.raises(RateLimitExceeded):
            await line.ask("rude", 3, max_wait=None, entity="two")
        await line.pass_time(3)
        assert line.served == [("first", 0.0), ("a", 5.0)]


@pytest.mark.parametrize("leaver", [0, 1, 2])
@pytest.mark.parametrize("suspend", [False, True])
async def test_who_is_cancelled_makes_way_for_the_next(leaver: int, suspend: bool) -> None:
    async with scene(suspend=suspend) as line:
        waiters = [await line.join(name, 2) for name in "abcd"]
        waiters[leaver].cancel()
        await settled()
        assert waiters[leaver].cancelled()
        await line.pass_time(12)
        names = [name for name in "abcd" if name != "abcd"[leaver]]
        assert line.served == [(name, 2.0 * (place + 1)) for place, name in enumerate(names)]
        await line.ask("later", 2, max_wait=None)
        assert await line.limiter.available("key", "gpt-4", SLOW) == {"rpm": 4}, "nothing was lost on the way"


async def test_who_is_late_through_others_is_refused_and_the_line_goes_on() -> None:
    async with scene() as line:
        stranger = RateLimiter(Repository(line.store), refusal_ttl=0)
        first = await line.join("a", 3, max_wait=5)
        await line.join("b", 1, max_wait=60)
        await line.pass_time(2)
        async with stranger.acquire("key", "gpt-4", {"rpm": 2}, SLOW) as lease:
            await lease.adjust(rpm=5)
        await line.pass_time(10)
        assert isinstance(first.exception(), RateLimitExceeded)
        assert line.served == [("b", 8.0)]


@pytest.mark.parametrize("policy", ["block", "allow"])
async def test_a_store_that_fails_ends_the_waiting_of_its_head_only(policy: str) -> None:
    async with scene() as line:
        first = await line.join("a", 2, on_unavailable=policy)
        await line.join("b", 1)
        line.store.inject(Fault.FAIL_BEFORE, verb="commit")
        await line.pass_time(4)
        if policy == "block":
            assert isinstance(first.exception(), RateLimiterUnavailable)
            assert line.served == [("b", 1.0)]
        else:
            assert line.served == [("a", 1.0), ("b", 1.0)]


async def test_other_buckets_do_not_wait_along() -> None:
    async with scene() as line:
        await line.join("a", 50)
        await line.ask("other entity", 100, max_wait=None, entity="stranger")
        assert line.served == [("other entity", 0.0)]


async def test_1000_waiters_are_served_in_order_with_few_calls() -> None:
    limits = [Limit.per_second("rpm", 100)]
    line = Line(limits=limits)
    await drained(line.limiter, limits)
    before = line.store.calls.total()
    started = time.process_time()
    line.tasks = [asyncio.create_task(line.ask(str(number), 1)) for number in range(1_000)]
    while not all(task.done() for task in line.tasks):
        line.clock.advance_ms(10)
        for _ in range(3):
            await asyncio.sleep(0)
    await asyncio.gather(*line.tasks)
    assert [name for name, _ in line.served] == [str(number) for number in range(1_000)]
    assert all(moment >= (place + 1) / 100 for place, (_, moment) in enumerate(line.served))
    assert line.store.calls.total() - before <= 2_500, "nobody stampedes"
    assert time.process_time() - started < 10


def test_threads_wait_in_line_too() -> None:
    limits = [Limit.custom("rpm", capacity=1, refill_amount=100, refill_period_seconds=1)]
    limiter = SyncRateLimiter(SyncRepository("memory://"))
    served: list[int] = []

    def wait(number: int) -> None:
        with limiter.acquire("key", "gpt-4", {"rpm": 1}, limits, max_wait=30):
            served.append(number)

    with limiter.acquire("key", "gpt-4", {"rpm": 1}, limits):
        threads = [threading.Thread(target=wait, args=(number,)) for number in range(30)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(served) == list(range(30))
    assert limiter.available("key", "gpt-4", limits)["rpm"] <= 1


async def test_tokens_that_come_back_wake_whoever_waits() -> None:
    """On a real clock: the natural moment is 30 s away, the give-back comes at once."""
    limiter = RateLimiter("memory://")
    await limiter.set_limits("key", [Limit.per_minute("rpm", 60)])
    holder = limiter.acquire("key", "gpt-4", {"rpm": 60})
    await holder.__aenter__()

    async def waiting() -> bool:
        async with limiter.acquire("key", "gpt-4", {"rpm": 30}, max_wait=50):
            return True

    waiter = asyncio.create_task(waiting())
    await asyncio.sleep(0)
    await holder.__aexit__(ValueError, ValueError(), None)
    assert await asyncio.wait_for(waiter, 20)


async def test_a_timer_that_fires_early_is_no_grant(harness: Harness) -> None:
    class Early(ManualClock):
        pauses = 0

        async def pause(self, seconds: float) -> None:
            self.pauses += 1
            await super().pause(seconds / 2)

    clock = Early()
    limiter = harness.limiter(harness.store(clock))
    limits = [Limit.per_second("rpm", 1, burst=100)]
    assert await granted(limiter, {"rpm": 100}, limits=limits)
    assert await granted(limiter, {"rpm": 8}, limits=limits, max_wait=60)
    assert clock.now_ms() == ManualClock().now_ms() + 8_000
    assert clock.pauses <= 2 * 8 + 10, "a look per second, of half a second each, and ever shorter ones at the end"
