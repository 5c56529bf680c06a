"""Moving a bucket to the limits and the config in force, where these have changed since it was written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from ..core.bucket import MILLI, between
from ..core.draw import AnchoredLimit, draw
from ..core.give_back import MOST_CREDITED
from ..core.names import INFRASTRUCTURE_LIMIT
from . import pressure
from .algebra import NEVER, TTL, Image, Write, applied
from .bucket import full_at, latest_instant, stored_names, stored_rule
from .charging import REACH, is_expiring
from .level import ANCHOR, CHANGES, CONFIG_VERSION, MADE, NEWEST, Level, Slot, attribute

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..core.bucket import Rule

Draft: TypeAlias = tuple[list[tuple[str, str, Any]], dict[str, Any], dict[str, int]]
"""The guards, puts and adds of a write that is being put together."""


def reshape(level: Level, image: Image, cost: Mapping[str, int], now_ms: int, changes: int = 1) -> Write | None:
    """Return the write that moves the bucket to the limits in force and takes ``cost``; None if it does not fit.

    The anchor strictly grows, so that whoever still holds the old one loses the race and looks again.
    """
    rf = image[ANCHOR]
    now_ms = latest_instant(image, now_ms)
    anchor = max(now_ms, rf + 1)
    guards: list[tuple[str, str, Any]] = [(attr, "=", image[attr]) for attr in (ANCHOR, MADE) if attr in image]
    put: dict[str, Any] = {ANCHOR: anchor, NEWEST: now_ms, MADE: _find_made(image), "cascade": level.cascade}
    add: dict[str, int] = {}
    if level.parent_id is not None:
        put["parent_id"] = level.parent_id
    if level.version is not None:
        put[CONFIG_VERSION] = max(level.version, image[CONFIG_VERSION])
    for name, slot in level.slots_of(image).items():
        old = stored_rule(image, name, level.shard)
        if not _reshape_limit((guards, put, add), image, old, slot, cost.get(name), now_ms, anchor):
            return None
    for name in stored_names(image) - level.slots.keys() - {INFRASTRUCTURE_LIMIT}:
        rule = stored_rule(image, name, level.shard)
        if rule is not None:
            tk, cr, hi = (attribute(name, field) for field in ("tk", "cr", "hi"))
            made = between(rule, rf, anchor)
            add |= {tk: made, cr: _limit_credit(image.get(cr, 0), made), hi: 1}
    if level.usage_days and level.charges(cost):
        add[CHANGES] = changes
    if level.partition_writes:
        put.update(pressure.moved_attributes(level, image, now_ms, anchor))
    rates = tuple(slot.ca for slot in level.slots.values() if slot.rule.calendar is None and slot.ca in image)
    remove = rates if level.parent_id is not None else ("parent_id", *rates)
    write = Write(level.key, tuple(guards), put, add, remove, now_ms + level.lifetime_ms, seen=image)
    return keep_in_debt(level, image, write)


def _reshape_limit(
    draft: Draft, image: Image, old: Rule | None, slot: Slot, cost: int | None, now_ms: int, anchor: int
) -> bool:
    """Add what a reshape as of ``now_ms`` does to one limit that was kept under ``old``. Return whether it fits."""
    guards, put, add = draft
    need, rule = cost or 0, slot.rule
    after = between(rule, anchor, now_ms)
    put.update(slot.shape)
    if slot.al and slot.al not in image:
        put[slot.al] = 0
    if old is None:
        put |= {slot.tk: rule.capacity - after - need, slot.tc: image.get(slot.tc, 0) + need, slot.cr: 0, slot.hi: 0}
        if slot.ov and need > rule.capacity:
            add[slot.ov] = need - rule.capacity
        return cost is None or need + slot.least <= rule.capacity
    lower = old._replace(capacity=min(old.capacity, rule.capacity))
    limit = AnchoredLimit.of(lower, image[ANCHOR], (slot.tk, slot.tc, slot.hi), slot.least, now_ms, slot.ov)
    since = limit.since(now_ms)
    guard = draw(limit, image[slot.tk], cost, now_ms, put, add, after)
    if guard is None:
        return False
    guards.append(guard)
    add[slot.cr] = _limit_credit(image.get(slot.cr, 0), since - after + max(0, old.capacity - rule.capacity))
    add[slot.hi] = 1
    return True


def _limit_credit(before: int, more: int) -> int:
    """Return what to add to a counter of credits; it starts again if it has outgrown its bound.

    More than the bound at once is as good as the bound: no bucket holds as much.
    """
    more = min(more, MOST_CREDITED)
    return more - before if before > MOST_CREDITED else more


def _find_made(image: Image) -> int:
    """Return when a bucket was made; a later instant if a counter starts again, lest older charges compare with it."""
    made: int = image.get(MADE, image[ANCHOR] * MILLI)
    outgrown = any(image[attr] > MOST_CREDITED for attr in image if attr.startswith("b_") and attr.endswith("_cr"))
    return made + 1 if outgrown else made


def keep_in_debt(level: Level, image: Image, write: Write) -> Write:
    """Return the write with an expiry not before the bucket is full: an earlier one would forgive debt."""
    if not is_expiring(level, image):
        return write._replace(expires_at_ms=NEVER if TTL in image else None)
    after = applied(image, write)
    assert after is not None  # it does not delete
    return write._replace(expires_at_ms=max(write.expires_at_ms or 0, full_at(after)))


def is_far_from_anchor(image: Image, shard: int, now_ms: int) -> bool:
    """Return whether a limit has produced more than half of what may lie between an anchor and a decision."""
    rules = (stored_rule(image, name, shard) for name in stored_names(image))
    return any(rule is not None and between(rule, image[ANCHOR], now_ms) > REACH // 2 for rule in rules)
