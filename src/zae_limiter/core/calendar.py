"""Calendars: windows of time that follow each other without a gap, each with a number.

A calendar is two pure functions: `Calendar.index`, the number of the window that holds an instant, and
`Calendar.start`, the first instant of a window. A day, week, month or year begins when the clocks of its zone have
reached its local time for the first time: at the end of the gap where they skip it, at the first of two where they
repeat it. So does each window of a cron expression, one for every time at which it fires. So ``index`` never falls, and
``start`` of the window of an instant is never later than the instant.

A window may also begin with its first use. Such a calendar is that of one bucket, whose window began at ``phase_ms``;
after its end windows of the same length are counted on, until somebody uses it again: then another one begins.

A day that a zone has skipped as a whole (Samoa had no 30 December 2011) is a window without length, which holds none.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING

from . import cron as crons
from .names import FIRST_USE
from .validation import ValidationError

if TYPE_CHECKING:
    from datetime import tzinfo

UNITS = ("hour", "day", "week", "month", "year")
WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_MINUTE_MS = 60_000
_HOUR_MS = 3_600_000
_DAY_MS = 86_400_000
_EPOCH = date(1970, 1, 1)
_MONDAY = 3
"""The days from Monday, 29 December 1969, to the epoch."""
_FAR_MS = 2**52
"""An instant after all that have a date."""
_MOST_MS = 10 * 366 * _DAY_MS
_LONGEST_MS = {"hour": _HOUR_MS, "day": _DAY_MS, "week": 7 * _DAY_MS, "month": 31 * _DAY_MS, "year": 366 * _DAY_MS}
_SPANS = {"ms": 1, "s": 1_000, "min": _MINUTE_MS, "h": _HOUR_MS, "d": _DAY_MS}
_SPAN = re.compile(r"([1-9]\d{0,12})(ms|s|min|h|d)\Z")
_CRON = re.compile(r"cron\(([^()@]*)\)\Z")
_ISO_AT = re.compile(r"([01]\d|2[0-3]):([0-5]\d)\Z")
_MONTH_DAYS = (0, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
"""The most days of each month, from January, 1, on."""
_MONTH_DAY = re.compile(r"(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])\Z")


@dataclass(frozen=True, slots=True)
class Calendar:
    """Windows of one ``unit`` of local time, or of ``period_ms`` each, counted from 1970.

    Args:
        unit: One of `UNITS`, ``period`` for windows of the same length, ``cron`` or `FIRST_USE`.
        tz: The name of the time zone.
        at_minutes: The minutes after local midnight at which days and longer windows begin.
        month: The month in which a year begins.
        day: The day on which a window begins: 0 to 6 for a week, 1 to 31 for a month or a year.
        period_ms: The length of a window of the units ``period`` and `FIRST_USE`.
        cron: The expression of the unit ``cron``, which begins a window whenever it fires.
        phase_ms: The instant at which the window of a bucket has begun with its first use; None before that.
    """

    unit: str = "day"
    tz: str = "UTC"
    at_minutes: int = 0
    month: int = 1
    day: int = 1
    period_ms: int = 0
    cron: str = ""
    phase_ms: int | None = None

    @classmethod
    def of(
        cls,
        every: str | timedelta | None = None,
        tz: str = "UTC",
        at: str | None = None,
        on: str | int | None = None,
        cron: str | None = None,
        reset_after: timedelta | None = None,
    ) -> Calendar:
        """Return a calendar from what users write. Raise `ValidationError` that names the field.

        ``every`` is one of `UNITS`, ``day`` if None, a `timedelta` of whole milliseconds, or all of it as a `text`.
        ``tz`` names a zone of the tz database. ``at`` is the local time ``HH:MM`` at which a day, week, month or year
        begins. ``on`` is the day: of a week its name or its number from Monday, 0, on; of a month 1 to 31; of a year
        ``MM-DD``. Where a month is shorter, it is its last day. ``cron`` is an expression of five fields instead of all
        these but ``tz``, ``reset_after`` the length of a window that begins with its first use, instead of all of them.
        """
        other_tz = None if tz == "UTC" else tz
        if reset_after is not None:
            _refuse("cannot be combined with reset_after", tz=other_tz, every=every, at=at, on=on, cron=cron)
            if not isinstance(reset_after, timedelta):
                raise ValidationError("reset_after", reset_after, "must be a timedelta, e.g. timedelta(hours=5)")
            return cls(FIRST_USE, period_ms=_measure("reset_after", reset_after))
        if cron is not None:
            _refuse("cannot be combined with cron", every=every, at=at, on=on)
            _check_zone(tz)
            expression = crons.normalize(cron)
            crons.parse_cron(expression)
            return cls("cron", tz, cron=expression)
        if isinstance(every, str) and "@" in every and (tz, at, on) == ("UTC", None, None):
            return cls.parse(every, strict=True)
        every = "day" if every is None else every
        if isinstance(every, timedelta):
            period_ms = _measure("every", every)
            reason = "is for hours, days, weeks, months and years, not for a timedelta"
            _refuse(reason, tz=other_tz, at=at, on=on)
            return cls("period", period_ms=period_ms)
        if every not in UNITS:
            raise ValidationError("every", every, f"must be a timedelta or one of {', '.join(UNITS)}")
        _check_zone(tz)
        if every == "hour":
            _refuse("is not for hours, which begin with the hour", at=at, on=on)
        month, day = _parse_day(every, on)
        return cls(every, tz, _parse_time(at), month, day)

    @classmethod
    def parse(cls, text: str, *, strict: bool = False) -> Calendar:
        """Return the calendar of a text as `text` writes it. Raise `ValidationError` for anything else.

        A day that no year has, which earlier versions have stored, is the last of its month unless ``strict``.

        >>> Calendar.parse("month@Europe/Berlin,at=09:00,on=31")
        Calendar(unit='month', tz='Europe/Berlin', at_minutes=540, month=1, day=31, period_ms=0, cron='', phase_ms=None)
        """
        every, has_zone, rest = text.partition("@")
        zone, *options = rest.split(",")
        given = dict(option.partition("=")[::2] for option in options)
        if not has_zone or not given.keys() <= {"at", "on"}:
            forms = "UNIT@ZONE[,at=HH:MM][,on=DAY], e.g. day@Europe/Berlin, or cron(EXPRESSION)@ZONE"
            raise ValidationError("every", text, f"must be written {forms}")
        if (cron := _CRON.match(every)) is not None:
            return cls.of(None, zone or "UTC", given.get("at"), given.get("on"), cron[1])
        span = _SPAN.match(every)
        if span and zone == FIRST_USE and not given:
            return cls.of(reset_after=timedelta(milliseconds=int(span[1]) * _SPANS[span[2]]))
        length = timedelta(milliseconds=int(span[1]) * _SPANS[span[2]]) if span else every
        on = given.get("on")
        day = int(on) if on is not None and on.isdecimal() and len(on) <= 2 else on
        if not strict and isinstance(day, str) and (found := _MONTH_DAY.match(day)):
            day = f"{found[1]}-{min(int(found[2]), _MONTH_DAYS[int(found[1])]):02}"
        return cls.of(length, zone or "UTC", given.get("at"), day)

    @property
    def text(self) -> str:
        """Return the form in which it is stored and shown, which `parse` reads.

        >>> Calendar.of("week", on="sunday").text
        'week@UTC,on=sunday'
        """
        if self.unit == "period":
            return f"{self.period_ms}ms@"
        if self.unit == FIRST_USE:
            return f"{self.period_ms}ms@{FIRST_USE}"
        if self.unit == "cron":
            return f"cron({self.cron})@{self.tz}"
        at = f",at={self.at_minutes // 60:02}:{self.at_minutes % 60:02}" if self.at_minutes else ""
        on = ""
        if self.unit == "week" and self.day:
            on = f",on={WEEKDAYS[self.day]}"
        elif self.unit == "month" and self.day > 1:
            on = f",on={self.day}"
        elif self.unit == "year" and (self.month, self.day) != (1, 1):
            on = f",on={self.month:02}-{self.day:02}"
        return f"{self.unit}@{self.tz}{at}{on}"

    @property
    def longest_ms(self) -> int:
        """The length of the longest window, give or take a shift of the clocks."""
        if self.unit == "cron":
            return crons.parse_cron(self.cron).longest_minutes * _MINUTE_MS
        return self.period_ms or _LONGEST_MS[self.unit]

    def index(self, instant_ms: int) -> int:
        """Return the number of the window that holds an instant."""
        if self.period_ms:
            return (instant_ms - (self.phase_ms or 0)) // self.period_ms
        found = self._estimate(instant_ms)
        while _start(self, found) > instant_ms:
            found -= 1
        while _start(self, found + 1) <= instant_ms:
            found += 1
        return found

    def start(self, index: int) -> int:
        """Return the first instant of a window."""
        return index * self.period_ms + (self.phase_ms or 0) if self.period_ms else _start(self, index)

    def begin(self, start_ms: int | None) -> Calendar:
        """Return the calendar of a bucket whose window has begun with its first use at ``start_ms``."""
        return self if self.unit != FIRST_USE or start_ms == self.phase_ms else replace(self, phase_ms=start_ms)

    def identify(self, instant_ms: int) -> int:
        """Return a number for the window of an instant that is greater than those of all before it, in any bucket."""
        return self.phase_ms or 0 if self.unit == FIRST_USE else self.index(instant_ms)

    def is_idle(self, instant_ms: int) -> bool:
        """Return whether a window begins with the first use from an instant on: none has begun, or it is over."""
        return self.unit == FIRST_USE and (self.phase_ms is None or instant_ms >= self.phase_ms + self.period_ms)

    def moment(self, instant_ms: int) -> datetime:
        """Return an instant in the time zone of the calendar."""
        return datetime.fromtimestamp(instant_ms / 1000, find_zone(self.tz))

    def _estimate(self, instant_ms: int) -> int:
        """Return the number of a window at most a few away from the one that holds an instant."""
        if self.unit == "hour":
            return instant_ms // _HOUR_MS
        if self.unit == "cron":
            local = self.moment(instant_ms)
            return crons.parse_cron(self.cron).number(local.date(), local.hour * 60 + local.minute)
        days = (instant_ms - self.at_minutes * _MINUTE_MS) // _DAY_MS
        if self.unit == "day":
            return days
        if self.unit == "week":
            return (days + _MONDAY - self.day) // 7
        near = _EPOCH + timedelta(days)
        return near.year - 1970 if self.unit == "year" else (near.year - 1970) * 12 + near.month - 1


@lru_cache(maxsize=4096)
def _start(calendar: Calendar, index: int) -> int:
    try:
        return _find_start(calendar, index, find_zone(calendar.tz))
    except (OverflowError, OSError, ValueError):  # a year that the calendar of the standard library does not have
        return _FAR_MS if index > 0 else -_FAR_MS


def _find_start(calendar: Calendar, index: int, zone: tzinfo) -> int:
    if calendar.unit == "hour":
        # The offset of the hour before decides, so that windows follow each other also where it changes by half hours.
        probe = datetime.fromtimestamp((index - 1) * 3_600, UTC)
        offset = zone.utcoffset(probe.astimezone(zone)) or timedelta()
        return index * _HOUR_MS - int(offset / timedelta(milliseconds=1)) % _HOUR_MS
    if calendar.unit == "cron":
        day, minutes = crons.parse_cron(calendar.cron).local_time(index)
    else:
        day, minutes = _first_day(calendar, index), calendar.at_minutes
    return _find_instant(datetime.combine(day, time(minutes // 60, minutes % 60), zone))


def _find_instant(local: datetime) -> int:
    """Return the first instant at which the clocks have reached a local time; the end of the gap where they skip it."""
    first, second = (round(local.replace(fold=fold).timestamp() * 1000) for fold in (0, 1))
    if first <= second:
        return first
    assert local.tzinfo is not None  # of the calendar
    return find_clock_change(second, first, local.tzinfo)


def find_clock_change(early_ms: int, late_ms: int, zone: tzinfo) -> int:
    """Return the first instant between two at which the clocks show another offset than at the first; else the last."""

    def offset(instant_ms: int) -> timedelta | None:
        return datetime.fromtimestamp(instant_ms / 1000, zone).utcoffset()

    before = offset(early_ms)
    return early_ms + bisect_left(range(early_ms, late_ms), True, key=lambda instant_ms: offset(instant_ms) != before)


def _first_day(calendar: Calendar, index: int) -> date:
    if calendar.unit == "day":
        return _EPOCH + timedelta(index)
    if calendar.unit == "week":
        return _EPOCH + timedelta(7 * index - _MONDAY + calendar.day)
    year, month = (index + 1970, calendar.month) if calendar.unit == "year" else divmod(index + 1970 * 12, 12)
    if calendar.unit == "month":
        month += 1
    following = date(year + month // 12, month % 12 + 1, 1)
    return date(year, month, min(calendar.day, (following - timedelta(1)).day))


@lru_cache(maxsize=1024)
def find_zone(name: str) -> tzinfo:
    """Return a time zone. Raise `ZoneInfoNotFoundError`, ValueError or OSError for a name that is none."""
    from zoneinfo import ZoneInfo

    return UTC if name == "UTC" else ZoneInfo(name)


def _refuse(reason: str, **given: object) -> None:
    """Raise `ValidationError` for the first argument that was given."""
    for field, value in given.items():
        if value is not None:
            raise ValidationError(field, value, reason)


def _check_zone(name: object) -> None:
    try:
        if not isinstance(name, str):
            raise ValueError
        find_zone(name)
    except (LookupError, ValueError, OSError):
        reason = "is no time zone known here, e.g. 'Europe/Berlin'; `pip install tzdata` where the system has none"
        raise ValidationError("tz", name, reason) from None


def _measure(field: str, length: timedelta) -> int:
    period_ms, rest = divmod(length, timedelta(milliseconds=1))
    if rest or not 0 < period_ms <= _MOST_MS:
        raise ValidationError(field, length, "must be whole milliseconds, at most ten years")
    return period_ms


def _parse_time(at: object) -> int:
    if at is None:
        return 0
    found = _ISO_AT.match(at) if isinstance(at, str) else None
    if found is None:
        raise ValidationError("at", at, "must be a local time HH:MM, e.g. '09:00'")
    return int(found[1]) * 60 + int(found[2])


def _parse_day(every: str, on: object) -> tuple[int, int]:
    """Return the month and the day on which a window begins."""
    if on is None:
        return 1, 0 if every == "week" else 1
    if every == "week":
        weekday = WEEKDAYS.index(on.lower()) if isinstance(on, str) and on.lower() in WEEKDAYS else on
        if type(weekday) is int and 0 <= weekday <= 6:
            return 1, weekday
        raise ValidationError("on", on, "must be a day of the week, e.g. 'monday', or 0 (Monday) to 6")
    if every == "month":
        if type(on) is int and 1 <= on <= 31:
            return 1, on
        raise ValidationError("on", on, "must be a day of the month, 1 to 31")
    found = _MONTH_DAY.match(on) if every == "year" and isinstance(on, str) else None
    if found is None:
        reason = "must be a day of the year MM-DD" if every == "year" else f"is not for every={every!r}"
        raise ValidationError("on", on, reason)
    month, day = int(found[1]), int(found[2])
    if day > _MONTH_DAYS[month]:
        raise ValidationError("on", on, f"is a day that no year has; the month ends on {month:02}-{_MONTH_DAYS[month]}")
    return month, day
