"""Schedules: which of several entries is in force at an instant, and when that changes.

The cron expression of an entry is a pattern, not a time at which something fires: the entry is in force in every minute
that matches it, by the clocks of its zone. Of several entries that match, the first is in force; of none, the limit
itself. So what is in force is a pure function of the instant, days on which clocks are changed included.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from functools import lru_cache
from typing import Any, TypeAlias

from .calendar import Calendar, find_clock_change, find_zone
from .cron import Cron, parse_cron
from .validation import ValidationError

_MOST_SCALE = 1_000_000
_DAY = timedelta(1)
_LAST_DAY = date(9990, 1, 1)
"""Nobody asks what comes after it, and days end a little later."""
_MOST_DAYS = 10 * 366
_ABSOLUTE = ("capacity", "refill_amount", "refill_period_seconds")
_FIELDS = ("cron", "tz", "scale", *_ABSOLUTE)
_FORMS = "cron(EXPRESSION)@ZONE,scale=FACTOR, or with capacity=, refill_amount= and refill_period_seconds="


def check_factor(factor: object) -> None:
    """Raise `ValidationError` unless it is a number above 0, at most a million."""
    if type(factor) not in (int, float) or not 0 < factor <= _MOST_SCALE:  # type: ignore[operator]  # a number by then
        raise ValidationError("scale", factor, f"must be a factor above 0, at most {_MOST_SCALE:,}")


@dataclass(frozen=True, slots=True)
class ScheduleEntry:
    """What a limit is while a cron pattern matches: scaled, or with other numbers.

    Args:
        cron: The pattern, of five fields: ``* 9-17 * * 1-5`` is from 9:00 to 18:00 on weekdays.
        tz: The time zone of the pattern.
        scale: The factor for the capacity and the refill. Instead of the others.
        capacity: The capacity; of a quota, the tokens of one window.
        refill_amount: The tokens that are added per period, of a rate.
        refill_period_seconds: The length of the period, of a rate.
    """

    cron: str
    tz: str = "UTC"
    scale: float | None = None
    capacity: int | None = None
    refill_amount: int | None = None
    refill_period_seconds: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.cron, str):
            raise ValidationError("cron", self.cron, "must be a pattern of five fields, e.g. '* 9-17 * * 1-5'")
        calendar = Calendar.of(tz=self.tz, cron=self.cron)
        object.__setattr__(self, "cron", calendar.cron)
        absolute = [field for field in _ABSOLUTE if getattr(self, field) is not None]
        if bool(absolute) == (self.scale is not None):
            raise ValidationError("schedule", self.cron, f"needs either a scale or some of {', '.join(_ABSOLUTE)}")
        if self.scale is not None:
            check_factor(self.scale)

    @property
    def text(self) -> str:
        """Return the form in which it is stored and shown, which `parse` reads.

        >>> ScheduleEntry("* 9-17 * * 1-5", "Europe/Berlin", scale=0.5).text
        'cron(* 9-17 * * 1-5)@Europe/Berlin,scale=0.5'
        """
        given = [f",{name}={value!r}" for name, value in self.to_dict().items() if name not in ("cron", "tz")]
        return f"cron({self.cron})@{self.tz}{''.join(given)}"

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by name that are set."""
        return {field: getattr(self, field) for field in _FIELDS if getattr(self, field) is not None}

    @staticmethod
    def reset(cron: str, tz: str = "UTC") -> Calendar:
        """Return windows that begin when ``cron`` fires by the clocks of ``tz``, for `Limit.with_reset_schedule`."""
        return Calendar.of(tz=tz, cron=cron)

    @classmethod
    def parse(cls, text: str) -> ScheduleEntry:
        """Return the entry of a text as `text` writes it. Raise `ValidationError` for anything else."""
        pattern, _, rest = text.partition(")@")
        tz, *options = rest.split(",")
        given: dict[str, Any] = dict(option.partition("=")[::2] for option in options)
        if not pattern.startswith("cron(") or not given.keys() <= {"scale", *_ABSOLUTE}:
            raise ValidationError("schedule", text, f"must be written {_FORMS}")
        try:
            numbers = {name: float(value) if name == "scale" else int(value) for name, value in given.items()}
        except ValueError:
            raise ValidationError("schedule", text, f"must have numbers: {_FORMS}") from None
        return cls(pattern.removeprefix("cron("), tz or "UTC", **numbers)  # type: ignore[arg-type]  # checked there

    def matches(self, instant_ms: int) -> bool:
        """Return whether its pattern matches the minute of an instant."""
        local = datetime.fromtimestamp(instant_ms / 1000, find_zone(self.tz))
        return parse_cron(self.cron).matches(local.date(), local.hour * 60 + local.minute)


def read_schedule(entries: Iterable[str | Mapping[str, Any]]) -> tuple[ScheduleEntry, ...]:
    """Return the entries of texts, or of dictionaries, as `ScheduleEntry` writes them. Raise `ValidationError`."""
    if not entries:
        return ()
    if isinstance(entries, str | Mapping) or not isinstance(entries, Iterable):
        raise ValidationError("schedule", entries, "must be a list of texts or dictionaries")
    return tuple(ScheduleEntry.parse(each) if isinstance(each, str) else _read_entry(each) for each in entries)


def _read_entry(entry: object) -> ScheduleEntry:
    if not isinstance(entry, Mapping) or "cron" not in entry or not entry.keys() <= {*_FIELDS}:
        reason = f"must be a dictionary with cron and some of {', '.join(_FIELDS[1:])}, or a text"
        raise ValidationError("schedule", entry, reason)
    return ScheduleEntry(**entry)


Schedule: TypeAlias = tuple[ScheduleEntry, ...]


def check_schedule(entries: object) -> Schedule:
    """Return entries as a tuple. Raise `ValidationError` unless they are `ScheduleEntry` values."""
    given = tuple(entries) if isinstance(entries, Iterable) else (entries,)
    for entry in given:
        if not isinstance(entry, ScheduleEntry) or not isinstance(entries, Iterable):
            raise ValidationError("schedule", entry, "must be a list of ScheduleEntry values")
    return given


def check_new_schedule(entries: object) -> Schedule:
    """Return entries as `check_schedule` does. Raise `ValidationError` also for one that can never be in force."""
    given = check_schedule(entries)
    for place, entry in enumerate(given):
        pattern = parse_cron(entry.cron)
        for earlier in given[:place]:
            above = parse_cron(earlier.cron)
            if above.is_always or (earlier.tz == entry.tz and above.covers(pattern)):
                reason = f"is never in force: {earlier.text} comes first, and matches whenever it does"
                raise ValidationError("schedule", entry.text, reason)
    return given


def find_active(entries: Schedule, instant_ms: int) -> ScheduleEntry | None:
    """Return the entry in force at an instant; None where it is the limit itself."""
    return next((entry for entry in entries if entry.matches(instant_ms)), None)


def next_change(entries: Schedule, instant_ms: int) -> int | None:
    """Return the first instant after another from which something else is in force; None if that never comes."""
    flips = (_find_flip(entry, instant_ms, 1) for entry in _decisive(entries, instant_ms))
    return min((flip for flip in flips if flip is not None), default=None)


def last_change(entries: Schedule, instant_ms: int) -> int | None:
    """Return since when the same has been in force as at an instant; None if it always was."""
    flips = (_find_flip(entry, instant_ms, -1) for entry in _decisive(entries, instant_ms))
    return max((flip for flip in flips if flip is not None), default=None)


def _decisive(entries: Schedule, instant_ms: int) -> Schedule:
    """Return the entry in force and those before it: what is in force changes where one of their patterns flips."""
    active = find_active(entries, instant_ms)
    return entries if active is None else entries[: entries.index(active) + 1]


def _find_flip(entry: ScheduleEntry, instant_ms: int, step: int) -> int | None:
    """Return the first instant after another at which the pattern begins or ceases to match, if ``step`` is 1.

    If it is -1, return the last one up to that instant.
    """
    cron, state = parse_cron(entry.cron), entry.matches(instant_ms)
    day = datetime.fromtimestamp(instant_ms / 1000, find_zone(entry.tz)).date()
    for number in range(0 if cron.is_always else _MOST_DAYS):
        if number == 0 or cron.matches_day(day) or cron.matches_day(day - _DAY):
            borders = _find_borders(entry, day)
            place = bisect_right(borders, instant_ms)
            for border in borders[place:] if step > 0 else reversed(borders[:place]):
                if entry.matches(border if step > 0 else border - 1) != state:
                    return border
        if step > 0 and day >= _LAST_DAY:
            break
        day += step * _DAY
    return None


@lru_cache(maxsize=4096)
def _find_borders(entry: ScheduleEntry, day: date) -> tuple[int, ...]:
    """Return the instants of a local day at which a pattern may begin or cease to match, and some besides."""
    zone = find_zone(entry.tz)
    minutes = {0, 1440} | (_find_edges(parse_cron(entry.cron)) if parse_cron(entry.cron).matches_day(day) else set())
    shown = [
        datetime.combine(day + minute // 1440 * _DAY, time(minute // 60 % 24, minute % 60, fold=fold), zone)
        for minute in minutes
        for fold in (0, 1)
    ]
    instants = {round(local.timestamp() * 1000) for local in shown}
    instants.add(find_clock_change(min(instants), max(instants), zone))
    return tuple(sorted(instants))


def _find_edges(cron: Cron) -> set[int]:
    """Return the minutes of a day at which a run of matching minutes begins, or is over."""
    minutes = set(cron.minutes)
    return {minute for minute in minutes if minute - 1 not in minutes} | {
        minute + 1 for minute in minutes if minute + 1 not in minutes
    }
