"""The arithmetic of one bucket, against fractions."""

from __future__ import annotations

from fractions import Fraction
from math import floor
from typing import Any

import pytest
from hypothesis import given, strategies as st

from zae_limiter import BucketState, Limit, LimitStatus
from zae_limiter.bucket import (
    RefillResult,
    build_limit_status,
    calculate_available,
    calculate_retry_after,
    calculate_time_until_available,
    force_consume,
    refill_bucket,
    try_consume,
    would_refill_satisfy,
)
from zae_limiter.core.balances import Tokens, wait_ms
from zae_limiter.core.decide import Reading
from zae_limiter.core.production import Rule

INSTANTS = st.integers(10**12, 2 * 10**12)
TOKENS = st.integers(-(10**12), 10**12)


@st.composite
def rules(draw: st.DrawFn) -> Rule:
    """From 1 a day to a million a second, in millitokens and milliseconds."""
    period = draw(st.sampled_from([1, 3, 7, 60, 3_600, 86_400])) * 1000
    amount = draw(st.sampled_from([1, 7, 1_000, 10**6]) | st.integers(1, 10**6)) * 1000
    capacity = draw(st.sampled_from([1, 100, 10**6]) | st.integers(1, 10**9)) * 1000
    return Rule(capacity, amount, period)


def state(rule: Rule, tokens: int, instant: int) -> BucketState:
    return BucketState("key", "gpt-4", "tpm", tokens, instant, *rule[:3])


# What a rate has made.


@given(rules(), INSTANTS, st.integers(0, 10**9))
def test_production_is_the_floor_of_the_rational_line(rule: Rule, start: int, span: int) -> None:
    made = rule.produced(start + span) - rule.produced(start)
    exact = Fraction(span * rule.amount, rule.period)
    assert rule.produced(start) == floor(Fraction(start * rule.amount, rule.period))
    assert abs(made - exact) < 1


@given(rules(), TOKENS, INSTANTS, st.integers(1, 10**6))
def test_first_instant_is_the_first(rule: Rule, tokens: int, anchor: int, whole: int) -> None:
    cost = min(whole * 1000, rule.capacity)
    at = rule.fits_at(tokens, anchor, cost)
    assert rule.level(tokens, anchor, at) >= cost
    assert rule.level(tokens, anchor, at - 1) < cost


@given(rules(), TOKENS, INSTANTS, st.integers(0, 10**6), st.integers(0, 10**8))
def test_waiting_takes_exactly_as_long_as_it_takes(
    rule: Rule, tokens: int, anchor: int, whole: int, later: int
) -> None:
    cost, now = min(whole * 1000, rule.capacity), anchor + later
    wait = wait_ms([Tokens(rule, tokens, anchor)], cost, now)
    assert rule.level(tokens, anchor, now + wait) >= cost
    assert wait == 0 or rule.level(tokens, anchor, now + wait - 1) < cost


# Refill.


@given(rules(), TOKENS, INSTANTS, st.lists(st.integers(0, 10**6), max_size=30))
def test_refill_fed_its_own_output_credits_what_one_step_would(
    rule: Rule, tokens: int, start: int, steps: list[int]
) -> None:
    """The formula of the seeds, fed its own output, credits 1.8 to 2 times the rate."""
    tokens = min(tokens, rule.capacity)
    stepwise = RefillResult(tokens, start)
    for step in steps:
        stepwise = refill_bucket(*stepwise, stepwise.new_last_refill_ms + step, *rule[:3])
    at_once = refill_bucket(tokens, start, start + sum(steps), *rule[:3])
    assert stepwise == at_once


def test_the_capacity_has_the_name_that_it_had_up_to_09_too() -> None:
    told = {
        "tokens_milli": 0,
        "last_refill_ms": 0,
        "now_ms": 9_000,
        "refill_amount_milli": 1_000,
        "refill_period_ms": 1_000,
    }
    call: Any = refill_bucket
    assert call(**told, burst_milli=5_000) == refill_bucket(**told, capacity_milli=5_000) == RefillResult(5_000, 9_000)
    with pytest.raises(TypeError, match="capacity_milli"):
        call(**told, burst_milli=5_000, capacity_milli=5_000)


@pytest.mark.parametrize("limit", [Limit.per_day("x", 1), Limit.per_day("x", 1_000), Limit("x", 10**6, 999_983, 7)])
def test_polled_every_millisecond_for_a_minute_and_every_second_for_a_day(limit: Limit) -> None:
    rule = Rule.of(limit)._replace(capacity=10**15)
    start = 1_800_000_000_123
    for step, count in ((1, 60_000), (1_000, 86_400)):
        found = RefillResult(0, start)
        for number in range(1, count + 1):
            found = refill_bucket(*found, start + number * step, *rule[:3])
        exact = Fraction(step * count * rule.amount, rule.period)
        assert abs(found.new_tokens_milli - exact) < 1


@given(rules(), TOKENS, INSTANTS, st.integers(0, 10**9))
def test_a_clock_that_went_backwards_changes_nothing(rule: Rule, tokens: int, last: int, back: int) -> None:
    assert refill_bucket(tokens, last, last - back, *rule[:3]) == (min(tokens, rule.capacity), last)


@given(rules(), TOKENS, INSTANTS, st.integers(0, 10**9))
def test_never_more_than_the_capacity_and_never_less_than_before(rule: Rule, tokens: int, last: int, on: int) -> None:
    tokens = min(tokens, rule.capacity)
    after = refill_bucket(tokens, last, last + on, *rule[:3]).new_tokens_milli
    assert tokens <= after <= rule.capacity


# Consume.


@given(rules(), TOKENS, INSTANTS, st.integers(0, 10**7), st.integers(0, 10**7))
def test_consume_takes_what_is_there_or_says_when_it_will_be(
    rule: Rule, tokens: int, last: int, requested: int, on: int
) -> None:
    bucket, now = state(rule, tokens, last), last + on
    there = rule.level(tokens, last, now)
    found = try_consume(bucket, requested, now)
    assert found.success == (there >= requested * 1000) == fits(bucket, requested, now)
    if found.success:
        assert (found.new_tokens_milli, found.retry_after_seconds) == (there - requested * 1000, 0.0)
    elif requested * 1000 > rule.capacity:
        assert (found.new_tokens_milli, found.retry_after_seconds) == (there, None)
    else:
        assert found.new_tokens_milli == there
        assert found.retry_after_seconds is not None
        then = now + round(found.retry_after_seconds * 1000)
        assert fits(bucket, requested, then)
        assert not fits(bucket, requested, then - 1)
    assert found.available == there // 1000, "before anything was taken"
    assert calculate_time_until_available(bucket, requested, now) == found.retry_after_seconds


def fits(bucket: BucketState, requested: int, now: int) -> bool:
    """Whether it would satisfy the request, which must also be what the status says."""
    satisfied, (status,) = would_refill_satisfy([bucket], {bucket.limit_name: requested, "other": 1}, now)
    assert satisfied is not status.exceeded
    return satisfied


@given(rules(), TOKENS, INSTANTS, st.integers(0, 10**7), st.integers(0, 10**7))
def test_force_takes_whatever_the_balance(rule: Rule, tokens: int, last: int, amount: int, on: int) -> None:
    now = last + on
    assert force_consume(state(rule, tokens, last), amount, now) == (
        rule.level(tokens, last, now) - amount * 1000,
        now,
    )


@given(rules(), TOKENS, INSTANTS, st.integers(0, 10**7))
def test_available_is_whole_tokens_rounded_down_also_in_debt(rule: Rule, tokens: int, last: int, on: int) -> None:
    there = rule.level(tokens, last, last + on)
    assert calculate_available(state(rule, tokens, last), last + on) == floor(Fraction(there, 1000))


def test_a_debt_of_half_a_token_shows_as_one() -> None:
    assert calculate_available(state(Rule(1_000, 1_000, 1_000), -500, 0), 0) == -1


# Retry-after.


@given(rules(), st.integers(1, 10**9), INSTANTS)
def test_retry_after_without_a_bucket_is_enough_at_any_phase(rule: Rule, deficit: int, now: int) -> None:
    wait = round(calculate_retry_after(deficit, rule.amount, rule.period) * 1000)
    assert rule.produced(now + wait) - rule.produced(now) >= deficit
    assert rule.produced(wait - 1) < deficit, "at phase 0 a millisecond less is not enough"


@pytest.mark.parametrize("deficit", [0, -1, -(10**6)])
def test_nothing_missing_is_nothing_to_wait_for(deficit: int) -> None:
    assert calculate_retry_after(deficit, 1_000, 1_000) == 0.0


# Status.


@given(rules(), TOKENS, INSTANTS, st.integers(0, 10**7), st.integers(0, 10**7))
def test_status_agrees_with_the_decision(rule: Rule, tokens: int, last: int, requested: int, on: int) -> None:
    bucket, now = state(rule, tokens, last), last + on
    limit = Limit("tpm", rule.capacity // 1000, rule.amount // 1000, rule.period // 1000)
    found = build_limit_status("key", "gpt-4", limit, bucket, requested, now)
    tried = try_consume(bucket, requested, now)
    assert found.exceeded == (not tried.success)
    assert found.available == rule.level(tokens, last, now) // 1000
    assert found.deficit == max(0, requested - found.available)
    if found.exceeded:
        assert found.retry_after_seconds == tried.retry_after_seconds
    else:
        assert found.retry_after_seconds == 0.0
    seen = Reading("key", "gpt-4", (limit,), {limit.name: (Tokens(rule, tokens, last),)})
    assert found == LimitStatus(*seen.describe(limit, requested * 1000, now))
