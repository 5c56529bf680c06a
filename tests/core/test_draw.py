"""Drawing a cost from a limit: both forms of the guarded write do exactly what taking it would."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given, strategies as st

from zae_limiter.core import tokens
from zae_limiter.core.change import Change
from zae_limiter.core.production import FAR, Rule
from zae_limiter.core.tokens import OwnedLimit, TokenFields, TokenFrame, draw_all

CEILINGS = st.integers(1, 10**6)
LEVELS = st.integers(-(10**6), 3 * 10**6)
SINCE = st.integers(-(10**6), 10**9)


class Form(NamedTuple):
    """A guarded change of ``tk``: under which bounds, and whether it is set or added to."""

    full: bool
    low: int | None
    high: int
    change: int


AT = TokenFields("tk", "tc", "ov", "ua", "al", "cp", "ra", "rp", "ca", "ws", "pt")


def form_of(change: Change) -> Form:
    low, high = change.bounds["tk"]
    assert change.bounds.keys() == {"tk"}
    assert change.put.keys() <= {"tk"}
    full = "tk" in change.put
    assert not full or high == FAR
    return Form(
        full, low if low > -FAR else None, low - 1 if full else high, change.put.get("tk", change.add.get("tk", 0))
    )


def draw(ceiling: int, tk: int, since: int, cost: int | None, after: int | None = None) -> Form | None:
    """The draw from a limit that has produced ``since``."""
    change = Change()
    drawn = tokens.draw(change, AT, (tk, since, ceiling, after), cost)
    assert drawn or not (change.put or change.add or change.bounds)
    assert not drawn or change.add.get("tc", 0) == (cost or 0)
    return form_of(change) if drawn else None


def owe(ceiling: int, tk: int, since: int, cost: int) -> Form:
    change = Change()
    tokens.owe(change, AT, (tk, since, ceiling, None), cost)
    return form_of(change)


def owned(rule: Rule, floor: int = 0) -> OwnedLimit:
    """A limit as its owner takes from it, in a bucket whose anchor is 0."""
    frame = TokenFrame.of(rule, 0, AT, 0)
    return "rpm", rule.capacity, frame.amount, frame.period, 0, frame.rest, "tk", "tc", floor, ""


def met(form: Form, tk: int) -> bool:
    """Whether the guards of a form hold for a stored ``tk``."""
    full, low, high, _ = form
    return tk > high if full else (low is None or low <= tk) and tk <= high


def after(form: Form, tk: int) -> int:
    """The stored ``tk`` after the write."""
    full, _, _, change = form
    return change if full else tk + change


@given(CEILINGS, LEVELS, LEVELS, SINCE, st.integers(1, 10**6))
def test_where_the_guard_holds_exactly_the_cost_is_taken(
    ceiling: int, seen: int, stored: int, since: int, cost: int
) -> None:
    """Whatever the writer has seen, and whatever is stored: the level falls by the cost, from where it really was."""
    form = draw(ceiling, seen - since, since, cost)
    if form is not None and met(form, stored - since):
        real = min(ceiling, stored)
        assert real >= cost
        assert after(form, stored - since) + since == real - cost


@given(CEILINGS, LEVELS, SINCE, st.integers(1, 10**6))
def test_what_is_seen_is_decided(ceiling: int, seen: int, since: int, cost: int) -> None:
    """By who has seen what is stored, a cost is drawn if and only if it fits, and the guard then holds."""
    form = draw(ceiling, seen - since, since, cost)
    assert (form is not None) == (min(ceiling, seen) >= cost)
    assert form is None or met(form, seen - since)


@given(CEILINGS, LEVELS, SINCE)
def test_who_asks_for_nothing_passes_in_debt_and_only_clips(ceiling: int, seen: int, since: int) -> None:
    form = draw(ceiling, seen - since, since, None)
    assert form is not None
    assert met(form, seen - since)
    assert after(form, seen - since) + since == min(ceiling, seen)


@given(CEILINGS, LEVELS, LEVELS, SINCE)
def test_a_cost_of_nothing_fits_unless_the_limit_is_in_debt(ceiling: int, seen: int, stored: int, since: int) -> None:
    form = draw(ceiling, seen - since, since, 0)
    assert (form is not None) == (seen >= 0)
    assert form is None or met(form, seen - since)
    assert form is None or not met(form, stored - since) or stored >= 0


@given(CEILINGS, LEVELS, LEVELS, SINCE, st.integers(1, 10**6))
def test_debt_lowers_the_level_by_exactly_that_amount(
    ceiling: int, seen: int, stored: int, since: int, cost: int
) -> None:
    """Whatever the writer has seen, the level falls from where it really was; whoever has seen it is never refused."""
    form = owe(ceiling, seen - since, since, cost)
    assert met(form, seen - since)
    if met(form, stored - since):
        assert after(form, stored - since) + since == min(ceiling, stored) - cost


@given(CEILINGS, LEVELS, SINCE, st.integers(0, 10**6))
def test_who_holds_the_bucket_alone_takes_the_same(ceiling: int, held: int, since: int, cost: int) -> None:
    form = draw(ceiling, held - since, since, cost)
    image = {"tk": held - since, "tc": 7, "rf": 0}
    changed = draw_all([owned(Rule(ceiling, 1, 1))], image, {"rpm": cost}, since)
    if form is None:
        assert changed is None
    elif cost:
        assert changed == {"tk": after(form, held - since), "tc": 7 + cost, "rf": 0}
    else:
        assert changed is image, "nothing is taken"
    assert image == {"tk": held - since, "tc": 7, "rf": 0}, "an image is never changed in place"


@given(CEILINGS, LEVELS, SINCE, st.integers(-(10**6), 10**6))
def test_who_holds_the_bucket_alone_settles_the_same(ceiling: int, held: int, since: int, delta: int) -> None:
    image = {"tk": held - since, "tc": 7, "rf": 0}
    settled = draw_all([owned(Rule(ceiling, 1, 1), -FAR)], image, {"rpm": delta}, since)
    if delta > 0:
        assert settled == {
            "tk": after(owe(ceiling, held - since, since, delta), held - since),
            "tc": 7 + delta,
            "rf": 0,
        }
    elif delta:
        assert settled == {"tk": held - since - delta, "tc": 7 + delta, "rf": 0}, "a plain add"
    else:
        assert settled is image, "nothing is settled"
    assert image == {"tk": held - since, "tc": 7, "rf": 0}, "an image is never changed in place"


@given(CEILINGS, LEVELS, SINCE, st.integers(1, 10**6), st.integers(-(10**5), 10**5))
def test_a_debt_stops_at_the_least_that_it_may_leave(
    ceiling: int, held: int, since: int, cost: int, least: int
) -> None:
    settled = draw_all([owned(Rule(ceiling, 1, 1), least)], {"tk": held - since, "tc": 0}, {"rpm": cost}, since)
    assert (settled is None) == (min(ceiling, held) - cost < least)


@given(CEILINGS, SINCE, st.integers(1, 10**6), st.integers(1, 10**6), st.integers(0, 2**52))
def test_a_limit_reaches_as_far_as_it_says(ceiling: int, anchor: int, amount: int, period: int, milli: int) -> None:
    limit = TokenFrame.of(Rule(ceiling, amount, period), anchor, AT, anchor)
    last = limit.reaches(milli)
    assert limit.since(last) <= milli < limit.since(last + 1)


@given(CEILINGS, LEVELS, SINCE, st.integers(1, 10**5), st.integers(1, 10**5), st.integers(0, 10**5))
def test_draws_from_a_bucket_that_is_not_full_commute(
    ceiling: int, seen: int, since: int, one: int, other: int, later: int
) -> None:
    """Two writers who have seen the same both win, in either order, if there is enough for both."""
    stored = seen - since
    forms = [draw(ceiling, stored, since, one), draw(ceiling, stored, since + later, other)]
    if None in forms or forms[0] is None or forms[1] is None or forms[0][0] or forms[1][0]:
        return
    if seen < one + other:
        return
    for first, second in (forms, forms[::-1]):
        assert first is not None
        assert second is not None
        assert met(first, stored)
        assert met(second, after(first, stored))
        assert after(second, after(first, stored)) == stored - one - other


@given(CEILINGS, LEVELS, SINCE, st.integers(0, 10**6), st.integers(-(10**6), 10**6))
def test_a_new_anchor_moves_the_number_and_not_the_level(
    ceiling: int, seen: int, since: int, cost: int, new_since: int
) -> None:
    form = draw(ceiling, seen - since, since, cost, new_since)
    plain = draw(ceiling, seen - since, since, cost, since)
    assert (form is None) == (plain is None)
    if form is not None and plain is not None:
        assert after(form, seen - since) + new_since == after(plain, seen - since) + since
