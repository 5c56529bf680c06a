"""Watching thresholds: a write to a bucket gets the guards by which one write alone crosses each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ..core.alerts import PARTS, Alert, cross_quota, cross_rate
from ..core.bucket import MILLI, between
from .bucket import carry_over, latest_instant, stored_rule
from .level import ANCHOR, NEWEST
from .parked import first_level

if TYPE_CHECKING:
    from ..core.alerts import Crossing
    from ..core.limit import Limit
    from .algebra import Image, Write
    from .level import Level, TokenLimit

_FAR = 2**62


def watch(level: Level, image: Image | None, write: Write, now_ms: int) -> tuple[Write, tuple[Alert, ...]]:
    """Return a write that takes from a bucket last seen as ``image``, guarded by its thresholds, and what it crosses.

    A write that only gives back crosses nothing. Of a bucket that is kept under another limit nothing is watched until
    it is moved.
    """
    guards, put = list(write.guards), dict(write.put)
    alerts: list[Alert] = []
    entries = level.token_limits if image is None else level.token_limits_of(image)
    now_ms = put.get(NEWEST, now_ms) if ANCHOR in put else now_ms
    for limit in level.limits:
        if limit.is_concurrency:
            continue
        entry = entries[limit.name]
        if entry.ws in put:  # its window begins with this write
            entry = entry.begin(put[entry.ws])
        if entry.marks is None or not _is_taken(write, image, entry):
            continue
        seen = _find_levels(level, image, write, limit.name, entry, now_ms)
        if seen is None:
            continue
        crossing = _cross(entry, image, seen, now_ms)
        if seen.place is not None:
            guards[seen.place] = _narrow(guards[seen.place], crossing, seen)
        if crossing.state is not None:
            if image is not None and entry.al in image:
                guards.append((entry.al, "=", image[entry.al]))
            put[entry.al] = crossing.state
        alerts += _describe(level, limit, entry, crossing, seen.after, now_ms)
    return write._replace(guards=tuple(guards), put=put), tuple(alerts)


def find_quiet_bounds(level: Level, image: Image, now_ms: int) -> dict[str, int]:
    """Return how much a charge has to leave of each limit with thresholds to cross none of them."""
    bounds = {}
    for name, entry in level.token_limits_of(image).items():
        if entry.marks is not None:
            calendar, announced = entry.rule.calendar, 0
            if calendar is not None:
                announced = entry.marks.count_announced(image[entry.al], calendar.identify(now_ms))
            bounds[name] = entry.marks.band(announced)[0]
    return bounds


def _is_taken(write: Write, image: Image | None, entry: TokenLimit) -> bool:
    """Return whether a write takes something of a limit."""
    before = 0 if image is None else image.get(entry.tc, 0)
    return bool(write.add.get(entry.tc, 0) > 0 or write.put.get(entry.tc, before) > before)


class _Levels(NamedTuple):
    """The level before a write and after it, as seen. Where it adds to the tokens, ``place`` is that of their guard.

    Then ``since`` makes the level before of the tokens, and ``change`` the level after.
    """

    before: int
    after: int
    since: int = 0
    change: int = 0
    place: int | None = None


def _find_levels(
    level: Level, image: Image | None, write: Write, name: str, entry: TokenLimit, now_ms: int
) -> _Levels | None:
    """Return what a write does to a limit; None where the bucket is kept under another limit, and stays so."""
    rule, tk, put = entry.rule, entry.tk, write.put
    old = None if image is None else stored_rule(image, name, level.shard)
    if image is None or old is None:
        before = first_level(image, tk, rule, now_ms)
        return _Levels(before, put[tk] + between(rule, put.get(ANCHOR, now_ms), now_ms))
    since = since_after = between(old, image[ANCHOR], now_ms)
    ceiling = rule.capacity
    if ANCHOR in put:
        now_ms = latest_instant(image, now_ms)  # as `reshape` decides
        since_after = between(rule, put[ANCHOR], now_ms)
        since, ceiling = carry_over(level, image, name, old, rule, now_ms)
    elif old != rule:
        return None
    if tk in put:
        return _Levels(min(ceiling, image[tk] + since), put[tk] + since_after)
    place = next(place for place, guard in enumerate(write.guards) if guard[0] == tk)
    low, high = _find_bounds(write.guards[place])
    tokens = max(low, min(high, image[tk]))  # a draw among others expects that these have taken since
    change = since_after + write.add.get(tk, 0)  # all of it may come from credits
    return _Levels(min(ceiling, tokens + since), tokens + change, since, change, place)


def _cross(entry: TokenLimit, image: Image | None, seen: _Levels, now_ms: int) -> Crossing:
    assert entry.marks is not None  # it is watched
    calendar = entry.rule.calendar
    if calendar is None:
        return cross_rate(entry.marks, seen.before, seen.after)
    state = 0 if image is None else image.get(entry.al, 0)
    return cross_quota(entry.marks, seen.after, state, calendar.identify(now_ms))


def _find_bounds(guard: tuple[str, str, Any]) -> tuple[int, int]:
    """Return the least and the most that a guard lets an attribute be."""
    _, op, value = guard
    bounds: dict[str, tuple[int, int]] = {">=": (value, _FAR), "<=": (-_FAR, value), "=": (value, value)}
    return value if op == "between" else bounds[op]


def _narrow(guard: tuple[str, str, Any], crossing: Crossing, seen: _Levels) -> tuple[str, str, Any]:
    """Return a guard of tokens that also keeps the levels before and after the write within bounds."""
    low, high = _find_bounds(guard)
    low = max(low, crossing.before[0] - seen.since, crossing.after[0] - seen.change)
    high = min(high, crossing.before[1] - seen.since, crossing.after[1] - seen.change)
    if low < -_FAR // 2:
        return (guard[0], "<=", high)
    return (guard[0], ">=", low) if high > _FAR // 2 else (guard[0], "between", (low, high))


def _describe(
    level: Level, limit: Limit, entry: TokenLimit, crossing: Crossing, after: int, now_ms: int
) -> list[Alert]:
    assert entry.marks is not None  # it is watched
    whole = limit.capacity * MILLI
    used = (entry.rule.capacity - after) * whole // entry.rule.capacity // MILLI
    whose = (level.entity_id, level.resource, limit.name)
    if entry.rule.calendar is not None:
        limit = limit.begin_window(entry.rule.calendar.phase_ms)
    thresholds = [entry.marks.thresholds[place] / PARTS for place in crossing.crossed]
    return [Alert(*whose, threshold, used, limit, now_ms) for threshold in thresholds]
