"""Watching thresholds: a write to a bucket gets the guards by which one write alone crosses each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..core.alerts import PARTS, Alert, cross_quota, cross_rate
from ..core.bucket import MILLI, between
from .bucket import stored_rule
from .level import ANCHOR, NEWEST

if TYPE_CHECKING:
    from ..core.alerts import Crossing
    from ..core.limit import Limit
    from .algebra import Image, Write
    from .level import Level, Slot

_FAR = 2**62


def watch(level: Level, image: Image | None, write: Write, now_ms: int) -> tuple[Write, tuple[Alert, ...]]:
    """Return a write that takes from a bucket last seen as ``image``, guarded by its thresholds, and what it crosses.

    A write that only gives back crosses nothing. Of a bucket that is kept under another limit nothing is watched until
    it is moved.
    """
    guards, put = list(write.guards), dict(write.put)
    alerts: list[Alert] = []
    slots = level.slots if image is None else level.slots_of(image)
    now_ms = put.get(NEWEST, now_ms) if ANCHOR in put else now_ms
    for limit in level.limits:
        slot = slots[limit.name]
        if slot.marks is None or not _is_taken(write, image, slot):
            continue
        seen = _find_levels(level, image, write, limit.name, slot, now_ms)
        if seen is None:
            continue
        before, after, since, since_after = seen
        crossing = _cross(slot, image, before, after, now_ms)
        if slot.tk not in put:
            change = write.add[slot.tk]
            place = next(place for place, guard in enumerate(guards) if guard[0] == slot.tk)
            guards[place] = _narrow(guards[place], crossing, since, since_after + change)
        if crossing.state is not None:
            if image is not None and slot.al in image:
                guards.append((slot.al, "=", image[slot.al]))
            put[slot.al] = crossing.state
        alerts += _describe(level, limit, slot, crossing, after, now_ms)
    return write._replace(guards=tuple(guards), put=put), tuple(alerts)


def _is_taken(write: Write, image: Image | None, slot: Slot) -> bool:
    """Return whether a write takes something of a limit."""
    before = 0 if image is None else image.get(slot.tc, 0)
    return bool(write.add.get(slot.tc, 0) > 0 or write.put.get(slot.tc, before) > before)


def _find_levels(
    level: Level, image: Image | None, write: Write, name: str, slot: Slot, now_ms: int
) -> tuple[int, int, int, int] | None:
    """Return the level before a write and after it, as seen, and what was produced since the anchor before and after.

    None where the bucket is kept under another limit than the one that is watched, and stays so.
    """
    rule = slot.rule
    old = None if image is None else stored_rule(image, name, level.shard)
    if image is None or old is None:
        since_after = between(rule, write.put.get(ANCHOR, now_ms), now_ms)
        return rule.capacity, write.put[slot.tk] + since_after, 0, since_after
    since = since_after = between(old, image[ANCHOR], now_ms)
    if ANCHOR in write.put:
        since_after = between(rule, write.put[ANCHOR], now_ms)
    elif old != rule:
        return None
    tokens = image[slot.tk]
    left = write.put[slot.tk] if slot.tk in write.put else tokens + write.add[slot.tk]
    return min(rule.capacity, tokens + since), left + since_after, since, since_after


def _cross(slot: Slot, image: Image | None, before: int, after: int, now_ms: int) -> Crossing:
    assert slot.marks is not None  # it is watched
    calendar = slot.rule.calendar
    if calendar is None:
        return cross_rate(slot.marks, before, after)
    state = 0 if image is None else image.get(slot.al, 0)
    return cross_quota(slot.marks, after, state, calendar.index(now_ms))


def _narrow(guard: tuple[str, str, Any], crossing: Crossing, since: int, change: int) -> tuple[str, str, Any]:
    """Return a guard of tokens that also keeps the levels before and after the write within bounds.

    ``since`` makes a level before of the tokens, ``change`` a level after.
    """
    attr, op, value = guard
    low, high = {"between": value, ">=": (value, _FAR), "<=": (-_FAR, value), "=": (value, value)}[op]
    low = max(low, crossing.before[0] - since, crossing.after[0] - change)
    high = min(high, crossing.before[1] - since, crossing.after[1] - change)
    if low < -_FAR // 2:
        return (attr, "<=", high)
    return (attr, ">=", low) if high > _FAR // 2 else (attr, "between", (low, high))


def _describe(level: Level, limit: Limit, slot: Slot, crossing: Crossing, after: int, now_ms: int) -> list[Alert]:
    assert slot.marks is not None  # it is watched
    whole = limit.capacity * MILLI
    used = (slot.rule.capacity - after) * whole // slot.rule.capacity // MILLI
    whose = (level.entity_id, level.resource, limit.name)
    thresholds = [slot.marks.thresholds[place] / PARTS for place in crossing.crossed]
    return [Alert(*whose, threshold, used, limit, now_ms) for threshold in thresholds]
