"""Quotas, soft limits, floors and switches, alone and mixed in one bucket, against explicit windows."""

from __future__ import annotations

import multiprocessing
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from tests.support.acquiring import granted, take
from tests.support.charges import create
from zae_limiter import (
    Access,
    CapacityExceeded,
    CorruptRecordError,
    Limit,
    RateLimiter,
    RateLimitExceeded,
    ResourceDisabled,
    SyncRateLimiter,
    ValidationError,
)
from zae_limiter.bucket import calculate_available, try_consume
from zae_limiter.records import bucket, keys
from zae_limiter.records.algebra import Write, apply_write
from zae_limiter.records.level import BucketLimits, token_limits_for
from zae_limiter.records.splitting import split
from zae_limiter.testing import FaultyStore, Harness

BERLIN = ZoneInfo("Europe/Berlin")
QUOTA = Limit.quota("tpd", 1_000, every="day", tz="Europe/Berlin", floors={"batch": 0.3})
RATE = Limit.per_minute("rpm", 120, burst=60, floors={"batch": 0.5})
SOFT = Limit.per_hour("tph", 500, soft=True)
ALL = [QUOTA, RATE, SOFT]


def set_clock(harness: Harness, text: str) -> None:
    """Set the clock to a local time in Berlin."""
    moment = datetime.fromisoformat(text).replace(tzinfo=BERLIN)
    harness.clock.advance_ms(round(moment.timestamp() * 1000) - harness.clock.now_ms())


async def test_several_clients_sell_exactly_the_allowance_of_each_window(harness: Harness) -> None:
    set_clock(harness, "2026-06-01T23:00")
    clients = [harness.limiter() for _ in range(8)]
    await clients[0].set_system_defaults([Limit.quota("t", 25, every="hour", tz="Europe/Berlin")])
    for _ in range(5):
        for minute in (0, 30):
            sold = [await granted(client, {"t": 1}) for _ in range(4) for client in clients]
            assert sum(sold) == (25 if minute == 0 else 0)
            harness.clock.advance(30 * 60)


SECONDS = 2
"""The length of a window in the test of processes."""


def buy(url: str, windows: int) -> tuple[Counter[int], set[int]]:
    """Take one token after the other until so many windows were found sold out, one after the other, at most a minute.

    Return how many tokens were taken in each window, by the time when they were there, and which were sold out.
    """
    taken, sold_out, last = Counter[int](), set[int](), time.time() + 60
    with SyncRateLimiter(url, refusal_ttl=0) as limiter:
        while len(sold_out) < windows and time.time() < last:
            try:
                with limiter.acquire("key", "gpt-4", {"t": 1}):
                    taken[int(time.time() // SECONDS)] += 1
            except RateLimitExceeded as refused:
                asked_ms = refused.statuses[0].instant_ms
                assert asked_ms is not None
                sold_out.add(asked_ms // 1000 // SECONDS)
                time.sleep(0.002)
    return taken, sold_out


def test_eight_processes_sell_exactly_the_allowance_of_each_window(tmp_path: Path) -> None:
    """In real time: a window that somebody has found sold out has sold all of it, and none has sold more."""
    url = f"sqlite:///{tmp_path / 'limits.db'}"
    with SyncRateLimiter(url) as limiter:
        limiter.set_system_defaults([Limit.quota("t", 40, every=timedelta(seconds=SECONDS))])
    with ProcessPoolExecutor(8, multiprocessing.get_context("spawn")) as pool:
        found = list(pool.map(buy, [url] * 8, [4] * 8))
    taken = sum((each for each, _ in found), Counter[int]())
    sold_out = set[int]().union(*(each for _, each in found))
    # What was taken as one window ended may have been noted in the next, unless there was nothing left to take.
    sure = {number for number in sold_out if number - 1 in sold_out}
    assert len(sure) >= 3, (taken, sold_out)
    assert {number: taken[number] for number in sure} == dict.fromkeys(sure, 40), (taken, sold_out)


async def test_a_quota_is_back_when_the_day_begins_where_it_is_sold(harness: Harness) -> None:
    set_clock(harness, "2026-10-24T18:00")
    limiter = harness.limiter()
    await limiter.set_system_defaults([QUOTA])
    assert await granted(limiter, {"tpd": 1_000})
    with pytest.raises(RateLimitExceeded) as refused:
        await take(limiter, {"tpd": 1})
    assert refused.value.retry_after_seconds == 6 * 3_600
    assert refused.value.kind == "quota"
    assert refused.value.resets_at == datetime(2026, 10, 25, tzinfo=BERLIN)
    assert refused.value.as_dict()["resets_at"] == "2026-10-25T00:00:00+02:00"
    harness.clock.advance_ms(6 * 3_600_000 - 1)
    assert not await granted(limiter, {"tpd": 1})
    harness.clock.advance_ms(1)
    assert await granted(limiter, {"tpd": 1_000})
    harness.clock.advance_ms(25 * 3_600_000 - 1)
    assert not await granted(limiter, {"tpd": 1}), "this day has 25 hours"
    harness.clock.advance_ms(1)
    assert await granted(limiter, {"tpd": 1_000})


async def test_the_allowances_that_follow_pay_what_was_used_beyond_a_quota(harness: Harness) -> None:
    set_clock(harness, "2026-06-01T12:00")
    limiter = harness.limiter()
    await limiter.set_system_defaults([QUOTA])
    async with limiter.acquire("key", "gpt-4", {"tpd": 1_000}) as lease:
        await lease.adjust(tpd=1_500)
    assert await limiter.available("key", "gpt-4") == {"tpd": -1_500}
    with pytest.raises(RateLimitExceeded) as refused:
        await take(limiter, {"tpd": 600})
    assert refused.value.retry_after_seconds == (12 + 48) * 3_600, "-500 tomorrow, 500 the day after, then 1,000"
    harness.clock.advance(36 * 3_600)
    assert await limiter.available("key", "gpt-4") == {"tpd": 500}


async def test_what_is_kept_of_a_window_is_what_rollover_says(harness: Harness) -> None:
    set_clock(harness, "2026-06-01T12:00")
    limiter = harness.limiter()
    await limiter.set_system_defaults([Limit.quota("jobs", 10, every="month", tz="Europe/Berlin", rollover=5)])
    assert await granted(limiter, {"jobs": 12})
    set_clock(harness, "2026-07-01T00:00")
    assert await limiter.available("key", "gpt-4") == {"jobs": 13}
    set_clock(harness, "2026-09-01T00:00")
    assert await limiter.available("key", "gpt-4") == {"jobs": 15}


async def test_a_give_back_of_an_earlier_window_does_not_raise_the_next_one(harness: Harness) -> None:
    set_clock(harness, "2026-06-01T23:59")
    limiter = harness.limiter()
    await limiter.set_system_defaults([QUOTA])
    async with limiter.acquire("key", "gpt-4", {"tpd": 800}) as lease:
        harness.clock.advance(120)
        assert await granted(limiter, {"tpd": 1_000})
        await lease.release(tpd=800)
    assert await limiter.available("key", "gpt-4") == {"tpd": 0}


async def test_a_refusal_by_another_limit_tells_a_soft_quota_as_it_is(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults([RATE, Limit.quota("tph", 500, every="hour", soft=True)])
    await take(limiter, {"tph": 400})
    with pytest.raises(RateLimitExceeded) as refused:
        await take(limiter, {"rpm": 60, "tph": 900})
        await take(limiter, {"rpm": 60, "tph": 900})
    found = {status.limit_name: (status.exceeded, status.available) for status in refused.value.statuses}
    assert found == {"rpm": (True, 0), "tph": (False, -800)}


async def test_a_capacity_below_the_floor_that_it_had_refuses_and_keeps_the_bucket(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_limits("key", [Limit.per_minute("rpm", 10, floors={"batch": 0.5})])
    await take(limiter, {"rpm": 1})
    await limiter.set_limits("key", [Limit.per_minute("rpm", 100, floors={"batch": 0.5})])
    assert not await granted(limiter, {"rpm": 1}, priority="batch")
    assert await granted(limiter, {"rpm": 9})
    assert await limiter.available("key", "gpt-4") == {"rpm": 0}


async def test_what_is_owed_to_a_quota_that_was_not_asked_is_not_paid_by_windows_long_past(harness: Harness) -> None:
    set_clock(harness, "2026-06-01T12:00")
    limiter = harness.limiter()
    await limiter.set_limits("key", ALL)
    await take(limiter, {"tpd": 1_000})
    harness.clock.advance(10 * 86_400)
    async with limiter.acquire("key", "gpt-4", {"rpm": 1}) as lease:
        await lease.adjust(tpd=1_638)
    assert (await limiter.available("key", "gpt-4"))["tpd"] == 1_000 - 1_638


async def test_a_soft_limit_counts_and_never_refuses(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults([Limit.per_minute("tpm", 100, soft=True), RATE])
    async with limiter.acquire("key", "gpt-4", {"tpm": 60, "rpm": 1}) as lease:
        assert lease.overdrawn == ()
    async with limiter.acquire("key", "gpt-4", {"tpm": 1_000, "rpm": 1}) as lease:
        assert lease.overdrawn == ("tpm",)
        assert lease.available == {"tpm": -960, "rpm": 58}
    with pytest.raises(RateLimitExceeded) as refused:
        await take(limiter, {"tpm": 1, "rpm": 59})
    assert [status.limit_name for status in refused.value.violations] == ["rpm"]
    assert [status.overdrawn for status in refused.value.statuses] == [False, True]


async def test_a_request_of_a_priority_leaves_its_floor_to_others(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults([RATE])
    assert await granted(limiter, {"rpm": 30}, priority="batch")
    with pytest.raises(RateLimitExceeded, match=r"30 kept for others; retry in 0\.5 s") as refused:
        await take(limiter, {"rpm": 1}, priority="batch")
    assert refused.value.statuses[0].floor == 30
    assert await granted(limiter, {"rpm": 10})
    harness.clock.advance_ms(5_499)
    assert not await granted(limiter, {"rpm": 1}, priority="batch")
    harness.clock.advance_ms(1)
    assert await granted(limiter, {"rpm": 1}, priority="batch")
    with pytest.raises(CapacityExceeded, match=r"above the maximum 30 \(30 kept for others\)"):
        await take(limiter, {"rpm": 31}, priority="batch")
    (status,) = await limiter.get_status("key", "gpt-4", needed={"rpm": 31}, priority="batch")
    assert (status.floor, status.exceeded, status.retry_after_seconds) == (30, True, None)
    with pytest.raises(ValidationError, match="there are batch"):
        await limiter.get_status("key", "gpt-4", priority="bulk")
    with pytest.raises(ValidationError, match="there are batch") as unknown:
        await take(limiter, {"rpm": 1}, priority="bulk")
    assert unknown.value.field == "priority"


async def test_a_floor_of_0_declares_a_priority_that_may_take_everything(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults([Limit.per_minute("rpm", 60, floors={"batch": 0.5, "paid": 0})])
    assert not await granted(limiter, {"rpm": 31}, priority="batch")
    assert await granted(limiter, {"rpm": 60}, priority="paid")
    ((limit,), _) = await harness.limiter().get_system_defaults()
    assert limit.floors == (("batch", 0.5), ("paid", 0))


async def test_the_switch_of_a_level_is_read_as_it_was_set(harness: Harness) -> None:
    limiter = harness.limiter()
    assert await limiter.get_entity_disabled("key") is None
    await limiter.disable_entity("key")
    await limiter.enable_entity("key", "gpt-4")
    await limiter.bypass_resource("gpt-4")
    assert await limiter.get_entity_disabled("key") is True
    assert await limiter.get_entity_disabled("key", "gpt-4") is False
    assert await limiter.get_entity_disabled("key", "gpt-5") is None
    assert await limiter.get_resource_disabled("gpt-4") == "bypass"
    await limiter.clear_entity_disabled("key")
    assert await limiter.get_entity_disabled("key") is None


async def test_floors_count_at_every_level_of_a_cascade(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.create_entity("org")
    await limiter.create_entity("key", parent_id="org", cascade=True)
    await limiter.set_limits("org", [RATE])
    await limiter.set_limits("key", [Limit.per_minute("rpm", 1_000)])
    assert await granted(limiter, {"rpm": 30}, priority="batch")
    assert not await granted(limiter, {"rpm": 1}, priority="batch")
    assert await granted(limiter, {"rpm": 30})


async def test_switches_decide_before_limits_the_most_specific_first(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults([Limit.per_minute("rpm", 1)])
    await limiter.disable_resource("gpt-4")
    with pytest.raises(ResourceDisabled, match="'gpt-4' is disabled") as off:
        await take(limiter, {"rpm": 1})
    assert (off.value.entity_id, off.value.resource, off.value.level) == ("key", "gpt-4", "resource")
    await limiter.enable_entity("key")
    assert [await granted(limiter, {"rpm": 1}) for _ in range(2)] == [True, False]
    await limiter.bypass_entity("key", "gpt-4")
    async with limiter.acquire("key", "gpt-4", {"rpm": 7}) as lease:
        assert lease.bypassed
        assert lease.available == {"rpm": -7}
    await limiter.disable_entity("key")
    assert await granted(limiter, {"rpm": 1}), "the switch for this resource is more specific"
    with pytest.raises(ResourceDisabled, match="Entity 'key' is disabled"):
        async with limiter.acquire("key", "gpt-3", {"rpm": 1}):
            pass
    assert await limiter.resolve_access("key", "gpt-4") == (Access.BYPASSED, "entity")
    assert await limiter.resolve_access("other", "gpt-3") == (Access.ENABLED, None)
    events = [event.details for event in await limiter.get_audit_events("key") if event.action == "access_changed"]
    assert [event["access"] for event in events] == ["disabled", "bypassed", "enabled"]


async def test_who_charges_a_disabled_entity_is_refused_with_it(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults([RATE])
    await limiter.create_entity("org")
    await limiter.create_entity("key", parent_id="org", cascade=True)
    await limiter.disable_entity("org")
    with pytest.raises(ResourceDisabled) as off:
        await take(limiter, {"rpm": 1})
    assert off.value.entity_id == "org"
    await limiter.enable_entity("org")
    assert await granted(limiter, {"rpm": 1})


async def test_switches_and_limits_of_a_level_leave_each_other_alone(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_limits("key", [RATE], "gpt-4")
    await limiter.disable_entity("key", "gpt-4")
    assert await limiter.get_limits("key", "gpt-4") == [RATE]
    await limiter.set_limits("key", [SOFT], "gpt-4")
    await limiter.delete_limits("key", "gpt-4")
    with pytest.raises(ResourceDisabled):
        await take(limiter, {"rpm": 1}, limits=[RATE])


async def test_all_kinds_cost_one_write_and_no_read(harness: Harness) -> None:
    """Steady, and where a new window begins."""
    set_clock(harness, "2026-06-01T12:00")
    store = FaultyStore(harness.store())
    limiter = harness.limiter(store)
    await limiter.set_system_defaults(ALL)
    cost = {"tpd": 5, "rpm": 1, "tph": 400}
    assert await granted(limiter, cost)
    for hours in (0, 0, 0, 12, 0):
        harness.clock.advance(hours * 3_600)
        if hours:
            await limiter.available("key", "gpt-4")
        before = store.calls.copy()
        assert await granted(limiter, cost)
        made = store.calls - before
        assert made.total() <= 1, made


async def test_limits_of_every_kind_are_stored_as_they_are(harness: Harness) -> None:
    limiter: RateLimiter = harness.limiter()
    given = [
        Limit.quota("a", 5, every="week", on="sunday", tz="Asia/Kolkata", at="06:30", rollover=2, soft=True),
        Limit.quota("b", 7, every=timedelta(hours=6), floors={"batch": 0.25, "free": 0.5}),
        Limit.per_minute("c", 9, soft=True),
    ]
    await limiter.set_limits("key", given, "gpt-4")
    assert await harness.limiter().get_limits("key", "gpt-4") == given
    await limiter.set_limits("key", [Limit.per_minute("a", 1)], "gpt-4")
    assert await harness.limiter().get_limits("key", "gpt-4") == [Limit.per_minute("a", 1)]


async def test_a_rate_that_becomes_a_quota_and_back_keeps_its_tokens(harness: Harness) -> None:
    set_clock(harness, "2026-06-01T12:00")
    limiter = harness.limiter()
    rate, quota = Limit.per_hour("t", 100), Limit.quota("t", 200, tz="Europe/Berlin")
    await limiter.set_system_defaults([rate])
    assert await granted(limiter, {"t": 60})
    await limiter.set_system_defaults([quota])
    assert await granted(limiter, {"t": 30})
    assert await limiter.available("key", "gpt-4") == {"t": 10}
    harness.clock.advance(11 * 3_600)
    assert await limiter.available("key", "gpt-4") == {"t": 10}, "the day is not over"
    await limiter.set_system_defaults([rate])
    assert not await granted(limiter, {"t": 11})
    harness.clock.advance(36)
    assert await granted(limiter, {"t": 11})


async def test_the_stored_bucket_of_a_quota_says_which_windows_it_has(harness: Harness) -> None:
    set_clock(harness, "2026-06-01T12:00")
    limiter = harness.limiter()
    await limiter.set_system_defaults([QUOTA])
    assert await granted(limiter, {"tpd": 900})
    (state,) = await limiter.get_buckets("key")
    now_ms = harness.clock.now_ms()
    assert (state.calendar, state.capacity_milli) == ("day@Europe/Berlin", 1_000_000)
    assert calculate_available(state, now_ms) == 100
    assert calculate_available(state, now_ms + 12 * 3_600_000) == 1_000
    assert try_consume(state, 101, now_ms).retry_after_seconds == 12 * 3_600


@pytest.mark.parametrize("damage", ["day@Mars/Olympus", "soon", 5])
async def test_a_damaged_calendar_is_told_and_grants_nothing(harness: Harness, damage: object) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults([QUOTA])
    assert await granted(limiter, {"tpd": 1})
    key = keys.bucket((await limiter.repository.get_namespace("default")).id, "key", "gpt-4")
    await harness.store().commit([Write(key, put={"b_tpd_ca": damage})])
    with pytest.raises(CorruptRecordError, match="b_tpd_ca="):
        await take(harness.limiter(), {"tpd": 1})


def test_the_shards_of_a_quota_sell_it_together() -> None:
    """As on a store that splits busy buckets: both halves are told the calendar, and are full again at midnight."""
    limits = (QUOTA,)
    key = keys.bucket("ns", "key", "gpt-4")
    level = BucketLimits(
        key, "ns", "key", "gpt-4", limits, token_limits_for(limits), "system", 1, partition_writes=1000
    )
    noon = round(datetime(2026, 6, 1, 12, tzinfo=BERLIN).timestamp() * 1000)
    image = apply_write(None, create(level, {"tpd": 300_001}, noon))
    assert image is not None
    old, new = (
        apply_write(before, write) for before, write in zip((image, None), split(level, image, noon), strict=True)
    )
    assert old is not None
    assert new is not None
    shards = [(level.at(0, 2), old), (level.at(1, 2), new)]
    for hours, held in ((0, 699_999), (11, 699_999), (12, 1_000_000)):
        (balances,) = bucket.reading(shards, noon + hours * 3_600_000).balances.values()
        assert sum(shard.level(noon + hours * 3_600_000) for shard in balances) == held


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Limit.quota("t", 0), "amount"),
        (lambda: Limit.quota("t", 1, rollover=-1), "rollover"),
        (lambda: Limit.quota("t", 1, tz="Mars/Olympus"), "tz"),
        (lambda: Limit.per_minute("t", 1, soft="yes"), "soft"),  # type: ignore[arg-type]
        (lambda: Limit.per_minute("t", 1, floors={"batch": 1.0}), "floors['batch']"),
        (lambda: Limit.per_minute("t", 1, floors={"batch": -0.1}), "floors['batch']"),
        (lambda: Limit.per_minute("t", 1, floors={"a b": 0.5}), "floors"),
        (lambda: Limit.per_minute("t", 1, floors=0.5), "floors"),  # type: ignore[arg-type]
    ],
)
def test_an_invalid_policy_names_its_field(make: object, field: str) -> None:
    with pytest.raises(ValidationError) as caught:
        make()  # type: ignore[operator]
    assert caught.value.field == field


def test_a_window_ends_in_its_own_zone() -> None:
    calendar = QUOTA.calendar
    assert calendar is not None
    instant = round(datetime(2026, 6, 1, 21, 59, tzinfo=UTC).timestamp() * 1000)
    assert calendar.moment(calendar.start(calendar.index(instant) + 1)).isoformat() == "2026-06-02T00:00:00+02:00"


async def test_another_process_follows_a_cascade_policy_that_has_charged_the_bucket(harness: Harness) -> None:
    limiter, other = harness.limiter(), harness.limiter()
    await limiter.set_system_defaults([Limit.per_minute("rpm", 1_000)])
    await limiter.create_entity("org")
    await limiter.create_entity("key", parent_id="org", cascade=True)
    assert await granted(other, {"rpm": 1})
    await limiter.set_resource_cascade("gpt-4", False)
    assert await granted(limiter, {"rpm": 1})
    harness.clock.advance(61)
    assert await granted(other, {"rpm": 1})
    assert (await limiter.available("org", "gpt-4"))["rpm"] == 1_000
    assert [event.action for event in await limiter.get_audit_events("$RESOURCE:gpt-4")] == ["cascade_changed"]


async def test_a_policy_of_cascade_stays_with_the_limits_and_goes_with_the_entity(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.create_entity("key")
    await limiter.set_limits("key", [RATE], disabled="bypass", cascade=False)
    assert await limiter.get_entity_cascade("key") is False
    assert await limiter.resolve_access("key", "gpt-4") == (Access.BYPASSED, "entity_default")
    await limiter.delete_limits("key")
    assert await limiter.get_entity_cascade("key") is False
    await limiter.set_limits("key", [RATE], disabled=None, cascade=None)
    assert await limiter.get_entity_cascade("key") is None
    assert await limiter.resolve_access("key", "gpt-4") == (Access.ENABLED, None)
    await limiter.set_entity_cascade("key", True, "gpt-4")
    await limiter.delete_entity("key")
    assert await limiter.get_entity_cascade("key", "gpt-4") is None
    await limiter.set_resource_defaults("gpt-4", [RATE], disabled=True, cascade=True)
    assert await limiter.get_resource_cascade("gpt-4") is True
    with pytest.raises(ResourceDisabled):
        await take(limiter, {"rpm": 1})
    await limiter.clear_resource_disabled("gpt-4")
    assert await granted(limiter, {"rpm": 1})
    await limiter.disable_entity("key", "gpt-4")
    await limiter.clear_entity_disabled("key", "gpt-4")
    assert await granted(limiter, {"rpm": 1})


@pytest.mark.parametrize("value", ["yes", 1, None])
async def test_a_cascade_policy_is_true_or_false(harness: Harness, value: Any) -> None:
    limiter = harness.limiter()
    with pytest.raises(ValidationError, match="True or False"):
        await limiter.set_entity_cascade("key", value)
    with pytest.raises(ValidationError, match="'bypass' or None"):
        await limiter.set_limits("key", [RATE], disabled="off")
