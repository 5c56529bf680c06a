"""Calendars: windows that follow each other in every zone, and texts that say which."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import TZPATH, ZoneInfo, available_timezones

import pytest

from zae_limiter import ValidationError
from zae_limiter.core.calendar import UNITS, Calendar

FIRST_YEAR, YEARS = 2000, 30
HOUR_MS = 3_600_000


def at(text: str, zone: str = "UTC", fold: int = 0) -> int:
    moment = datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold)
    return round(moment.timestamp() * 1000)


def distinct_zones() -> list[str]:
    """All zones, but of those with the same history one."""
    found: dict[bytes, str] = {}
    for name in sorted(available_timezones()):
        path = next((path for folder in TZPATH if (path := Path(folder, name)).is_file()), None)
        found.setdefault(name.encode() if path is None else path.read_bytes(), name)
    return list(found.values())


def offset_of(zone: ZoneInfo, instant_ms: int) -> timedelta | None:
    return datetime.fromtimestamp(instant_ms / 1000, zone).utcoffset()


def transitions(name: str) -> list[int]:
    """The quarters of an hour around each change of the clocks of a zone in thirty years."""
    start, zone = at(f"{FIRST_YEAR}-01-01"), ZoneInfo(name)
    found: list[int] = []
    for day in range(YEARS * 366):
        early, late = (start + (day + more) * 24 * HOUR_MS for more in (0, 1))
        before = offset_of(zone, early)
        if before == offset_of(zone, late):
            continue
        while late - early > 1:
            middle = (early + late) // 2
            early, late = (middle, late) if offset_of(zone, middle) == before else (early, middle)
        found += range(late - 3 * HOUR_MS, late + 3 * HOUR_MS, HOUR_MS // 4)
    return found


def calendars(zone: str) -> list[Calendar]:
    return [
        Calendar.of("hour", zone),
        Calendar.of("day", zone),
        Calendar.of("day", zone, at="02:30"),
        Calendar.of("week", zone, on="sunday"),
        Calendar.of("month", zone, on=31),
        Calendar.of("year", zone, on="02-29", at="23:30"),
    ]


@pytest.mark.parametrize("part", range(8))
def test_windows_follow_each_other_in_every_zone(part: int) -> None:
    """Over thirty years: windows all over them, and every quarter of an hour around a change of the clocks."""
    for zone in distinct_zones()[part::8]:
        changes = transitions(zone)
        for calendar in calendars(zone):
            first = calendar.index(at(f"{FIRST_YEAR}-01-01"))
            last = calendar.index(at(f"{FIRST_YEAR + YEARS}-01-01"))
            step = 1 + (last - first) // 200
            instants = sorted({*changes, *(calendar.start(number) for number in range(first, last, step))})
            before = None
            for instant in instants:
                number = calendar.index(instant)
                assert calendar.start(number) <= instant < calendar.start(number + 1), (zone, calendar, instant)
                assert before is None or number >= before, (zone, calendar, instant)
                if number != before:
                    start = calendar.start(number)
                    assert calendar.index(start) == number, (zone, calendar, instant)
                    assert calendar.index(start - 1) < number, (zone, calendar, instant)
                before = number


@pytest.mark.parametrize(
    ("day", "hours"), [("2026-03-29", 23), ("2026-10-25", 25), ("2026-07-01", 24)], ids=["spring", "autumn", "summer"]
)
def test_a_day_is_one_window_however_many_hours_it_has(day: str, hours: int) -> None:
    calendar = Calendar.of("day", "Europe/Berlin")
    number = calendar.index(at(f"{day}T12:00", "Europe/Berlin"))
    assert calendar.start(number) == at(f"{day}T00:00", "Europe/Berlin")
    assert calendar.start(number + 1) - calendar.start(number) == hours * HOUR_MS


def test_a_midnight_that_comes_twice_begins_one_day() -> None:
    """The clocks of Havana go from 01:00 back to 00:00: the day begins with the first of the two."""
    calendar = Calendar.of("day", "America/Havana")
    first, second = (at("2026-11-01T00:00", "America/Havana", fold) for fold in (0, 1))
    assert second - first == HOUR_MS
    assert calendar.start(calendar.index(second)) == first


def test_a_midnight_that_does_not_exist_begins_the_day_where_the_clocks_go_on() -> None:
    """The clocks of Beirut go from 00:00 on to 01:00."""
    calendar = Calendar.of("day", "Asia/Beirut")
    start = calendar.start(calendar.index(at("2026-03-29T12:00", "Asia/Beirut")))
    assert datetime.fromtimestamp(start / 1000, ZoneInfo("Asia/Beirut")).isoformat() == "2026-03-29T01:00:00+03:00"


def test_a_day_that_a_zone_has_skipped_holds_no_instant() -> None:
    calendar = Calendar.of("day", "Pacific/Apia")
    before, after = (calendar.index(at(f"2011-12-{day}T12:00", "Pacific/Apia")) for day in (29, 31))
    assert after - before == 2
    assert calendar.start(before + 1) == calendar.start(after)


@pytest.mark.parametrize(
    ("every", "on", "instant", "start"),
    [
        ("month", 31, "2026-02-28T00:00", "2026-02-28T00:00"),
        ("month", 31, "2026-03-30T23:59", "2026-02-28T00:00"),
        ("month", 31, "2028-02-29T00:00", "2028-02-29T00:00"),
        ("month", None, "2026-02-28T00:00", "2026-02-01T00:00"),
        ("week", None, "2026-11-17T08:00", "2026-11-16T00:00"),
        ("week", "sunday", "2026-11-17T08:00", "2026-11-15T00:00"),
        ("week", 6, "2026-11-15T00:00", "2026-11-15T00:00"),
        ("year", None, "2026-11-17T08:00", "2026-01-01T00:00"),
        ("year", "04-01", "2026-03-31T23:59", "2025-04-01T00:00"),
        ("year", "02-29", "2026-11-17T08:00", "2026-02-28T00:00"),
        ("hour", None, "2026-11-17T08:59", "2026-11-17T08:00"),
        (timedelta(hours=12), None, "2026-11-17T18:00", "2026-11-17T12:00"),
    ],
)
def test_a_window_begins_on_the_day_that_was_asked_for(
    every: str | timedelta, on: str | int | None, instant: str, start: str
) -> None:
    calendar = Calendar.of(every, on=on)
    assert calendar.start(calendar.index(at(instant))) == at(start)


def test_hours_begin_with_the_local_hour_in_zones_with_half_hours() -> None:
    calendar = Calendar.of("hour", "Asia/Kolkata")
    assert calendar.start(calendar.index(at("2026-11-17T08:59", "Asia/Kolkata"))) == at(
        "2026-11-17T08:00", "Asia/Kolkata"
    )


@pytest.mark.parametrize("every", [*UNITS, timedelta(minutes=90)])
@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
def test_a_text_says_all_of_a_calendar(every: str | timedelta, zone: str) -> None:
    zone = "UTC" if isinstance(every, timedelta) else zone
    time = None if every == "hour" or isinstance(every, timedelta) else "09:30"
    days: dict[object, str | int] = {"week": "friday", "month": 15, "year": "04-06"}
    for calendar in (Calendar.of(every, zone), Calendar.of(every, zone, time, days.get(every))):
        assert Calendar.parse(calendar.text) == calendar
        assert Calendar.of(calendar.text) == calendar


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"every": "fortnight"}, "every"),
        ({"every": timedelta(0)}, "every"),
        ({"every": timedelta(microseconds=1500)}, "every"),
        ({"every": timedelta(hours=1), "at": "09:00"}, "at"),
        ({"every": timedelta(hours=1), "tz": "Europe/Berlin"}, "tz"),
        ({"every": "hour", "at": "00:30"}, "at"),
        ({"every": "hour", "on": 3}, "on"),
        ({"every": "day", "on": 3}, "on"),
        ({"every": "day", "at": "9:00"}, "at"),
        ({"every": "day", "at": "24:00"}, "at"),
        ({"every": "day", "tz": "Europe/Atlantis"}, "tz"),
        ({"every": "day", "tz": "../etc/passwd"}, "tz"),
        ({"every": "day", "tz": 3}, "tz"),
        ({"every": "week", "on": "someday"}, "on"),
        ({"every": "week", "on": 7}, "on"),
        ({"every": "month", "on": 0}, "on"),
        ({"every": "month", "on": 32}, "on"),
        ({"every": "month", "on": "last"}, "on"),
        ({"every": "year", "on": 4}, "on"),
        ({"every": "year", "on": "13-01"}, "on"),
        ({"every": "day@UTC,when=now"}, "every"),
    ],
)
def test_what_is_wrong_with_a_calendar_is_named(given: dict[str, object], field: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Calendar.of(**given)  # type: ignore[arg-type]
    assert caught.value.field == field


def test_an_instant_before_1970_has_a_window() -> None:
    calendar = Calendar.of("month")
    instant = round(datetime(1969, 12, 31, tzinfo=UTC).timestamp() * 1000)
    assert calendar.index(instant) == -1
