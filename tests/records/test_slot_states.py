"""What a bucket record tells of its slots, how they are freed, and limits that change from tokens to slots and back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from tests.support.charges import create, migrate
from zae_limiter import CorruptRecordError, Limit
from zae_limiter.records import bucket, keys, level as level_record
from zae_limiter.records.algebra import Image, Write, apply_write, holds
from zae_limiter.records.credits import fill_up, free_more
from zae_limiter.records.slots import MOST_FREED, SlotRequest

NOW = 1_800_000_000_000
KEY = keys.bucket("ns", "key", "gpt-4")
NAMES = ("rpm", "a_tl", "tl", "s_1")


def level_of(*limits: Limit) -> level_record.BucketLimits:
    entries, slots = level_record.token_limits_for(limits), level_record.slot_limits_for(limits)
    return level_record.BucketLimits(KEY, "ns", "key", "gpt-4", limits, entries, "system", 1, slot_limits=slots)


def done(image: Image | None, write: Write | None) -> Image:
    assert write is not None
    assert holds(image, write.guards), "by who has seen the present image the guards hold"
    after = apply_write(image, write)
    assert after is not None
    return bucket.inspect(KEY, after)


def made(level: level_record.BucketLimits, *holders: str) -> Image:
    requests = [SlotRequest(dict.fromkeys(level.slot_limits, 1000), holder) for holder in holders]
    return done(None, create(level, {}, NOW, requests=requests))


def kinds(name: str) -> st.SearchStrategy[Limit]:
    rate = st.builds(Limit.per_minute, st.just(name), st.integers(1, 100))
    quota = st.builds(Limit.quota, st.just(name), st.integers(1, 100))
    return rate | quota | st.builds(Limit.concurrent, st.just(name), st.integers(1, 100), ttl=st.integers(1, 100))


CONFIGS = st.lists(st.sampled_from(NAMES), min_size=1, unique=True).flatmap(
    lambda names: st.tuples(*(kinds(name) for name in sorted(names)))
)


@given(st.lists(CONFIGS, min_size=1, max_size=4))
def test_a_bucket_tells_the_limits_that_it_was_last_written_under(configs: list[tuple[Limit, ...]]) -> None:
    image = made(level_of(*configs[0]), "w")
    for number, limits in enumerate(configs[1:], 1):
        image = done(image, migrate(level_of(*limits), image, {}, NOW + number))
    told = {state.limit_name: Limit.from_bucket_state(state) for state in bucket.states([(KEY, image)], NOW)}
    assert {limit.name: told[limit.name] for limit in configs[-1]} == {limit.name: limit for limit in configs[-1]}
    for state in bucket.states([(KEY, image)], NOW):
        held = bucket.held_balances([(KEY, image)], state.limit_name, NOW)
        assert state.capacity_milli == held[0].rule.capacity


@pytest.mark.parametrize(
    "damage",
    [
        {"s_jobs_0": None},
        {"s_jobs_0": "soon"},
        {"s_jobs_0": -1},
        {"s_jobs_x": 5, "f_jobs_x": "5.ab"},
        {"f_jobs_0": None},
        {"f_jobs_0": "x.ab"},
        {"s_jobs_9": 5},
        {"b_jobs_tl": None},
    ],
    ids=str,
)
def test_damaged_slots_are_named(damage: dict[str, Any]) -> None:
    image = {**made(level_of(Limit.concurrent("jobs", 1)), "w"), **damage}
    with pytest.raises(CorruptRecordError, match=r"ns/BUCKET#key#gpt-4#0.*reset_bucket\('key', 'gpt-4'\)"):
        bucket.inspect(KEY, image)


def test_slots_are_freed_some_at_a_time_and_never_those_of_others() -> None:
    count = MOST_FREED + 5
    before = made(level_of(Limit.concurrent("jobs", count + 1), Limit.concurrent("more", 500)), *["w"] * count)
    write, gains = fill_up(KEY, before, ["jobs"], NOW)
    assert gains == {"jobs": count * 1000}
    image = done(before, write)
    assert [len(state.slots) for state in bucket.states([(KEY, image)], NOW)] == [5, count]
    kept = next(attr for attr in image if attr.startswith("f_jobs_"))
    image[kept] = "5.ab.somebody else"
    image = done(image, free_more(KEY, before, image, ["jobs"]))
    assert [len(state.slots) for state in bucket.states([(KEY, image)], NOW)] == [1, count]
    assert free_more(KEY, before, image, ["jobs"]) is None


def test_a_slot_that_changed_hands_meanwhile_is_not_freed() -> None:
    before = made(level_of(Limit.concurrent("jobs", 1)), "w")
    write, _ = fill_up(KEY, before, None, NOW)
    assert not holds({**before, "f_jobs_0": "5.ab"}, write.guards)
    assert not holds({attr: before[attr] for attr in before if attr[:2] not in ("s_", "f_")}, write.guards)
    assert holds({**before, "s_jobs_0": NOW + 90_000}, write.guards), "a renewal does not matter"
