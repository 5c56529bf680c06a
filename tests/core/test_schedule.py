"""Schedules: which entry is in force, minute by minute, and when that changes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cronsim import CronSim
from hypothesis import assume, given, settings, strategies as st

from zae_limiter import Limit, ScheduleEntry, ValidationError
from zae_limiter.core import borders
from zae_limiter.core.balances import Tokens
from zae_limiter.core.borders import Scheduled, wait_across
from zae_limiter.core.production import FOR_EVER, Rule
from zae_limiter.core.schedule import find_active, last_change, next_change
from zae_limiter.records.config import decode, encode
from zae_limiter.records.keys import system_config

MINUTE_MS = 60_000
PATTERNS = ["* 9-17 * * 1-5", "*/20 2 * * *", "* * 25-31 3,10 *", "30-59 1,2 * * SUN", "* * * * *", "* * 29 2 *"]
ZONES = ["UTC", "Europe/Berlin", "Australia/Lord_Howe", "America/Havana"]
ENTRIES = st.builds(ScheduleEntry, st.sampled_from(PATTERNS), st.sampled_from(ZONES), st.sampled_from([0.5, 2.0]))
STARTS = ["2026-03-28T20:00", "2026-10-24T20:00", "2026-07-01T00:00", "2026-11-01T00:00", "2026-04-04T10:00"]


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


@settings(max_examples=60, deadline=None)
@given(st.lists(ENTRIES, min_size=1, max_size=3).map(tuple), st.sampled_from(STARTS), st.integers(0, 59_999))
def test_changes_are_where_the_minutes_say_so(entries: tuple[ScheduleEntry, ...], start: str, more_ms: int) -> None:
    """Over two days around changes of the clocks: every minute is looked at."""
    first = ms(start)
    minutes = range(first, first + 2 * 1440 * MINUTE_MS, MINUTE_MS)
    active = [find_active(entries, minute) for minute in minutes]
    changes = [minute for minute, one, two in zip(minutes[1:], active, active[1:], strict=False) if one != two]
    instant, found = first + more_ms, []
    while (change := next_change(entries, instant)) is not None and change < minutes[-1]:
        assert last_change(entries, change + more_ms) == change
        found.append(change)
        instant = change + more_ms
    assert found == changes


@pytest.mark.parametrize("pattern", PATTERNS[:4])
def test_a_pattern_matches_where_cronsim_fires(pattern: str) -> None:
    first = datetime(2026, 3, 1, tzinfo=UTC)
    fired: set[datetime] = set()
    moments = CronSim(pattern, first - timedelta(minutes=1))
    while not fired or max(fired) < first + timedelta(days=40):
        fired.add(next(moments))
    entry = ScheduleEntry(pattern, scale=2)
    for number in range(40 * 1440):
        moment = first + timedelta(minutes=number)
        assert entry.matches(round(moment.timestamp() * 1000)) == (moment in fired)


def test_the_first_entry_that_matches_is_in_force_and_the_limit_itself_where_none_does() -> None:
    limit = Limit.per_minute("rpm", 100).with_schedule(
        [ScheduleEntry("* 9 * * *", capacity=5, refill_period_seconds=10), ScheduleEntry("* 9,10 * * *", scale=2)]
    )
    assert limit.in_force(ms("2026-06-01T08:59")) == Limit.per_minute("rpm", 100)
    assert limit.in_force(ms("2026-06-01T09:00")) == Limit.custom("rpm", 5, 100, 10)
    assert limit.in_force(ms("2026-06-01T10:59")) == Limit.per_minute("rpm", 200)
    assert next_change(limit.schedule, ms("2026-06-01T09:30")) == ms("2026-06-01T10:00")
    assert limit.with_schedule([]) == Limit.per_minute("rpm", 100)


@pytest.mark.parametrize(
    ("limit", "factor", "scaled"),
    [
        (Limit.per_minute("x", 100, burst=50), 0.25, Limit.per_minute("x", 25, burst=12)),
        (Limit.per_minute("x", 5), 0.3, Limit.custom("x", 1, 1, 40)),
        (Limit.per_minute("x", 1), 0.001, Limit.custom("x", 1, 1, 60_000)),
        (Limit.quota("x", 100, rollover=50), 0.5, Limit.quota("x", 50, rollover=25)),
        (Limit.quota("x", 1), 0.5, Limit.quota("x", 1)),
    ],
)
def test_a_scale_keeps_the_rate_exact(limit: Limit, factor: float, scaled: Limit) -> None:
    found = limit.scale(factor)
    assert (found.capacity, found.calendar) == (scaled.capacity, scaled.calendar)
    assert found.refill_amount * scaled.refill_period_seconds == scaled.refill_amount * found.refill_period_seconds


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: ScheduleEntry("* 9 * *", scale=1), "cron"),
        (lambda: ScheduleEntry("", scale=1), "cron"),
        (lambda: ScheduleEntry(None, scale=1), "cron"),  # type: ignore[arg-type]
        (lambda: ScheduleEntry(5, scale=1), "cron"),  # type: ignore[arg-type]
        (lambda: ScheduleEntry("* 9 * * *", "Mars", scale=1), "tz"),
        (lambda: ScheduleEntry("* 9 * * *"), "schedule"),
        (lambda: ScheduleEntry("* 9 * * *", scale=1, capacity=5), "schedule"),
        (lambda: ScheduleEntry("* 9 * * *", scale=0), "scale"),
        (lambda: ScheduleEntry("* 9 * * *", scale=float("inf")), "scale"),
        (lambda: Limit.per_minute("x", 1).with_schedule([ScheduleEntry("* 9 * * *", capacity=0)]), "capacity"),
        (lambda: Limit.per_minute("x", 1).with_schedule(ScheduleEntry("* 9 * * *", scale=1)), "schedule"),  # type: ignore[arg-type]
        (lambda: Limit.per_minute("x", 10**12).with_schedule([ScheduleEntry("* 9 * * *", scale=2)]), "capacity"),
        (lambda: Limit.quota("x", 1).with_schedule([ScheduleEntry("* 9 * * *", refill_amount=2)]), "schedule"),
        (lambda: ScheduleEntry.parse("* 9 * * *"), "schedule"),
        (lambda: ScheduleEntry.parse("cron(* 9 * * *)@UTC,scale=x"), "schedule"),
        (lambda: ScheduleEntry.parse("cron(* 9 * * *)@UTC,size=1"), "schedule"),
    ],
)
def test_what_is_no_schedule(make: Any, field: str) -> None:
    with pytest.raises(ValidationError) as caught:
        make()
    assert caught.value.field == field


def test_what_no_entry_can_hold_is_refused_without_a_look_at_the_borders(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = Limit.per_minute("rpm", 100, floors={"batch": 0.5}).with_schedule(
        [ScheduleEntry("* 9-17 * * 1-5", capacity=50)]
    )
    rule, now_ms = Rule.of(limit), ms("2026-06-06T12:00")
    held = (Tokens(rule, 0, now_ms, ((FOR_EVER, 7_000),)),)
    assert wait_across(Scheduled(limit, 0.5), held, 57_000, now_ms, now_ms) == 60_000

    def look(*_: object) -> None:
        raise AssertionError("it looks at a border")

    monkeypatch.setattr(borders, "_next_border", look)
    assert wait_across(Scheduled(limit, 0.5), held, 57_001, now_ms, now_ms) == FOR_EVER
    assert wait_across(Scheduled(limit), held, 107_001, now_ms, now_ms) == FOR_EVER


def test_what_fits_at_some_time_is_not_told_as_never_however_far_that_is() -> None:
    """A wait across too many borders is told as long as they last, so that it is asked again."""
    entries = [
        ScheduleEntry("* * 1 * *", capacity=1_000, refill_amount=1_000),
        ScheduleEntry("0-29 * * * *", scale=0.5),
    ]
    limit = Limit.per_second("rps", 10).with_schedule(entries)
    now_ms, waits = ms("2026-11-02T12:00"), []
    while limit.in_force(now_ms).capacity < 100:
        held = (Tokens(Rule.of(limit.in_force(now_ms)), 5_000, now_ms),)
        waits.append(wait_across(Scheduled(limit), held, 100_000, now_ms, now_ms))
        now_ms += waits[-1]
    assert len(waits) == 2
    assert ms("2026-12-01T00:00") < now_ms < ms("2026-12-01T00:01")


QUARTERS = [
    ScheduleEntry("15-29 * * * *", scale=0.25),
    ScheduleEntry("30-59 */2 * * *", "Asia/Kolkata", capacity=70),
    ScheduleEntry("* 7-12 5,6 * *", scale=2.0),
    ScheduleEntry("* * * * *", scale=0.5),
]


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.sampled_from(QUARTERS), min_size=1, max_size=3, unique=True).map(tuple),
    st.sampled_from(["hour", "day", "week", timedelta(minutes=100)]),
    st.integers(-300, 100),
    st.integers(0, 220),
    st.sampled_from([0.0, 0.5]),
    st.integers(0, 86_400_000),
    st.integers(0, 7_200_000),
    st.sampled_from([(), ((FOR_EVER, 9_000),), ((1_780_000_000_000, 30_000),)]),
)
def test_a_quota_skips_only_borders_that_change_nothing(
    entries: tuple[ScheduleEntry, ...],
    every: str | timedelta,
    held: int,
    cost: int,
    floor: float,
    more_ms: int,
    from_ms: int,
    lots: tuple[tuple[int, int], ...],
) -> None:
    """It finds the same wait as a walk that stops at every border, as far as that gets in 300 of them."""
    assume(all(each.cron != "* * * * *" for each in entries[:-1]))  # entries after it would be refused
    limit = Limit.quota("tokens", 100, every=every, rollover=20).with_schedule(entries)
    now_ms = ms("2026-06-05T00:00") + more_ms
    rule = Rule.of(limit.in_force(now_ms))
    asked = (Scheduled(limit, floor), (Tokens(rule, held * 1_000, now_ms, lots),), cost * 1_000, now_ms)
    found = wait_across(*asked, now_ms + from_ms)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(borders, "_skip_borders", lambda *given: given[-1])
        patch.setattr(borders, "_MOST_BORDERS", 300)
        walked = wait_across(*asked, now_ms + from_ms)
        patch.setattr(borders, "_MOST_BORDERS", 299)
        is_exact = walked == wait_across(*asked, now_ms + from_ms)
    assert found == walked if is_exact else found >= walked


def test_a_quota_waits_three_weeks_across_a_border_a_minute() -> None:
    limit = Limit.quota("tokens", 1_000, every="month").with_schedule([ScheduleEntry("*/2 * * * *", scale=0.5)])
    now_ms = ms("2027-06-09T12:00")
    held = (Tokens(Rule.of(limit.in_force(now_ms)), 0, now_ms),)
    assert wait_across(Scheduled(limit), held, 400_000, now_ms, now_ms) == ms("2027-07-01T00:00") - now_ms


def test_texts_and_records() -> None:
    entries = [
        ScheduleEntry("0,30 9 * * mon", "Europe/Berlin", scale=0.25),
        ScheduleEntry("* * L * *", capacity=7, refill_amount=2, refill_period_seconds=9),
    ]
    for entry in entries:
        assert ScheduleEntry.parse(entry.text) == entry
    limit = Limit.per_minute("rpm", 100, floors={"batch": 0.5}).with_schedule(entries)
    assert Limit.from_dict(limit.to_dict()) == limit
    image: dict[str, Any] = {**encode((limit,)), "config_version": 1}
    assert decode(system_config("ns"), image).limits == (limit,)
