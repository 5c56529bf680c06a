"""Giving back: a bucket ends where it would be had the tokens never been taken, and law 1 holds meanwhile."""

from __future__ import annotations

import pytest

from zae_limiter import Limit, RateLimitExceeded
from zae_limiter.testing import Harness

LIMITS = [Limit.per_second("tpm", 10, burst=100)]


@pytest.mark.parametrize("seconds", [10, 11, 60])
def test_a_give_back_is_void_once_the_bucket_was_full_and_charged(harness: Harness, seconds: int) -> None:
    async def work() -> None:
        limiter = harness.limiter()
        unused = limiter.acquire("key", "gpt-4", {"tpm": 100}, limits=LIMITS)
        async with unused:
            harness.clock.advance(seconds)  # the bucket is full again
            async with limiter.acquire("key", "gpt-4", {"tpm": 100}, limits=LIMITS):
                pass
            await unused.release(tpm=100)
        assert await limiter.available("key", "gpt-4", limits=LIMITS) == {"tpm": 0}
        with pytest.raises(RateLimitExceeded):
            async with limiter.acquire("key", "gpt-4", {"tpm": 1}, limits=LIMITS):
                pass
        assert [state.total_consumed_milli for state in await limiter.get_buckets("key")] == [100_000]

    harness.run(work())


def test_a_roll_back_is_void_in_the_same_way(harness: Harness) -> None:
    async def work() -> None:
        limiter = harness.limiter()
        with pytest.raises(ZeroDivisionError):
            async with limiter.acquire("key", "gpt-4", {"tpm": 100}, limits=LIMITS):
                harness.clock.advance(20)
                async with limiter.acquire("key", "gpt-4", {"tpm": 60}, limits=LIMITS):
                    pass
                raise ZeroDivisionError
        assert await limiter.available("key", "gpt-4", limits=LIMITS) == {"tpm": 40}

    harness.run(work())


def test_a_give_back_counts_while_the_bucket_was_never_full(harness: Harness) -> None:
    async def work() -> None:
        limiter = harness.limiter()
        unused = limiter.acquire("key", "gpt-4", {"tpm": 80}, limits=LIMITS)
        async with unused:
            for _ in range(5):
                harness.clock.advance(1)
                async with limiter.acquire("key", "gpt-4", {"tpm": 10}, limits=LIMITS):
                    pass
            await unused.release(tpm=50)
        assert await limiter.available("key", "gpt-4", limits=LIMITS) == {"tpm": 70}

    harness.run(work())


def test_a_give_back_to_another_process_is_judged_by_the_store(harness: Harness) -> None:
    """The client that gives back has not seen that the bucket was full meanwhile: the guard tells it."""

    async def work() -> None:
        ours, theirs = harness.limiter(), harness.limiter()
        unused = ours.acquire("key", "gpt-4", {"tpm": 100}, limits=LIMITS)
        async with unused:
            harness.clock.advance(60)
            async with theirs.acquire("key", "gpt-4", {"tpm": 100}, limits=LIMITS):
                pass
            await unused.release(tpm=100)
        assert await ours.available("key", "gpt-4", limits=LIMITS) == {"tpm": 0}

    harness.run(work())


def test_debt_is_always_charged(harness: Harness) -> None:
    async def work() -> None:
        limiter = harness.limiter()
        async with limiter.acquire("key", "gpt-4", {"tpm": 1}, limits=LIMITS) as lease:
            harness.clock.advance(60)
            async with limiter.acquire("key", "gpt-4", {"tpm": 1}, limits=LIMITS):
                pass
            await lease.adjust(tpm=500)
        assert await limiter.available("key", "gpt-4", limits=LIMITS) == {"tpm": -401}

    harness.run(work())
