"""Settings that can never have an effect are refused; records that hold them can still be read."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from zae_limiter import Limit, ScheduleEntry, ValidationError
from zae_limiter.core.calendar import Calendar
from zae_limiter.core.limit import check_limits
from zae_limiter.records.config import decode, encode
from zae_limiter.records.keys import system_config

RATE = Limit.per_minute("rpm", 100)
OFFICE = ScheduleEntry("* 9-17 * * 1-5", "Europe/Berlin", scale=0.5)
SHADOWED = [
    (OFFICE, OFFICE),
    (OFFICE, ScheduleEntry("* 9-17 * * MON-FRI", "Europe/Berlin", scale=0.25)),
    (OFFICE, ScheduleEntry("0-29 10 * * 2", "Europe/Berlin", scale=0.25)),
    (ScheduleEntry("* * * * *", scale=2.0), OFFICE),
    (ScheduleEntry("* 1 * * *", scale=2.0), OFFICE, ScheduleEntry("30 1 29 2 *", scale=3.0)),
]
EFFECTIVE = [
    (ScheduleEntry("0-29 10 * * 2", "Europe/Berlin", scale=0.25), OFFICE),
    (OFFICE, ScheduleEntry("* 9-17 * * 1-5", "Asia/Tokyo", scale=0.5)),
    (OFFICE, ScheduleEntry("* 9-18 * * 1-5", "Europe/Berlin", scale=0.25)),
    (OFFICE, ScheduleEntry("* * * * *", scale=2.0)),
]


@pytest.mark.parametrize("entries", SHADOWED, ids=range(len(SHADOWED)))
def test_a_schedule_entry_that_is_never_in_force_is_refused(entries: tuple[ScheduleEntry, ...]) -> None:
    with pytest.raises(ValidationError, match=r"is never in force: .* comes first, and matches whenever it does"):
        RATE.with_schedule(entries)
    stored = Limit("rpm", 100, 100, 60, schedule=entries)
    with pytest.raises(ValidationError, match="is never in force"):
        check_limits([stored])
    image: dict[str, Any] = {**encode((stored,)), "config_version": 1}
    assert decode(system_config("ns"), image).limits == (stored,), "a stored one is read as it is"


@pytest.mark.parametrize("entries", EFFECTIVE, ids=range(len(EFFECTIVE)))
def test_a_schedule_entry_that_overlaps_an_earlier_one_is_accepted(entries: tuple[ScheduleEntry, ...]) -> None:
    assert check_limits([RATE.with_schedule(entries)])[0].schedule == entries


@pytest.mark.parametrize("rival", [{"cron": "0 9 * * *"}, {"reset_after": timedelta(hours=5)}], ids=["cron", "use"])
def test_a_unit_beside_another_kind_of_window_is_refused(rival: dict[str, Any]) -> None:
    for every in ("day", "month"):
        with pytest.raises(ValidationError, match=r"every = .*: cannot be combined with"):
            Limit.quota("tokens", 100, every=every, **rival)
    assert Limit.quota("tokens", 100, **rival).is_quota
    assert Limit.quota("tokens", 100) == Limit.quota("tokens", 100, every="day")


@pytest.mark.parametrize("on", ["02-30", "02-31", "04-31", "06-31", "09-31", "11-31"])
def test_a_day_that_no_year_has_is_refused(on: str) -> None:
    with pytest.raises(ValidationError, match=r"on = .*: is a day that no year has; the month ends on"):
        Limit.quota("tokens", 100, every="year", on=on)
    with pytest.raises(ValidationError, match="is a day that no year has"):
        Limit.quota("tokens", 100, every=f"year@UTC,on={on}")
    last = "02-29" if on < "03" else f"{on[:2]}-30"
    assert Calendar.parse(f"year@UTC,on={on}") == Calendar.of("year", on=last), "a stored one has the same windows"
