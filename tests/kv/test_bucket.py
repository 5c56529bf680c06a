"""The bucket: exact whatever the rate, the number of looks and the clocks."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
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


def drain(bucket: TokenBucket) -> tuple[TokenBucket, int]:
    """The bucket without its tokens, and how many these were."""
    return replace(bucket, tokens=0), bucket.tokens


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
    assert seen.tokens == rate // 2


@given(rates, instants, st.lists(st.integers(0, 90_000), max_size=30))
def test_looking_often_is_like_looking_once(rate: int, start_ms: int, steps: list[int]) -> None:
    seen = start = TokenBucket(0, start_ms, WIDE)
    now_ms = start_ms
    for step in steps:
        now_ms += step
        seen = seen.refill(wide(rate), now_ms)
    assert seen == start.refill(wide(rate), now_ms)
    assert seen.tokens == rate * sum(steps) // 60_000


@given(rates, st.integers(0, 20), instants, st.lists(st.integers(0, 3) | st.integers(0, 90_000), max_size=30))
def test_in_any_window_no_more_than_the_capacity_and_what_the_rate_makes(
    rate: int, burst: int, start_ms: int, steps: list[int]
) -> None:
    """A client that takes all it gets, at any instants: counted over every window between two of them."""
    policy = RateLimitPolicy.create(rate, rate + burst)
    bucket, now_ms = TokenBucket.create(rate + burst, start_ms), start_ms
    taken: list[tuple[int, int]] = []
    for step in (0, *steps):
        now_ms += step
        bucket, granted = drain(bucket.refill(policy, now_ms))
        taken.append((now_ms, granted))
    for first, (from_ms, _) in enumerate(taken):
        granted = 0
        for to_ms, more in taken[first:]:
            granted += more
            assert granted <= policy.bucket_capacity + Fraction(rate, 60_000) * (to_ms - from_ms)


@given(rates, instants, st.integers(0, 90_000))
def test_a_bucket_that_was_full_has_its_next_token_an_interval_later(rate: int, start_ms: int, idle: int) -> None:
    policy = RateLimitPolicy.create(rate)
    full = TokenBucket.create(rate, start_ms).refill(policy, start_ms + idle)
    assert full == TokenBucket.create(rate, start_ms + idle)
    empty, _ = drain(full)
    assert empty.ready_ms(policy, start_ms + idle) == -(-60_000 // rate)


@given(rates, instants, st.integers(0, 600_000))
def test_a_reader_that_ignores_the_carry_is_less_than_a_millisecond_late(rate: int, start_ms: int, later: int) -> None:
    policy = wide(rate)
    bucket, _ = drain(TokenBucket(0, start_ms, WIDE).refill(policy, start_ms + later))
    ignored = TokenBucket(0, bucket.last_refill_ms, WIDE)
    now_ms = bucket.last_refill_ms
    assert 0 <= ignored.ready_ms(policy, now_ms) - bucket.ready_ms(policy, now_ms) <= 1


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
    [
        (-1, 0, 10),
        (11, 0, 10),
        (0, -1, 10),
        (0, 0, 0),
        (True, 0, 10),
        (1.0, 0, 10),
        (1, None, 10),
        (1, 10**17, 10),
        (1, 0, 10, -1),
        (1, 0, 10, 60_000),
        (1, 0, 10, 0.5),
    ],
    ids=repr,
)
def test_buckets_that_cannot_be(members: tuple[Any, ...]) -> None:
    with pytest.raises(ValidationError):
        TokenBucket(*members)
