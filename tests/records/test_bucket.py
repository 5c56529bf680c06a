"""The bucket record: what its writes do to it, as a store would apply them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from tests.support.charges import charge
from zae_limiter import CorruptRecordError, Limit
from zae_limiter.core.bucket import Rule, level as balance
from zae_limiter.records import bucket, charging, keys, level as level_record, reshaping
from zae_limiter.records.algebra import TTL, Image, Write, apply_write, holds
from zae_limiter.records.settlement import Charge, settle

NOW = 1_800_000_000_000
KEY = keys.bucket("ns", "key", "gpt-4")
NAMES = ("rpm", "tpm", "a_tk", "tk")


@st.composite
def limits(draw: st.DrawFn) -> tuple[Limit, ...]:
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
    return tuple(
        Limit(name, draw(st.integers(1, 100)), draw(st.integers(1, 1_000)), draw(st.sampled_from([1, 7, 60, 86_400])))
        for name in sorted(names)
    )


def level_of(given: tuple[Limit, ...], lifetime_ms: int = 0, version: int | None = 1) -> level_record.Level:
    key, entries = keys.bucket("ns", "key", "gpt-4"), level_record.token_limits_for(given)
    return level_record.Level(key, "ns", "key", "gpt-4", given, entries, "system", version, lifetime_ms)


def done(image: Image | None, write: Write | None) -> Image:
    assert write is not None
    assert holds(image, write.guards), "by who has seen the present image the guards hold"
    after = apply_write(image, write)
    assert after is not None
    return after


def balances(image: Image, now_ms: int) -> dict[str, int]:
    return {
        state.limit_name: balance(
            Rule(state.capacity_milli, state.refill_amount_milli, state.refill_period_ms),
            state.tokens_milli,
            state.last_refill_ms,
            now_ms,
        )
        for state in bucket.states([(KEY, image)], 0)
    }


def costs(given: tuple[Limit, ...]) -> st.SearchStrategy[dict[str, int]]:
    return st.fixed_dictionaries({each.name: st.integers(0, each.capacity).map(lambda n: n * 1000) for each in given})


@given(limits().flatmap(lambda given: st.tuples(st.just(given), costs(given))), st.integers(0, 10**7))
def test_a_new_bucket_is_full_but_for_its_first_cost(
    drawn: tuple[tuple[Limit, ...], dict[str, int]], lifetime: int
) -> None:
    given, cost = drawn
    image = done(None, charging.create(level_of(given, lifetime), cost, NOW))
    assert balances(image, NOW) == {each.name: each.capacity * 1000 - cost[each.name] for each in given}
    assert [state.total_consumed_milli for state in bucket.states([(KEY, image)], 0)] == [
        cost[each.name] for each in given
    ]
    assert bucket.inspect(KEY, image) is image
    assert (image.get(TTL) is not None) == bool(lifetime)


@given(limits().flatmap(lambda given: st.tuples(st.just(given), costs(given), costs(given))), st.integers(0, 10**6))
def test_a_charge_takes_exactly_the_cost_or_nothing(
    drawn: tuple[tuple[Limit, ...], dict[str, int], dict[str, int]], later: int
) -> None:
    given, first, second = drawn
    level, now = level_of(given), NOW + later
    image = done(None, charging.create(level, first, NOW))
    before = balances(image, now)
    write = charge(level, image, second, now)
    assert (write is None) == any(need > before[name] for name, need in second.items())
    if write is not None:
        after = done(image, write)
        assert balances(after, now) == {name: there - second[name] for name, there in before.items()}
        assert after[level_record.ANCHOR] == image[level_record.ANCHOR], "a charge does not move the anchor"


@given(limits().flatmap(lambda given: st.tuples(st.just(given), costs(given))), limits(), st.integers(0, 10**6))
def test_changed_limits_keep_clamp_and_add(
    drawn: tuple[tuple[Limit, ...], dict[str, int]], changed: tuple[Limit, ...], later: int
) -> None:
    """A raise keeps the tokens, a cut clamps them, a new limit is full, one that is gone goes on refilling."""
    given, cost = drawn
    now = NOW + later
    image = done(None, charging.create(level_of(given), cost, NOW))
    before = balances(image, now)
    level = level_of(changed, version=2)
    after = done(image, reshaping.reshape(level, image, {}, now))
    assert charging.anchored_limits(level, after, now) is not None
    assert after[level_record.ANCHOR] > image[level_record.ANCHOR]
    found = balances(after, now)
    for limit in changed:
        old = before.get(limit.name, limit.capacity * 1000)
        assert found[limit.name] == min(old, limit.capacity * 1000)
    for name in before.keys() - {limit.name for limit in changed}:
        assert found[name] == before[name]


@given(limits().flatmap(lambda given: st.tuples(st.just(given), costs(given))), st.integers(-200_000, 200_000))
def test_the_instant_at_which_all_is_full(drawn: tuple[tuple[Limit, ...], dict[str, int]], delta: int) -> None:
    """From it on forgetting the bucket loses nothing; a millisecond before it would."""
    given, cost = drawn
    level = level_of(given)
    image = done(None, charging.create(level, cost, NOW))
    charge = Charge.of(level, image, NOW, {})
    image = done(image, settle(level, image, {given[0].name: delta or 1}, charge, NOW).write)
    full = {each.name: each.capacity * 1000 for each in given}
    at = bucket.full_at(image)
    assert balances(image, at) == full
    assert balances(image, at - 1) != full


@given(limits().flatmap(lambda given: st.tuples(st.just(given), costs(given))), st.integers(0, 10**6))
def test_what_is_settled_at_once_is_as_if_it_had_been_so(
    drawn: tuple[tuple[Limit, ...], dict[str, int]], later: int
) -> None:
    given, cost = drawn
    level = level_of(given)
    taken = done(None, charging.create(level, cost, NOW))
    back = {name: -amount for name, amount in cost.items() if amount}
    settled = done(taken, settle(level, taken, back, Charge.of(level, taken, NOW, {}), NOW + later).write)
    untouched = done(None, charging.create(level, {}, NOW))
    assert balances(settled, NOW + later) == balances(untouched, NOW + later)
    assert all(state.total_consumed_milli == 0 for state in bucket.states([(KEY, settled)], 0))


def test_no_two_limits_share_an_attribute() -> None:
    fields = (*bucket.FIELDS, *bucket.COUNTERS)
    names = ("a", "a_tk", "a_tk_tk", "tk", "b_a", "a.b", "a-b", "a_b")
    assert len({level_record.attribute(name, field) for name in names for field in fields}) == len(names) * len(fields)


@pytest.mark.parametrize(
    "damage",
    [
        {"rf": None},
        {"rf": "5"},
        {"rf": 1.5},
        {"rf": True},
        {"b_rpm_tk": "x"},
        {"b_rpm_tk": 2**63},
        {"b_rpm_ra": None},
        {"ttl": None},
        {"ttl": "soon"},
        {"ttl": -1},
    ],
    ids=str,
)
def test_a_bucket_that_cannot_be_read_is_named_and_never_unlimited(damage: dict[str, Any]) -> None:
    level = level_of((Limit.per_minute("rpm", 1),))
    image = {**done(None, charging.create(level, {}, NOW)), **damage}
    with pytest.raises(CorruptRecordError, match=r"ns/BUCKET#key#gpt-4#0.*reset_bucket\('key', 'gpt-4'\)"):
        bucket.inspect(level.key, image)


def test_numbers_stay_small_enough_for_stores_that_count_in_doubles() -> None:
    """A fast limit that is charged for years is anchored anew, without gaining or losing a millitoken."""
    limit = Limit.per_second("tps", 10**6)
    level = level_of((limit,))
    image = done(None, charging.create(level, {"tps": 10**9}, NOW))
    now = NOW
    for years in range(1, 30):
        now = NOW + years * 365 * 86_400_000
        image = done(image, charge(level, image, {"tps": 10**9}, now))
        assert all(abs(value) < 2**53 for attr, value in image.items() if attr.startswith("b_"))
    assert image[level_record.ANCHOR] > NOW
    assert balances(image, now) == {"tps": 0}
    assert balances(image, now + 1) == {"tps": 10**6}
