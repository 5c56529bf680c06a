"""Rates to the token: however often a bucket is asked, however slow the limit, whatever else the bucket holds."""

from __future__ import annotations

import random

import pytest

from tests.support.acquiring import granted, take
from zae_limiter import Limit, RateLimitExceeded
from zae_limiter.bucket import refill_bucket
from zae_limiter.stores.memory import MemoryStore
from zae_limiter.testing import Harness, ManualClock


@pytest.mark.parametrize(("amount", "period"), [(1, 86_400), (999, 3_600), (7, 3), (1_000_000, 1), (10**12, 86_400)])
def test_every_rate_is_exact_when_polled_each_millisecond(amount: int, period: int) -> None:
    clock = ManualClock()
    harness = Harness(lambda _, blocking: store, blocking=True)
    store = MemoryStore(clock)
    limits = [Limit.custom("rpm", max(amount // period, 1), amount, period)]

    async def work() -> None:
        limiter = harness.limiter()
        capacity = limits[0].capacity
        assert await granted(limiter, {"rpm": capacity}, limits=limits)
        assert not await granted(limiter, {"rpm": 1}, limits=limits), "it limits at all"
        issued = 0
        for _ in range(1_500):
            clock.advance_ms(1)
            left = (await limiter.available("key", "gpt-4", limits))["rpm"]
            if left:
                assert await granted(limiter, {"rpm": left}, limits=limits)
                issued += left
        start, end = clock.now_ms() - 1_500, clock.now_ms()
        made = (end * amount * 1000 // (period * 1000) - start * amount * 1000 // (period * 1000)) // 1000
        assert issued == made

    harness.run(work())


def test_refill_in_steps_of_a_millisecond_credits_the_rate_and_no_more() -> None:
    start = 1_800_000_000_000
    for amount, period in ((7, 3_000), (1_000, 60_000), (999_983, 86_400_000)):
        tokens, at = 0, start
        for now in range(start + 1, start + 20_001):
            tokens, at = refill_bucket(tokens, at, now, 10**12, amount, period)
        assert tokens == (start + 20_000) * amount // period - start * amount // period


async def test_every_store_is_exact_when_polled_each_millisecond(harness: Harness) -> None:
    limits = [Limit.custom("tpm", capacity=1_000, refill_amount=70, refill_period_seconds=3)]
    limiter = harness.limiter()
    await take(limiter, {"tpm": 1_000}, limits=limits)
    passed = 0
    for _ in range(3_000):
        harness.clock.advance_ms(1)
        passed += await granted(limiter, {"tpm": 1}, limits=limits)
    assert passed == 70


async def test_a_slow_limit_beside_a_fast_one_refills_in_full(harness: Harness) -> None:
    limits = [Limit.per_day("slow", 100), Limit.per_second("fast", 2, burst=20)]
    limiter = harness.limiter()
    await take(limiter, {"slow": 100, "fast": 20}, limits=limits)
    for _ in range(360):
        harness.clock.advance(10)
        await take(limiter, {"fast": 20}, limits=limits)
    assert await limiter.available("key", "gpt-4", limits) == {"slow": 4, "fast": 0}
    wait = await limiter.time_until_available("key", "gpt-4", {"slow": 5}, limits)
    assert wait == pytest.approx(720, abs=0.9)  # due 4,320 s after the start; a millitoken takes 0.864 s


async def test_limits_of_one_bucket_do_not_disturb_each_other(harness: Harness) -> None:
    chance, limiter = random.Random(25), harness.limiter()
    both = [Limit.per_second("fast", 7, burst=30), Limit.per_day("slow", 9_000, burst=400)]

    async def charge(entity: str, cost: dict[str, int], limits: list[Limit], delta: dict[str, int]) -> bool:
        try:
            async with limiter.acquire(entity, "gpt-4", cost, limits) as lease:
                await lease.adjust(delta)
                return True
        except RateLimitExceeded:
            return False

    for _ in range(250):
        harness.clock.advance_ms(chance.choice((1, 20, 700, 30_000)))
        fast, slow = chance.randrange(12), chance.randrange(9)
        delta = {"fast": chance.randrange(-3, 3), "slow": chance.randrange(-3, 3)}
        fits = await charge("both", {"fast": fast, "slow": slow}, both, delta)
        if fits:
            assert await charge("only fast", {"fast": fast}, both[:1], {"fast": delta["fast"]})
            assert await charge("only slow", {"slow": slow}, both[1:], {"slow": delta["slow"]})
        alone = await limiter.available("only fast", "gpt-4", both[:1])
        alone |= await limiter.available("only slow", "gpt-4", both[1:])
        assert await limiter.available("both", "gpt-4", both) == alone


async def test_an_idle_bucket_does_not_double_its_burst(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_limits("key", [Limit.per_second("rpm", 10, burst=100)])  # its own: the bucket never expires
    await take(limiter, {"rpm": 1})
    harness.clock.advance(3_600)
    passed = 0
    for _ in range(661):
        while await granted(limiter, {"rpm": 1}):
            passed += 1
        harness.clock.advance_ms(1)
    assert passed == 106  # 100 at once and 6 in the 660 ms after it
