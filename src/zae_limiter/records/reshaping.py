"""Moving a bucket to the limits and the config in force, where these have changed since it was written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from ..core.bucket import MILLI, between
from ..core.credit import Division, divide, draw_with_credits, suffices
from ..core.draw import AnchoredLimit, draw
from ..core.names import INFRASTRUCTURE_LIMIT
from . import keys, pressure
from .algebra import NEVER, TTL, Image, Write, apply_write
from .bucket import carry_over, full_at, latest_instant, stored_names, stored_rule
from .charging import REACH, is_expiring
from .level import ANCHOR, CHANGES, CONFIG_VERSION, CREDITS, MADE, NEWEST, Level, TokenLimit, attribute
from .lots import held_lots, lots_of
from .parked import first_level, park
from .slot_table import SLOTS
from .slots import SlotChanges, drop_expired_slots, drop_other_kind, shapes_for, shorten_slots

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..core.borders import Carried
    from ..core.bucket import Rule
    from ..core.credit import HeldLots
    from .algebra import Key

Draft: TypeAlias = tuple[list[tuple[str, str, Any]], dict[str, Any], dict[str, int]]
"""The guards, puts and adds of a write that is being put together."""


def reshape(
    level: Level,
    image: Image,
    cost: Mapping[str, int],
    now_ms: int,
    changes: int = 1,
    spends_credits: bool = True,
) -> Write | None:
    """Return the write that moves the bucket to the limits in force and takes tokens; None if they are not there.

    The anchor strictly grows, so that whoever still holds the old one loses the race and looks again. Credit and slots
    that have expired are dropped; what an allowance does not have is taken from credits if ``spends_credits``.
    Slots are taken by `slots.with_taken`.
    """
    slots = _reshape_slots(level, image, now_ms)
    now_ms, has_lots = latest_instant(image, now_ms), CREDITS in image and spends_credits and not level.bypassed
    anchor = max(now_ms, image[ANCHOR] + 1)
    guards: list[tuple[str, str, Any]] = [(attr, "=", image[attr]) for attr in (ANCHOR, MADE) if attr in image]
    guards += slots.guards
    made = image.get(MADE, image[ANCHOR] * MILLI)
    put = {ANCHOR: anchor, NEWEST: now_ms, MADE: made, "cascade": level.cascade, **slots.put}
    add: dict[str, int] = {}
    if level.parent_id is not None:
        put["parent_id"] = level.parent_id
    if level.version is not None:
        put[CONFIG_VERSION] = max(level.version, image[CONFIG_VERSION])
    for name, entry in level.token_limits_of(image).items():
        old, calendar, current = stored_rule(image, name, level.shard), entry.rule.calendar, entry
        if calendar is not None and name in cost and calendar.is_idle(now_ms):
            current, put[entry.ws] = entry.begin(now_ms), now_ms
        lots = held_lots(image, name, now_ms) if has_lots else ()
        change = None if old is None else carry_over(level, image, name, old, entry.rule, now_ms)
        if not _reshape_limit((guards, put, add), image, old, current, cost.get(name), now_ms, anchor, lots, change):
            return None
    for name in stored_names(image) - {*level.token_limits, *level.slot_limits, INFRASTRUCTURE_LIMIT}:
        add |= _move_limit(image, name, stored_rule(image, name, level.shard), anchor)
    if level.usage_days and level.charges(cost):
        add[CHANGES] = changes
    if level.partition_writes:
        put.update(pressure.moved_attributes(level, image, now_ms, anchor))
    gone = tuple(attr for entry in level.token_limits.values() for attr in entry.unused if attr in image)
    orphaned = () if level.parent_id is not None else ("parent_id",)
    remove = (*orphaned, *gone, *drop_expired(image, put, now_ms), *slots.remove)
    write = Write(level.key, tuple(guards), put, add, remove, now_ms + level.lifetime_ms, seen=image)
    return keep_in_debt(level, image, write)


def _reshape_slots(level: Level, image: Image, now_ms: int) -> SlotChanges:
    """Return what a reshape as of ``now_ms`` does to concurrency limits and to slots that have expired."""
    if SLOTS not in image and not level.slot_limits:
        return SlotChanges((), {}, {})
    stated = SlotChanges((), shapes_for(level, image), {}, drop_other_kind(level, image))
    freed = drop_expired_slots(image, now_ms).merge(shorten_slots(image, now_ms))
    return park(level, image, stated).merge(freed)


def _reshape_limit(
    draft: Draft,
    image: Image,
    old: Rule | None,
    entry: TokenLimit,
    cost: int | None,
    now_ms: int,
    anchor: int,
    lots: HeldLots = (),
    change: Carried | None = None,
) -> bool:
    """Add what a reshape as of ``now_ms`` does to one limit that was kept under ``old``. Return whether it fits.

    What the allowance does not have is taken from ``lots``. ``change`` is how the limit has come to its level.
    """
    guards, put, add = draft
    need, rule = cost or 0, entry.rule
    after = between(rule, anchor, now_ms)
    put.update(entry.shape)
    put |= {entry.al: 0} if entry.al and entry.al not in image else {}
    if old is None or change is None:
        held = first_level(image, entry.tk, rule, now_ms)
        put |= {entry.tk: held - after, entry.tc: image.get(entry.tc, 0) + need}
        return cost is None or _take_from_new(draft, entry, held, need, lots)
    limit = AnchoredLimit.of(old, image[ANCHOR], (entry.tk, entry.tc), entry.least, now_ms, entry.ov)
    limit = limit.carried(change.ceiling, change.produced)
    if cost is not None and lots and not suffices(limit, image[entry.tk], need, now_ms):
        drawn = draw_with_credits(limit, image[entry.tk], lots, need, now_ms, put, add, after)
        if drawn is None:
            return False
        guards += drawn
    else:
        guard = draw(limit, image[entry.tk], cost, now_ms, put, add, after)
        if guard is None:
            return False
        guards.append(guard)
    return True


def _take_from_new(draft: Draft, entry: TokenLimit, held: int, need: int, lots: HeldLots) -> bool:
    """Take from a limit that is new in its bucket and holds ``held``; the rest from lots. Return whether it fits."""
    guards, put, add = draft
    found = Division(need, need, {}, {})
    if need + max(entry.least, 0) > held:
        divided = divide(need, entry.least, held, lots)
        if divided is None:
            return False
        found = divided
    put[entry.tk] -= found.allowance
    if entry.ov and found.allowance > max(0, held):
        add[entry.ov] = found.allowance - max(0, held)
    add |= {attr: -amount for attr, amount in found.taken.items()}
    guards += [(attr, ">=", amount) for attr, amount in found.needed.items()]
    return True


def move_anchor(key: Key, image: Image, shard: int, at_ms: int, now_ms: int) -> Write:
    """Return the write that moves a bucket to a new anchor and changes nothing else, but drops credit expired by now.

    So whoever holds the old anchor loses the race and looks again. It is moved as of ``at_ms``, or the newest instant
    that it knows of: borders of schedules after that are still to come for whoever charges it next.
    """
    at_ms = latest_instant(image, at_ms)
    anchor = max(at_ms, image[ANCHOR] + 1)
    guards: list[tuple[str, str, Any]] = [(attr, "=", image[attr]) for attr in (ANCHOR, MADE) if attr in image]
    put: dict[str, Any] = {ANCHOR: anchor, MADE: image.get(MADE, image[ANCHOR] * MILLI)}
    if image.get(NEWEST) != at_ms:
        put[NEWEST] = at_ms
    add = pressure.moved_counters(image, anchor)
    for name in sorted(stored_names(image) - {INFRASTRUCTURE_LIMIT}):
        rule = stored_rule(image, name, shard)
        if rule is not None:
            tk, tc = (attribute(name, field) for field in ("tk", "tc"))
            limit, after = AnchoredLimit.of(rule, image[ANCHOR], (tk, tc), 0, at_ms), between(rule, anchor, at_ms)
            guard = draw(limit, image[tk], None, at_ms, put, add, after)
            assert guard is not None  # nothing always fits
            guards.append(guard)
    return Write(key, tuple(guards), put, add, drop_expired(image, put, latest_instant(image, now_ms)), seen=image)


def stamp(key: Key, image: Image, version: int) -> Write | None:
    """Return the write that stamps a bucket with a config version; None if it was charged under that already.

    Every client with an older config loses its next race, and reads the config again. The level of each limit stays
    what it was at any instant: the next charge moves the bucket to other limits, as of their change.
    """
    if image[CONFIG_VERSION] >= version:
        return None
    newest_ms = latest_instant(image, 0)
    anchor, shard = max(newest_ms, image[ANCHOR] + 1), keys.parse_bucket_pk(key.pk).shard_id
    guards = tuple((attr, "=", image[attr]) for attr in (ANCHOR, MADE) if attr in image)
    made = image.get(MADE, image[ANCHOR] * MILLI)
    put = {ANCHOR: anchor, NEWEST: newest_ms, MADE: made, CONFIG_VERSION: version}
    add = pressure.moved_counters(image, anchor)
    for name in stored_names(image) - {INFRASTRUCTURE_LIMIT}:
        add |= _move_limit(image, name, stored_rule(image, name, shard), anchor)
    return Write(key, guards, put, add, seen=image)


def _move_limit(image: Image, name: str, rule: Rule | None, anchor: int) -> dict[str, int]:
    """Return what a new anchor adds to a limit whose rule stays as it is: its level is the same at any instant."""
    return {} if rule is None else {attribute(name, "tk"): between(rule, image[ANCHOR], anchor)}


def drop_expired(image: Image, put: dict[str, Any], now_ms: int) -> tuple[str, ...]:
    """Return the attributes to remove for credit that has expired; note in ``put`` how many lots are left."""
    if CREDITS not in image:
        return ()
    lots = lots_of(image)
    expired = tuple([lot.attr for lot in lots if lot.expires_ms <= now_ms])
    if len(expired) == len(lots):
        return (*expired, CREDITS)
    put[CREDITS] = len(lots) - len(expired)
    return expired


def keep_in_debt(level: Level, image: Image, write: Write) -> Write:
    """Return the write with an expiry not before the bucket is full: an earlier one would forgive debt."""
    after = apply_write(image, write)
    assert after is not None  # it does not delete
    if not is_expiring(level, after):
        return write._replace(expires_at_ms=NEVER if TTL in image else None)
    return write._replace(expires_at_ms=max(write.expires_at_ms or 0, full_at(after)))


def is_far_from_anchor(image: Image, shard: int, now_ms: int) -> bool:
    """Return whether a limit has produced more than half of what may lie between an anchor and a decision."""
    rules = (stored_rule(image, name, shard) for name in stored_names(image))
    return any(rule is not None and between(rule, image[ANCHOR], now_ms) > REACH // 2 for rule in rules)
