"""Checks of the parts of a limit: floors, thresholds, schedules and factors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from . import names
from .schedule import ScheduleEntry
from .validation import ValidationError


def read_schedule(entries: Iterable[str | Mapping[str, Any]]) -> tuple[ScheduleEntry, ...]:
    """Return the entries of texts, or of dictionaries, as `ScheduleEntry` writes them. Raise `ValidationError`."""
    if not entries:
        return ()
    from .schedule import ScheduleEntry

    if isinstance(entries, str | Mapping) or not isinstance(entries, Iterable):
        raise ValidationError("schedule", entries, "must be a list of texts or dictionaries")
    return tuple(ScheduleEntry.parse(each) if isinstance(each, str) else _read_entry(each) for each in entries)


def _read_entry(entry: object) -> ScheduleEntry:
    from .schedule import ScheduleEntry

    known = [field.name for field in fields(ScheduleEntry)]
    if not isinstance(entry, Mapping) or "cron" not in entry or not entry.keys() <= {*known}:
        reason = f"must be a dictionary with cron and some of {', '.join(known[1:])}, or a text"
        raise ValidationError("schedule", entry, reason)
    return ScheduleEntry(**entry)


MAX_SCALE = 1_000_000
"""The largest factor by which limits are scaled."""


def check_factor(factor: object) -> None:
    """Raise `ValidationError` unless it is a number above 0, at most `MAX_SCALE`."""
    if type(factor) not in (int, float) or not 0 < factor <= MAX_SCALE:  # type: ignore[operator]  # a number by then
        raise ValidationError("scale", factor, f"must be a factor above 0, at most {MAX_SCALE:,}")


def check_floors(floors: object) -> tuple[tuple[str, float], ...]:
    """Return floors as pairs sorted by priority. Raise `ValidationError` unless they are parts from 0 to below 1."""
    if not floors:
        return ()
    try:
        pairs = dict(floors)  # type: ignore[call-overload]  # what the except is for
    except (TypeError, ValueError):
        raise ValidationError(
            "floors", floors, "must map priorities to parts of the capacity: {'batch': 0.3}"
        ) from None
    for priority, part in pairs.items():
        names.limit_name(priority, "floors")
        if type(part) not in (int, float) or not 0 <= part < 1:
            raise ValidationError(f"floors[{priority!r}]", part, "must be a part of the capacity from 0 to below 1")
    return tuple(sorted(pairs.items()))


_MOST_ALERTS = 8


def check_alerts(alerts: object) -> tuple[float, ...]:
    """Return thresholds, sorted. Raise `ValidationError` unless they are at most eight parts of the capacity."""
    if alerts is None:
        return ()
    if not isinstance(alerts, (tuple, list)) or len(alerts) > _MOST_ALERTS:
        raise ValidationError("alerts", alerts, "must be a list of at most 8 parts of the capacity, e.g. (0.8, 0.95)")
    for part in alerts:
        if type(part) not in (int, float) or not 0 < part <= 1:
            raise ValidationError("alerts", part, "must be a part of the capacity above 0 and at most 1, e.g. 0.8")
        if abs(round(part * 1000) - part * 1000) > 1e-6:  # what a float cannot say exactly
            raise ValidationError("alerts", part, "must be in whole thousandths, e.g. 0.8 or 0.995")
    return tuple(sorted({round(float(part), 3) for part in alerts}))
