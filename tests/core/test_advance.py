"""Tokens that are drawn in advance: when each of them may be granted."""

from __future__ import annotations

from hypothesis import given, strategies as st

from zae_limiter.core.advance import Advance, choose_advance
from zae_limiter.core.balances import Tokens, wait_ms
from zae_limiter.core.production import Rule
from zae_limiter.core.tokens import TokenFrame
from zae_limiter.records.level import token_fields

T = 1_800_000_000_000
TEN = Rule(20_000, 10_000, 1_000)
"""Ten tokens a second, twenty at most: ten millitokens a millisecond."""


def advance(met: int, size: int, rule: Rule = TEN) -> Advance:
    return Advance(TokenFrame.of(rule, T - 5_000, token_fields("rpm"), T), T, met, size)


def test_what_the_bucket_holds_is_there_at_once_and_the_rest_with_the_refill() -> None:
    drawn = advance(met=1_000, size=3_000)
    assert [drawn.grantable(T + later) for later in (-1, 0, 1, 100, 200, 999)] == [0, 1_000, 1_010, 2_000, 3_000, 3_000]
    assert [drawn.grantable_from(place) - T for place in (1, 1_000, 1_001, 1_010, 1_011, 3_000)] == [0, 0, 1, 1, 2, 200]
    assert drawn.all_grantable_from == T + 200


def test_a_bucket_that_others_have_drawn_ahead_has_to_pay_that_first() -> None:
    drawn = advance(met=-1_000, size=500)
    assert [drawn.grantable(T + later) for later in (0, 100, 101, 150)] == [0, 0, 10, 500]
    assert drawn.grantable_from(1) == T + 101


@given(
    met=st.integers(-30_000, 30_000),
    size=st.integers(1, 30_000),
    later=st.integers(0, 10_000),
    amount=st.integers(1, 10**6),
    period=st.sampled_from([1_000, 60_000, 86_400_000, 7_000]),
)
def test_never_more_is_grantable_than_an_exact_bucket_would_have_given(
    met: int, size: int, later: int, amount: int, period: int
) -> None:
    """The level that is left and what may not be granted yet are never below zero together: the step of the proof."""
    rule = Rule(10**9, amount, period)
    drawn = advance(met, size, rule)
    left = rule.level(met - size, T, T + later)
    early = size - drawn.grantable(T + later)
    assert left + early >= min(0, met + left - (met - size))
    assert drawn.grantable(T + later) <= max(0, rule.level(met, T, T + later)) + 1, "a millitoken of rounding at most"


@given(met=st.integers(-3_000, 5_000), size=st.integers(1, 5_000), place=st.integers(1, 5_000))
def test_the_instant_of_a_token_is_the_first_at_which_it_may_be_granted(met: int, size: int, place: int) -> None:
    drawn = advance(met, size)
    place = min(place, size)
    instant = drawn.grantable_from(place)
    assert drawn.grantable(instant) >= place
    assert instant == T or drawn.grantable(instant - 1) < place


def test_a_balance_is_what_is_ready_and_what_the_bucket_has() -> None:
    held = advance(met=1_000, size=3_000).last(2_500)
    balance = Tokens(TEN, -2_000, T, advances=(held,))
    assert [balance.level(T + later) for later in (0, 50, 200, 300)] == [500, 1_000, 2_500, 3_500]
    assert wait_ms((balance,), 1_000, T) == 50
    assert wait_ms((balance,), 3_500, T) == 300


def test_what_was_drawn_ahead_is_no_debt() -> None:
    held = advance(met=0, size=3_000).last(3_000)
    assert Tokens(TEN, -3_000, T, advances=(held,)).level(T) == 0
    assert Tokens(TEN, -4_000, T, advances=(held,)).level(T) == -1_000, "a thousand of it is"


def test_half_of_what_is_left_is_left_to_others() -> None:
    assert choose_advance(1_000, 10_000, 0) == 1_000
    assert choose_advance(9_000, 10_000, 0) == 5_000
    assert choose_advance(9_000, -1_000, 3_000) == 1_000
    assert choose_advance(9_000, -5_000, 3_000) == 0
