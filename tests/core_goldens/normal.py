"""Outputs as plain values, which JSON can hold.

Two writes are the same if they do the same under the same conditions. So the order of attributes does not count, and of
guards only what they say together:

    ``> 4`` is ``>= 5``, and ``< 4`` is ``<= 3``: stored numbers are whole
    ``= 5`` and ``between (5, 5)`` are the same, if the value is a whole number
    several bounds of one attribute are one interval

Nothing else is taken for the same: not a bound that always holds, nor an addition of 0.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from zae_limiter import LimitStatus, RateLimitExceeded
    from zae_limiter.core.alerts import Alert
    from zae_limiter.records.algebra import Guards, Write

_SPANS: dict[str, Callable[[Any], tuple[int | None, int | None]]] = {
    "=": lambda value: (value, value),
    ">": lambda value: (value + 1, None),
    ">=": lambda value: (value, None),
    "<": lambda value: (None, value - 1),
    "<=": lambda value: (None, value),
    "between": lambda value: value,
}


def guards(conditions: Guards) -> dict[str, Any]:
    """Return the interval of each attribute that is bounded by whole numbers, and all other conditions, sorted."""
    intervals: dict[str, list[int | None]] = {}
    others = set()
    for attr, op, value in conditions:
        ends = value if op == "between" else (value,)
        if op not in _SPANS or not all(type(end) is int for end in ends):
            others.add((op,) if op in ("absent", "present") else (attr, op, value))
            continue
        low, high = _SPANS[op](value)
        least, most = intervals.get(attr, (None, None))
        lows, highs = ([end for end in pair if end is not None] for pair in ((low, least), (high, most)))
        intervals[attr] = [max(lows, default=None), min(highs, default=None)]
    found: dict[str, Any] = dict(intervals)
    return found | ({"": sorted(map(list, others))} if others else {})


def write(given: Write | None) -> Any:
    """Return a write: its key, guards and changes, without those that are empty."""
    if given is None:
        return None
    fields = {
        "at": given.key.pk,
        "guards": guards(given.guards),
        "put": dict(given.put),
        "add": dict(given.add),
        "remove": sorted(set(given.remove)),
        "expires": given.expires_at_ms,
        "delete": given.delete,
    }
    return {name: value for name, value in fields.items() if value not in ({}, [], None, False)}


def writes(given: Iterable[Write]) -> list[Any]:
    """Return writes in the order of their keys."""
    return [write(each) for each in sorted(given, key=lambda each: each.key)]


def alerts(given: Iterable[Alert]) -> list[Any]:
    """Return the thresholds that were crossed."""
    return [
        [alert.limit_name, alert.threshold, alert.used, repr(alert.limit), alert.instant_ms, str(alert.resets_at)]
        for alert in given
    ]


def status(given: LimitStatus) -> dict[str, Any]:
    """Return a status, without what its limit says."""
    return {
        "limit": f"{given.entity_id} {given.resource} {given.limit_name} {given.limit.capacity}",
        "available": given.available,
        "requested": given.requested,
        "exceeded": given.exceeded,
        "retry": given.retry_after_seconds,
        "floor": given.floor,
        "instant": given.instant_ms,
        "credit": given.credit,
        "resets": given.resets_at_ms,
    }


def refusal(given: RateLimitExceeded | None) -> Any:
    """Return a refusal: its kind, its statuses, and when to try again."""
    if given is None:
        return None
    return {
        "error": type(given).__name__,
        "retry": given.retry_after_seconds,
        "statuses": [status(each) for each in given.statuses],
    }


def error(given: Exception) -> dict[str, str]:
    """Return an error: its kind and its message, damaged values in order."""
    message = re.sub(
        r"(?<=invalid values: ).*?(?=\. )", lambda found: ", ".join(sorted(found[0].split(", "))), str(given)
    )
    return {"error": type(given).__name__, "message": message}


def line(value: Any) -> str:
    """Return a value as one line, the same for equal values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=_plain)


def _plain(value: Any) -> Any:
    """Return what JSON does not know as what it knows."""
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    return repr(value)
