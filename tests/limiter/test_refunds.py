"""Giving back: unused tokens come back in full, and debt is never lost."""

from __future__ import annotations

import pytest

from zae_limiter import CapacityExceeded, Limit, RateLimitExceeded
from zae_limiter.testing import Harness

LIMITS = [Limit.per_second("tpm", 10, burst=100)]


async def test_a_give_back_counts_while_the_bucket_was_never_full(harness: Harness) -> None:
    limiter = harness.limiter()
    unused = limiter.acquire("key", "gpt-4", {"tpm": 80}, limits=LIMITS)
    async with unused:
        for _ in range(2):
            harness.clock.advance(1)
            async with limiter.acquire("key", "gpt-4", {"tpm": 10}, limits=LIMITS):
                pass
        await unused.release(tpm=50)
    assert await limiter.available("key", "gpt-4", limits=LIMITS) == {"tpm": 70}


async def test_debt_is_always_charged(harness: Harness) -> None:
    limiter = harness.limiter()
    async with limiter.acquire("key", "gpt-4", {"tpm": 1}, limits=LIMITS) as lease:
        harness.clock.advance(60)
        async with limiter.acquire("key", "gpt-4", {"tpm": 1}, limits=LIMITS):
            pass
        await lease.adjust(tpm=500)
    assert await limiter.available("key", "gpt-4", limits=LIMITS) == {"tpm": -401}


async def test_an_adjustment_of_a_limit_that_was_not_estimated_is_not_swallowed(harness: Harness) -> None:
    limits = [Limit.per_minute("rpm", 1_000), Limit.per_minute("tpm", 10_000)]
    limiter = harness.limiter()
    await limiter.set_limits("key", limits)
    async with limiter.acquire("key", "gpt-4", {"rpm": 1, "tpm": 1}):
        pass
    harness.clock.advance(3_600)
    for _ in range(3):
        async with limiter.acquire("key", "gpt-4", {"rpm": 1}) as lease:
            await lease.adjust(tpm=9_000)
    assert (await limiter.available("key", "gpt-4"))["tpm"] == 10_000 - 27_000


async def test_nobody_gives_back_more_than_was_taken(harness: Harness) -> None:
    limiter = harness.limiter()
    async with limiter.acquire("key", "gpt-4", {"tpm": 60}, limits=LIMITS):
        async with limiter.acquire("key", "gpt-4", {"tpm": 5}, limits=LIMITS) as lease:
            await lease.release(tpm=50)
            assert lease.consumed == {"tpm": 0}
        assert await limiter.available("key", "gpt-4", limits=LIMITS) == {"tpm": 40}


async def test_settling_with_a_bucket_that_lost_the_limit_ends(harness: Harness) -> None:
    limiter = harness.limiter()
    rpm = [Limit.per_minute("rpm", 10)]
    with pytest.raises(ZeroDivisionError):
        async with limiter.acquire("key", "gpt-4", {"tpm": 50}, limits=LIMITS):
            await limiter.reset_bucket("key", "gpt-4")
            async with limiter.acquire("key", "gpt-4", {"rpm": 1}, limits=rpm):
                pass
            raise ZeroDivisionError
    assert await limiter.available("key", "gpt-4", limits=rpm) == {"rpm": 9}


async def test_debts_of_two_clients_outlive_the_bucket_together(harness: Harness) -> None:
    ours, theirs = harness.limiter(), harness.limiter()
    await ours.set_system_defaults([Limit.per_second("tpm", 1, burst=100)])
    mine, other = (each.acquire("key", "gpt-4", {"tpm": 1}) for each in (ours, theirs))
    async with mine, other:
        await mine.adjust(tpm=10_000)
        await other.adjust(tpm=10_000)
    harness.clock.advance(10_500)
    assert await ours.available("key", "gpt-4") == {"tpm": 100 - 20_002 + 10_500}


async def test_debt_outlives_a_cut_of_the_rate(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults([Limit.per_second("tpm", 100)])
    async with limiter.acquire("key", "gpt-4", {"tpm": 1}) as lease:
        await lease.adjust(tpm=1_999)
    await limiter.set_system_defaults([Limit.per_day("tpm", 100)])
    with pytest.raises(RateLimitExceeded):
        async with limiter.acquire("key", "gpt-4", {"tpm": 1}):
            pass
    harness.clock.advance(8 * 86_400)
    assert await limiter.available("key", "gpt-4") == {"tpm": -1_900 + 800}


async def test_a_look_under_old_config_does_not_undo_a_change(harness: Harness) -> None:
    ours, theirs = harness.limiter(), harness.limiter()
    await ours.set_system_defaults([Limit.per_minute("rpm", 10)])
    async with theirs.acquire("key", "gpt-4", {"rpm": 1}):
        pass
    await ours.set_system_defaults([Limit.per_minute("rpm", 1_000)])
    async with ours.acquire("key", "gpt-4", {"rpm": 1}):
        pass
    harness.clock.advance(30)
    before = await ours.available("key", "gpt-4")
    await theirs.get_status("key", "gpt-4")
    assert await ours.available("key", "gpt-4") == before == {"rpm": 508}
    async with theirs.acquire("key", "gpt-4", {"rpm": 100}):
        pass
    with pytest.raises(CapacityExceeded):
        async with theirs.acquire("key", "gpt-4", {"rpm": 1_001}):
            pass


async def test_a_cost_of_the_whole_capacity_among_several_clients(harness: Harness) -> None:
    limits = [Limit("tpm", 1, 1_000, 1)]
    clients = [harness.limiter() for _ in range(3)]
    granted = 0
    for step in range(60):
        harness.clock.advance_ms(step % 3)
        try:
            async with clients[step % 3].acquire("key", "gpt-4", {"tpm": 1}, limits=limits):
                granted += 1
        except RateLimitExceeded:
            pass
    assert 1 <= granted <= 60
