"""The bucket record: what its writes do to it, as a store would apply them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from tests.support.charges import charge, create, migrate, settle
from zae_limiter import CorruptRecordError, Limit
from zae_limiter.core.change import Change
from zae_limiter.core.production import Rule
from zae_limiter.records import bucket, charging, keys, level as level_record
from zae_limiter.records.algebra import TTL, Image, Write, apply_write, holds
from zae_limiter.records.settlement import Receipt

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


def level_of(given: tuple[Limit, ...], lifetime_ms: int = 0, version: int | None = 1) -> level_record.BucketLimits:
    key, entries = keys.bucket("ns", "key", "gpt-4"), level_record.token_limits_for(given)
    return level_record.BucketLimits(key, "ns", "key", "gpt-4", given, entries, "system", version, lifetime_ms)


def done(image: Image | None, write: Write | None) -> Image:
    assert write is not None
    assert holds(image, write.guards), "by who has seen the present image the guards hold"
    after = apply_write(image, write)
    assert after is not None
    return after


def balances(image: Image, now_ms: int) -> dict[str, int]:
    return {
        state.limit_name: Rule(state.capacity_milli, state.refill_amount_milli, state.refill_period_ms).level(
            state.tokens_milli, state.last_refill_ms, now_ms
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
    image = done(None, create(level_of(given, lifetime), cost, NOW))
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
    image = done(None, create(level, first, NOW))
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
    image = done(None, create(level_of(given), cost, NOW))
    before = balances(image, now)
    level = level_of(changed, version=2)
    after = done(image, migrate(level, image, {}, now))
    assert charging.find_frame(level, after, now) is not None
    assert after[level_record.ANCHOR] > image[level_record.ANCHOR]
    found = balances(after, now)
    for limit in changed:
        old = before.get(limit.name, limit.capacity * 1000)
        assert found[limit.name] == min(old, limit.capacity * 1000)
    for name in before.keys() - {limit.name for limit in changed}:
        assert found[name] == before[name]


@given(
    limits().flatmap(lambda given: st.tuples(st.just(given), costs(given))),
    limits(),
    st.lists(st.integers(0, 10**6), min_size=2, max_size=2).map(sorted),
)
def test_a_change_counts_from_its_instant_however_late_it_is_written_down(
    drawn: tuple[tuple[Limit, ...], dict[str, int]], changed: tuple[Limit, ...], instants: list[int]
) -> None:
    given, cost = drawn
    changed_ms, now = (NOW + later for later in instants)
    image = done(None, create(level_of(given), cost, NOW))
    level = level_of(changed, version=2)._replace(since={limit.name: changed_ms for limit in changed})
    at_once, late = (done(image, migrate(level, image, {}, instant)) for instant in (changed_ms, now))
    known = {limit.name for limit in changed}.intersection(cost)
    read = bucket.reading([(level, image)], now).balances
    for name in known:
        assert balances(late, now)[name] == balances(at_once, now)[name] == read[name][0].level(now)


@given(limits().flatmap(lambda given: st.tuples(st.just(given), costs(given))), st.integers(-200_000, 200_000))
def test_the_instant_at_which_all_is_full(drawn: tuple[tuple[Limit, ...], dict[str, int]], delta: int) -> None:
    """From it on forgetting the bucket loses nothing; a millisecond before it would."""
    given, cost = drawn
    level = level_of(given)
    image = done(None, create(level, cost, NOW))
    charge = Receipt.of(level, image, NOW, {})
    image = done(image, settle(level, image, {given[0].name: delta or 1}, charge, NOW))
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
    taken = done(None, create(level, cost, NOW))
    back = {name: -amount for name, amount in cost.items() if amount}
    settled = done(taken, settle(level, taken, back, Receipt.of(level, taken, NOW, {}), NOW + later))
    untouched = done(None, create(level, {}, NOW))
    assert balances(settled, NOW + later) == balances(untouched, NOW + later)
    assert all(state.total_consumed_milli == 0 for state in bucket.states([(KEY, settled)], 0))


def test_no_two_limits_share_an_attribute() -> None:
    fields = ("tk", "tc", "cp", "ra", "rp", "ov", "ua")
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
    image = {**done(None, create(level, {}, NOW)), **damage}
    with pytest.raises(CorruptRecordError, match=r"ns/BUCKET#key#gpt-4#0.*reset_bucket\('key', 'gpt-4'\)"):
        bucket.inspect(level.key, image)


def test_numbers_stay_small_enough_for_stores_that_count_in_doubles() -> None:
    """A fast limit that is charged for years is anchored anew, without gaining or losing a millitoken."""
    limit = Limit.per_second("tps", 10**6)
    level = level_of((limit,))
    image = done(None, create(level, {"tps": 10**9}, NOW))
    now = NOW
    for years in range(1, 30):
        now = NOW + years * 365 * 86_400_000
        image = done(image, charge(level, image, {"tps": 10**9}, now))
        assert all(abs(value) < 2**53 for attr, value in image.items() if attr.startswith("b_"))
    assert image[level_record.ANCHOR] > NOW
    assert balances(image, now) == {"tps": 0}
    assert balances(image, now + 1) == {"tps": 10**6}


@given(
    capacity=st.integers(1, 100),
    floor=st.sampled_from([0.0, 0.25, 0.5]),
    spent=st.integers(0, 150_000),
    cost=st.none() | st.integers(0, 100),
    rate=st.sampled_from([1, 100, 10_000]),
    waited_ms=st.integers(0, 120),
    seen_ago_ms=st.integers(0, 100),
)
def test_contention_never_decides_whether_a_cost_fits(
    capacity: int, floor: float, spent: int, cost: int | None, rate: int, waited_ms: int, seen_ago_ms: int
) -> None:
    """A draw that fits as of now is always drawn, and one that does not never is: contention only chooses the form.

    A cost of None is all that the floor leaves.
    """
    given_limits = (Limit("tpm", capacity, rate, 1, floors=(("batch", floor),) if floor else ()),)
    entries = level_record.token_limits_for(given_limits, "batch" if floor else None)
    level = level_record.BucketLimits(KEY, "ns", "key", "gpt-4", given_limits, entries, "system", 1, 0)
    image = done(None, create(level, {"tpm": spent}, NOW))
    now = NOW + waited_ms
    known = charging.find_frame(level, image, now)
    assert known is not None
    cost = int(capacity * (1 - floor)) if cost is None else cost
    fits = balances(image, now)["tpm"] >= cost * 1000 + entries["tpm"].floor
    for contention in (charging.ALONE, charging.Contention({"tpm"}, now - seen_ago_ms, 1)):
        change = charging.charge(level, image, known, {"tpm": cost * 1000}, now, contention)
        assert isinstance(change, Change) == fits


def test_a_bucket_with_the_counters_of_the_give_back_rule_before_is_read_as_any_other() -> None:
    """`cr` and `hi` were written until give-backs became plain adds; they are left alone and mean nothing."""
    given_limits = (Limit.per_minute("rpm", 100), Limit.quota("usd", 50, every="day"))
    level = level_of(given_limits)
    plain = done(None, create(level, {"rpm": 10_000, "usd": 5_000}, NOW))
    older = plain | {f"b_{name}_{field}": 7 for name in ("rpm", "usd") for field in ("cr", "hi")}
    bucket.inspect(KEY, older)
    for change in ({"rpm": -4_000, "usd": -5_000}, {"rpm": 95_000, "usd": 1_000}):
        settled = [
            done(image, settle(level, image, change, Receipt.of(level, image, NOW), NOW + 1))
            for image in (plain, older)
        ]
        assert settled[1].items() - older.items() == settled[0].items() - plain.items()
    changed = level_of((Limit.per_minute("rpm", 50),), version=2)
    assert balances(done(older, charge(changed, older, {"rpm": 1_000}, NOW + 5)), NOW + 5)["rpm"] == 49_000
