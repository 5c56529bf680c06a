"""Windows by cron expressions: cronsim says when they fire, and their numbers follow each other."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import given, settings, strategies as st

from zae_limiter import Limit, ValidationError, ZAELimiterError
from zae_limiter.core import cron as crons
from zae_limiter.core.calendar import Calendar
from zae_limiter.core.validation import MissingCronsim
from zae_limiter.records.config import decode, encode
from zae_limiter.records.keys import system_config

EXPRESSIONS = [
    "0 9 * * 1-5",
    "*/7 * * * *",
    "30 2 * * *",
    "0,30 1-3 * * *",
    "0 0 31 * *",
    "15 1-3 L * *",
    "0 0 LW * *",
    "0 12 13 * 5",
    "0 0 * * MON#2",
    "0 0 * * 5L",
    "59 23 1 1 *",
    "0 0 29 2 *",
]
ZONES = ["UTC", "Europe/Berlin", "America/Havana", "Australia/Lord_Howe", "Asia/Kathmandu", "Pacific/Apia"]
START = datetime(2026, 1, 1, tzinfo=UTC)


def ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


@pytest.mark.parametrize("expression", EXPRESSIONS)
@pytest.mark.parametrize("year", [1971, 1999, 2026, 2399])
def test_windows_begin_when_cronsim_says_so(expression: str, year: int) -> None:
    """A thousand firings, or those of two hundred years, one number after the other."""
    calendar = Calendar.of(cron=expression)
    start = datetime(year, 1, 1, tzinfo=UTC) - timedelta(milliseconds=1)
    number = calendar.index(ms(start))
    for moment in islice(CronSim(expression, start), 1000):
        number += 1
        assert calendar.start(number) == ms(moment)
        assert calendar.index(ms(moment) - 1) == number - 1
        assert calendar.index(ms(moment)) == number
        if moment.year > year + 200:
            break


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_in_a_zone_they_begin_by_its_clocks(expression: str, zone: str) -> None:
    """Compared with cronsim on days without a change of the clocks, on which it follows the rules of Debian."""
    calendar, tz = Calendar.of(cron=expression, tz=zone), ZoneInfo(zone)
    for moment in islice(CronSim(expression, START.astimezone(tz)), 2000):
        if moment.year > 2126:
            break
        midnight = datetime(moment.year, moment.month, moment.day, tzinfo=tz)
        if midnight.utcoffset() == (midnight + timedelta(days=1)).utcoffset():
            assert calendar.start(calendar.index(ms(moment))) == ms(moment)
            assert calendar.index(ms(moment) - 1) == calendar.index(ms(moment)) - 1


@settings(max_examples=300)
@given(
    st.sampled_from(EXPRESSIONS),
    st.sampled_from(ZONES),
    st.lists(st.integers(-(10**12), 4 * 10**12), min_size=2, max_size=10),
)
def test_numbers_never_fall(expression: str, zone: str, instants: list[int]) -> None:
    calendar = Calendar.of(cron=expression, tz=zone)
    before = None
    for instant in sorted(instants):
        number = calendar.index(instant)
        assert calendar.start(number) <= instant < calendar.start(number + 1)
        assert calendar.index(calendar.start(number)) == number
        assert before is None or number >= before
        before = number


@pytest.mark.parametrize(
    ("day", "hours"), [("2026-03-29", (1, 1, 1, 1.5)), ("2026-10-25", (0, 0.5, 1, 3.5))], ids=["skipped", "repeated"]
)
def test_times_that_clocks_skip_or_repeat(day: str, hours: tuple[float, ...]) -> None:
    """In Berlin: 02:00 and 02:30 begin at the end of the gap; of two the first counts, and the window is longer."""
    calendar = Calendar.of(cron="0,30 2,3 * * *", tz="Europe/Berlin")
    midnight = ms(datetime.fromisoformat(f"{day}T00:00Z"))
    first = calendar.index(midnight - 1) + 1
    found = [calendar.start(first + number) for number in range(4)]
    expected = [midnight + round(each * 3_600_000) for each in hours]
    if day == "2026-10-25":
        expected = [midnight, midnight + 1_800_000, midnight + 7_200_000, midnight + 9_000_000]
    assert found == expected


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("0 9 * *", "five fields"),
        ("0 0 9 * * *", "five fields"),
        ("@daily", "five fields"),
        (7, "five fields"),
        ("61 * * * *", "Bad minute"),
        ("0 9 * * 1-x", "Bad day-of-week"),
        ("0 0 30 2 *", "Bad day-of-month"),
        ("0 0 * 2 MON#5", "once in ten years"),
    ],
)
def test_what_is_no_expression(expression: Any, reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        Limit.quota("tpd", 5, cron=expression)


@pytest.mark.parametrize("more", [{"every": "hour"}, {"at": "09:00"}, {"on": 5}])
def test_it_cannot_be_combined(more: Any) -> None:
    with pytest.raises(ValidationError, match="cannot be combined with cron"):
        Limit.quota("tpd", 5, cron="0 9 * * *", **more)


def test_texts_and_records() -> None:
    limit = Limit.quota("tpd", 5, cron=" 0,30  9 * * mon-fri", tz="Europe/Berlin", rollover=2)
    assert limit.calendar is not None
    assert limit.calendar.text == "cron(0,30 9 * * MON-FRI)@Europe/Berlin"
    assert limit.refill_period_seconds == (3 * 24 * 60 - 30) * 60
    assert Calendar.parse(limit.calendar.text) == limit.calendar
    assert Limit.from_dict(limit.to_dict()) == limit
    assert Limit.quota("tpd", 5, every=limit.calendar.text, rollover=2) == limit
    image: dict[str, Any] = {**encode((limit,)), "config_version": 1}
    assert decode(system_config("ns"), image).limits == (limit,)


def test_without_cronsim_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for a stored limit, which is not called damaged."""
    limit = Limit.quota("tpd", 5, cron="0 4 * * 3")
    monkeypatch.setitem(sys.modules, "cronsim", None)
    crons.parse_cron.cache_clear()
    monkeypatch.setattr("zae_limiter.records.config.parse_calendar", Calendar.parse)
    image: dict[str, Any] = {**encode((limit,)), "config_version": 1}
    with pytest.raises(ZAELimiterError, match=r"pip install 'zae-limiter\[cron\]'") as raised:
        decode(system_config("ns"), image)
    assert type(raised.value) is MissingCronsim
