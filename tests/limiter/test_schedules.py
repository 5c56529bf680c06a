"""Limits with a schedule: floors, first uses and waiting across borders, and what a border costs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests.support.acquiring import granted, take
from tests.support.charges import create
from zae_limiter import Limit, RateLimitExceeded, ScheduleEntry
from zae_limiter.core.balances import balance
from zae_limiter.core.borders import find_interval, find_scheduled
from zae_limiter.records import bucket, keys, splitting
from zae_limiter.records.algebra import apply_write
from zae_limiter.records.level import BucketLimits, token_limits_for
from zae_limiter.testing import FaultyStore, Harness

DAY = ScheduleEntry("* 9-16 * * *", scale=0.5)


def set_clock(harness: Harness, text: str) -> None:
    moment = datetime.fromisoformat(text).replace(tzinfo=UTC)
    harness.clock.advance_ms(round(moment.timestamp() * 1000) - harness.clock.now_ms())


async def test_a_wait_that_crosses_a_border_is_exact(harness: Harness) -> None:
    """Ten seconds at 1,000 a minute, and forty at 500."""
    set_clock(harness, "2027-06-01T08:59:50")
    limiter = harness.limiter()
    await limiter.set_system_defaults([Limit.per_minute("tpm", 1_000).with_schedule([DAY])])
    await take(limiter, {"tpm": 1_000})
    with pytest.raises(RateLimitExceeded) as refused:
        await take(limiter, {"tpm": 500})
    assert refused.value.retry_after_seconds == 50
    assert await limiter.time_until_available("key", "gpt-4", {"tpm": 500}) == 50
    harness.clock.advance_ms(49_999)
    assert not await granted(limiter, {"tpm": 500})
    harness.clock.advance_ms(1)
    assert await granted(limiter, {"tpm": 500})


async def test_a_quota_waits_for_its_window_across_any_number_of_borders(harness: Harness) -> None:
    """Thirty hours with a border every minute: `retry_after` and `resets_at` name the same instant."""
    set_clock(harness, "2027-06-29T18:00:30")
    limiter = harness.limiter()
    minutely = ScheduleEntry("*/2 * * * *", scale=0.5)
    await limiter.set_system_defaults([Limit.quota("tokens", 1_000, every="month").with_schedule([minutely])])
    await take(limiter, {"tokens": 500})
    with pytest.raises(RateLimitExceeded) as refused:
        await take(limiter, {"tokens": 400})
    waits = timedelta(seconds=refused.value.retry_after_seconds or 0)
    assert datetime(2027, 6, 29, 18, 0, 30, tzinfo=UTC) + waits == refused.value.resets_at
    harness.clock.advance_ms(waits // timedelta(milliseconds=1) - 1)
    assert not await granted(limiter, {"tokens": 400})
    harness.clock.advance_ms(1)
    assert await granted(limiter, {"tokens": 400})


async def test_a_wait_right_after_the_bucket_was_made_knows_what_it_holds(harness: Harness) -> None:
    """It is empty then; the entry of 11 o'clock makes 100 a second, of which 49 are missing after the first minute."""
    set_clock(harness, "2027-06-01T10:59:00")
    limiter = harness.limiter()
    late = ScheduleEntry("* 11 * * *", capacity=100, refill_amount=100, refill_period_seconds=1)
    await limiter.set_system_defaults([Limit.custom("tpm", 10, 1, 60).with_schedule([late])])
    await take(limiter, {"tpm": 10})
    before = harness.clock.now_ms()
    async with limiter.acquire("key", "gpt-4", {"tpm": 50}, max_wait=3_600) as lease:
        assert harness.clock.now_ms() - before == 60_490
        assert lease.available == {"tpm": 0}


async def test_the_first_write_after_a_border_is_one_write_without_a_read(harness: Harness) -> None:
    set_clock(harness, "2027-06-01T08:59:30")
    store = FaultyStore(harness.store())
    limiter = harness.limiter(store)
    await limiter.set_system_defaults([Limit.per_minute("tpm", 1_000).with_schedule([DAY])])
    await take(limiter, {"tpm": 1})
    for seconds in (10, 20, 10):
        harness.clock.advance(seconds)
        before = store.calls.copy()
        await take(limiter, {"tpm": 1})
        assert (store.calls - before).total() <= 1
    (state,) = await limiter.get_buckets("key")
    assert state.capacity_milli == 500_000


async def test_a_floor_is_a_part_of_the_capacity_in_force(harness: Harness) -> None:
    set_clock(harness, "2027-06-01T08:59:59")
    limiter = harness.limiter()
    rate = Limit.custom("tpm", 1_000, 1, 86_400, floors={"batch": 0.5})
    await limiter.set_system_defaults([rate.with_schedule([DAY])])
    await take(limiter, {"tpm": 1})
    harness.clock.advance(1)
    with pytest.raises(RateLimitExceeded) as refused:
        async with limiter.acquire("key", "gpt-4", {"tpm": 251}, priority="batch"):
            pass
    assert refused.value.retry_after_seconds is not None, "with the capacity of the night it fits"
    async with limiter.acquire("key", "gpt-4", {"tpm": 250}, priority="batch") as lease:
        assert lease.available == {"tpm": 250}


async def test_a_window_of_first_use_goes_on_across_a_border(harness: Harness) -> None:
    set_clock(harness, "2027-06-01T08:00")
    limiter = harness.limiter()
    session = Limit.quota("session", 1_000, reset_after=timedelta(hours=5))
    await limiter.set_system_defaults([session.with_schedule([DAY])])
    await take(limiter, {"session": 100})
    harness.clock.advance(2 * 3_600)
    assert await limiter.available("key", "gpt-4") == {"session": 500}
    await take(limiter, {"session": 500})
    with pytest.raises(RateLimitExceeded) as refused:
        await take(limiter, {"session": 500})
    assert refused.value.retry_after_seconds == 3 * 3_600
    harness.clock.advance(3 * 3_600)
    await take(limiter, {"session": 500})


async def test_who_waits_is_served_after_a_border(harness: Harness) -> None:
    set_clock(harness, "2027-06-01T16:59:59")
    limiter = harness.limiter()
    await limiter.set_system_defaults([Limit.per_second("rps", 100).with_schedule([DAY])])
    await take(limiter, {"rps": 50})
    async with limiter.acquire("key", "gpt-4", {"rps": 80}, max_wait=5) as lease:
        assert lease.consumed == {"rps": 80}
    assert harness.clock.now_ms() >= round(datetime(2027, 6, 1, 17, tzinfo=UTC).timestamp() * 1000)


async def test_schedules_at_every_level_of_a_cascade(harness: Harness) -> None:
    set_clock(harness, "2027-06-01T08:59:59")
    limiter = harness.limiter()
    await limiter.create_entity("project")
    await limiter.create_entity("key", parent_id="project", cascade=True)
    await limiter.set_limits("project", [Limit.per_day("tpm", 1_000).with_schedule([DAY])])
    await limiter.set_limits("key", [Limit.per_day("tpm", 800)])
    assert not await granted(limiter, {"tpm": 801})
    await take(limiter, {"tpm": 100})
    harness.clock.advance(1)
    assert not await granted(limiter, {"tpm": 501})
    await take(limiter, {"tpm": 500})


async def test_what_is_cut_again_and_again_before_it_fits_never_fits(harness: Harness) -> None:
    """Every leap day leaves one token, and between two of them there is hardly another: nobody looks for ever."""
    limiter, rare = harness.limiter(), ScheduleEntry("* 3 29 2 *", capacity=1)
    await limiter.set_system_defaults([Limit.custom("tpm", 300, 1, 10**8).with_schedule([rare])])
    await take(limiter, {"tpm": 100})
    with pytest.raises(RateLimitExceeded) as refused:
        await take(limiter, {"tpm": 250})
    assert refused.value.statuses[0].retry_after_seconds is None


@pytest.mark.parametrize("at", ["08:00", "08:59:59.999"])
async def test_a_top_up_leaves_the_borders_between_to_whoever_charges_next(harness: Harness, at: str) -> None:
    """Also where nothing but a border lies between the last charge and the new anchor."""
    set_clock(harness, f"2027-06-01T{at}")
    limiter, slow = harness.limiter(), Limit.custom("tpm", 100, 1, 10**8)
    night = ScheduleEntry("* 9-16 * * *", capacity=10)
    await limiter.set_system_defaults([slow.with_schedule([night]), Limit.per_minute("rpm", 5)])
    await take(limiter, {"tpm": 1})
    for text, left in (("2027-06-01T09:00", 10), ("2027-06-02T08:00", 10), ("2027-06-02T08:30", 10)):
        set_clock(harness, text)
        await limiter.top_up("key", "gpt-4", {"rpm": 1})
        assert (await limiter.available("key", "gpt-4"))["tpm"] == left
    assert not await granted(limiter, {"tpm": 11})
    await take(limiter, {"tpm": 10})


async def test_a_top_up_loses_nothing_that_was_produced_between_borders(harness: Harness) -> None:
    set_clock(harness, "2027-06-01T08:00")
    limiter, slow = harness.limiter(), Limit.custom("tpm", 100, 1, 10**8)
    fast = ScheduleEntry("* 9-16 * * *", capacity=100, refill_amount=100, refill_period_seconds=60)
    await limiter.set_system_defaults([slow.with_schedule([fast]), Limit.per_minute("rpm", 5)])
    await take(limiter, {"tpm": 100})
    set_clock(harness, "2027-06-02T08:00")
    await limiter.top_up("key", "gpt-4", {"rpm": 1})
    await take(limiter, {"tpm": 100})


async def test_a_reset_fills_to_what_is_in_force_and_leaves_other_limits_alone(harness: Harness) -> None:
    set_clock(harness, "2027-06-01T08:00")
    limiter, less = harness.limiter(), ScheduleEntry("* 9-16 * * *", capacity=10)
    limits = [Limit.custom(name, 100, 1, 10**8).with_schedule([less]) for name in ("one", "two")]
    await limiter.set_system_defaults(limits)
    await take(limiter, {"one": 1, "two": 1})
    set_clock(harness, "2027-06-01T12:00")
    assert (await limiter.reset_bucket("key", "gpt-4", ["one"])).amounts == {"one": 0}
    assert await limiter.available("key", "gpt-4") == {"one": 10, "two": 10}
    set_clock(harness, "2027-06-01T18:00")
    assert (await limiter.reset_bucket("key", "gpt-4", ["one"])).amounts == {"one": 90}
    assert await limiter.available("key", "gpt-4") == {"one": 100, "two": 10}
    set_clock(harness, "2027-06-02T18:00")
    assert await limiter.available("key", "gpt-4") == {"one": 10, "two": 10}
    await limiter.top_up("key", "gpt-4", {"one": 5})
    await limiter.reset_bucket("key", "gpt-4")
    assert await limiter.available("key", "gpt-4") == {"one": 105, "two": 100}


async def test_a_reset_does_not_move_what_is_kept_under_limits_of_the_caller(harness: Harness) -> None:
    set_clock(harness, "2027-06-01T08:00")
    limiter = harness.limiter()
    await limiter.set_system_defaults([Limit.per_day("tpm", 100).with_schedule([DAY])])
    given = [Limit.custom("tpm", 1_000, 1, 10**8), Limit.per_minute("rpm", 5)]
    async with limiter.acquire("key", "gpt-4", {"tpm": 1}, limits=given):
        pass
    set_clock(harness, "2027-06-02T12:00")
    await limiter.reset_bucket("key", "gpt-4", ["rpm"])
    async with limiter.acquire("key", "gpt-4", {"tpm": 999}, limits=given):
        pass


WEEKEND = ScheduleEntry("* * * * 0,6", capacity=500)


@pytest.mark.parametrize("used", [0, 40, 100])
@pytest.mark.parametrize("rollover", [0, 30])
async def test_a_window_that_begins_with_an_entry_has_its_amount(harness: Harness, used: int, rollover: int) -> None:
    set_clock(harness, "2027-06-04T12:00")  # a Friday
    limiter = harness.limiter()
    await limiter.set_system_defaults([Limit.quota("tpd", 100, rollover=rollover).with_schedule([WEEKEND])])
    await take(limiter, {"tpd": 100 + rollover})  # what was left of the day before, too
    set_clock(harness, "2027-06-05T00:00")
    assert await limiter.available("key", "gpt-4") == {"tpd": 500}
    await take(limiter, {"tpd": 500 - used})
    set_clock(harness, "2027-06-06T12:00")
    assert await limiter.available("key", "gpt-4") == {"tpd": 500 + min(rollover, used)}
    set_clock(harness, "2027-06-07T00:00")
    assert await limiter.available("key", "gpt-4") == {"tpd": 100 + rollover}
    await take(limiter, {"tpd": 100 + rollover})
    assert not await granted(limiter, {"tpd": 1})


async def test_a_wait_knows_the_amount_of_a_window_that_begins_with_an_entry(harness: Harness) -> None:
    set_clock(harness, "2027-06-04T12:00")
    limiter = harness.limiter()
    await limiter.set_system_defaults([Limit.quota("tpd", 100).with_schedule([WEEKEND])])
    await take(limiter, {"tpd": 100})
    for cost in (100, 101, 500):
        assert await limiter.time_until_available("key", "gpt-4", {"tpd": cost}) == 12 * 3_600
    set_clock(harness, "2027-06-06T12:00")
    await take(limiter, {"tpd": 500})
    assert await limiter.time_until_available("key", "gpt-4", {"tpd": 100}) == 12 * 3_600
    assert await limiter.time_until_available("key", "gpt-4", {"tpd": 101}) == (12 + 5 * 24) * 3_600


@pytest.mark.parametrize(
    ("night", "taken", "left"),
    [
        (ScheduleEntry("* 0-5 * * *", capacity=10), 1, 10 + 6),  # six hours after the night
        (ScheduleEntry("* 0-5 * * *", scale=100), 1_000, 6 * 100 + 18),  # hours of the night, and others
    ],
)
def test_a_split_of_an_idle_shard_leaves_the_borders_to_come(night: ScheduleEntry, taken: int, left: int) -> None:
    limit = Limit.custom("tpm", 1_000, 1, 3_600).with_schedule([night])
    noon = round(datetime(2027, 6, 1, 12, tzinfo=UTC).timestamp() * 1000)
    later = noon + 86_400_000

    def level_at(now_ms: int) -> BucketLimits:
        limits, key = (limit.in_force(now_ms),), keys.bucket("ns", "key", "gpt-4")
        level = BucketLimits(key, "ns", "key", "gpt-4", limits, token_limits_for(limits), partition_writes=1_000)
        return level._replace(scheduled=find_scheduled([limit], None), in_force=find_interval([limit], now_ms))

    image, level = apply_write(None, create(level_at(noon), {"tpm": taken * 1_000}, noon)), level_at(later)
    assert image is not None
    old, new = splitting.split(level, image, later)
    shards = [(level.at(0, 2), apply_write(image, old)), (level.at(1, 2), apply_write(None, new))]
    for records in ([(level, image)], shards):
        assert abs(balance(bucket.reading(records, later).balances["tpm"], later) - left * 1_000) <= 2
