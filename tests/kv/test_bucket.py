"""The bucket: exact whatever the rate, the number of looks and the clocks."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from zae_limiter import ValidationError
from zae_limiter.kv import RateLimitPolicy, TokenBucket

START_MS = 1_800_000_000_123
WIDE = 10**6
STANDARD = RateLimitPolicy.standard_ip_policy()

rates = st.integers(1, 6_000)
instants = st.integers(START_MS, START_MS + 10**9)


def wide(rate: int) -> RateLimitPolicy:
    """So much room that no bucket is ever full."""
    return RateLimitPolicy.create(rate, WIDE)


def test_a_new_bucket_is_full() -> None:
    assert TokenBucket.create(10, START_MS) == TokenBucket(10, START_MS, 10)


def test_taking() -> None:
    bucket = TokenBucket(1, START_MS, 10).consume()
    assert bucket == TokenBucket(0, START_MS, 10)
    assert bucket.consume() is None


@pytest.mark.parametrize("rate", [1, 7, 10, 59, 1_001, 6_000])
def test_looking_every_millisecond_is_like_looking_once(rate: int) -> None:
    seen = start = TokenBucket(0, START_MS, WIDE)
    for instant in range(START_MS, START_MS + 30_001):
        seen = seen.refill(wide(rate), instant)
    assert seen == start.refill(wide(rate), START_MS + 30_000)
    assert abs(seen.tokens - rate / 2) <= 1


@given(rates, instants, st.lists(st.integers(0, 90_000), max_size=30))
def test_looking_often_is_like_looking_once(rate: int, start_ms: int, steps: list[int]) -> None:
    seen = start = TokenBucket(0, start_ms, WIDE)
    now_ms = start_ms
    for step in steps:
        now_ms += step
        seen = seen.refill(wide(rate), now_ms)
    assert seen == start.refill(wide(rate), now_ms)
    assert abs(seen.tokens - rate * sum(steps) / 60_000) < 1


@given(rates, instants, st.integers(0, 600_000))
def test_the_instant_of_the_last_token_is_kept(rate: int, start_ms: int, later: int) -> None:
    policy = wide(rate)
    bucket = TokenBucket(0, start_ms, WIDE).refill(policy, start_ms + later)
    assert start_ms <= bucket.last_refill_ms <= start_ms + later
    before = TokenBucket(0, start_ms, WIDE).refill(policy, bucket.last_refill_ms - 1)
    assert bucket.tokens == 0 or before.tokens < bucket.tokens
    assert bucket.refill(policy, bucket.last_refill_ms) == bucket


@given(rates, instants, st.integers(1, 10**10))
def test_a_clock_that_is_behind_changes_nothing(rate: int, start_ms: int, behind: int) -> None:
    bucket = TokenBucket(3, start_ms, WIDE)
    assert bucket.refill(wide(rate), start_ms - behind) == bucket


@given(rates, instants, st.integers(-600_000, 600_000))
def test_the_promised_moment(rate: int, start_ms: int, later: int) -> None:
    policy, bucket, now_ms = RateLimitPolicy.create(rate), TokenBucket(0, start_ms, rate), start_ms + later
    ready_ms = now_ms + bucket.ready_ms(policy, now_ms)
    assert ready_ms >= now_ms
    assert bucket.refill(policy, ready_ms).tokens >= 1
    assert ready_ms == now_ms or bucket.refill(policy, ready_ms - 1).tokens == 0
    full_ms = now_ms + bucket.full_ms(policy, now_ms)
    assert full_ms >= ready_ms
    assert bucket.refill(policy, full_ms).tokens == rate
    assert full_ms == now_ms or bucket.refill(policy, full_ms - 1).tokens < rate


def test_nothing_to_wait_for() -> None:
    assert TokenBucket(1, START_MS, 10).ready_ms(STANDARD, START_MS - 5_000) == 0
    assert TokenBucket(10, START_MS, 10).full_ms(STANDARD, START_MS - 5_000) == 0


def test_never_more_than_full() -> None:
    assert TokenBucket(9, START_MS, 10).refill(STANDARD, START_MS + 3_600_000).tokens == 10


def test_the_capacity_of_the_policy_counts() -> None:
    assert TokenBucket(50, START_MS, 100).refill(STANDARD, START_MS) == TokenBucket(10, START_MS, 10)
    assert TokenBucket(4, START_MS, 5).refill(wide(10), START_MS) == TokenBucket(4, START_MS, WIDE)


@pytest.mark.parametrize(
    "members",
    [(-1, 0, 10), (11, 0, 10), (0, -1, 10), (0, 0, 0), (True, 0, 10), (1.0, 0, 10), (1, None, 10), (1, 10**17, 10)],
    ids=repr,
)
def test_buckets_that_cannot_be(members: tuple[Any, Any, Any]) -> None:
    with pytest.raises(ValidationError):
        TokenBucket(*members)
