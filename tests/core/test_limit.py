"""Limits: which can be made."""

from __future__ import annotations

from typing import Any

import pytest

from zae_limiter import Limit, ScheduleEntry, ValidationError


def test_a_limit_that_cannot_be_represented_is_refused_at_construction() -> None:
    assert Limit.per_second("rpm", 10**12).capacity == 10**12
    for arguments in ((10**12 + 1, 1, 1), (1, 10**12 + 1, 1), (1, 1, 11 * 366 * 86_400), (1, 1, 0)):
        with pytest.raises(ValidationError):
            Limit.custom("rpm", *arguments)


def make(**fields: Any) -> Limit:
    return Limit("rpm", 10, 10, 60, **fields)


@pytest.mark.parametrize("bad", [None, 5, True, "abc", ["x"], [None], {"cron": "* * * * *"}, object()])
def test_a_schedule_that_is_none_is_refused(bad: Any) -> None:
    with pytest.raises(ValidationError, match="must be a list of ScheduleEntry values"):
        make(schedule=bad)
    with pytest.raises(ValidationError, match="must be a list of ScheduleEntry values"):
        make().with_schedule(bad)
    assert make(schedule=[]) == make()


@pytest.mark.parametrize("bad", [5, "day@UTC", ["x"], object(), False, ""])
def test_a_calendar_that_is_none_is_refused(bad: Any) -> None:
    with pytest.raises(ValidationError, match=r"must be a Calendar; use Limit\.quota"):
        make(calendar=bad)


@pytest.mark.parametrize("empty", [None, [], ()])
def test_what_has_no_floors_and_no_alerts_is_a_plain_limit(empty: Any) -> None:
    assert make(floors=empty, alerts=empty) == make()
    assert repr(make(floors=empty, alerts=empty)) == repr(make())


CALENDARS: list[Any] = [5, [], {}, "", "day", "month@UTC,on=" + "9" * 5_000]
SCHEDULES: list[Any] = [5, True, "x", {"cron": "* * * * *"}, [{}], [None], [5], [[]], ["x"]]
ENTRIES: list[Any] = [{}, {"x": 1, "scale": 1}, {"cron": None, "scale": 1}, {"tz": None, "scale": 1}]
NO_LIMITS: list[Any] = [
    *(None, 5, [], "x", {}),
    *({"calendar": calendar} for calendar in CALENDARS),
    *({"schedule": schedule} for schedule in SCHEDULES),
    *({"schedule": [{"cron": "* * * * *", **entry}]} for entry in ENTRIES),
]


@pytest.mark.parametrize("bad", NO_LIMITS, ids=lambda bad: repr(bad)[:50])
def test_a_dictionary_that_is_no_limit_is_refused(bad: Any) -> None:
    filled = {**make().to_dict(), **bad} if isinstance(bad, dict) and bad else bad
    with pytest.raises(ValidationError) as caught:
        Limit.from_dict(filled)
    assert caught.value.field
    assert caught.value.reason


@pytest.mark.parametrize("bad", [None, "2", 0, -1, float("nan"), float("inf"), 10**30, True])
def test_a_factor_that_is_none_is_refused(bad: Any) -> None:
    with pytest.raises(ValidationError, match="must be a factor above 0, at most 1,000,000"):
        make().scale(bad)
    with pytest.raises(ValidationError, match="must be a factor above 0, at most 1,000,000"):
        make(schedule=[ScheduleEntry("* * * * *", scale=bad, capacity=1 if bad is None else None)]).scale(bad)


@pytest.mark.parametrize("bad", [None, "0", 1.5, float("nan"), 10**30, -(10**30), True])
def test_an_instant_that_is_none_is_refused(bad: Any) -> None:
    for tz in ("Pacific/Kiritimati", "Pacific/Pago_Pago"):
        limit = make().with_schedule([ScheduleEntry("0 * * * *", tz, capacity=2)])
        with pytest.raises(ValidationError, match="instant_ms"):
            limit.in_force(bad)
        for far in (-50_000_000_000_000, 250_000_000_000_000):
            assert limit.in_force(far).schedule == ()
