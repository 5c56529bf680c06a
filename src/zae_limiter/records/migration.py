"""Moving a bucket: to the limits and the config in force, if these have changed since it was written, or to an anchor.

The anchor strictly grows, so that a client that still holds the old one loses the race and looks again.
"""

from __future__ import annotations

from ..core.change import Change, Drawn, Shortfall
from ..core.credits import HeldLots, draw_with_credits
from ..core.production import FAR, MILLI, Amounts
from ..core.tokens import TokenLimit, draw
from . import keys, pressure
from .algebra import Image, Key, Write, drop_none
from .bucket import all_tokens, carry_over, latest_instant
from .charging import REACH, Shortfalls, put_expiry_off, write_of
from .level import ANCHOR, CHANGES, CONFIG_VERSION, CREDITS, MADE, NEWEST, BucketLimits, token_fields
from .lots import held_lots, lots_of
from .parked import first_level, park
from .slot_table import SLOTS
from .slots import drop_expired_slots, drop_other_kind, shapes_for, shorten_slots


def migrate(
    level: BucketLimits, image: Image, cost: Amounts, now_ms: int, changes: int = 1, spends_credits: bool = True
) -> Change | Shortfalls:
    """Return the change that moves the bucket to the limits in force and takes tokens, or what it lacks.

    Credit and slots that have expired are dropped; what an allowance does not have is taken from credits if
    ``spends_credits``. Slots are taken by `slots.note_taken`.
    """
    clock_ms, now_ms = now_ms, latest_instant(image, now_ms)
    change, missing = _begin(image, max(now_ms, image[ANCHOR] + 1), now_ms), []
    put, stored = change.put, all_tokens(image, level.shard)
    put |= drop_none({"cascade": level.cascade, "parent_id": level.parent_id})
    put |= {} if level.version is None else {CONFIG_VERSION: max(level.version, image[CONFIG_VERSION])}
    _migrate_slots(level, image, change, clock_ms)
    for name, limit in level.token_limits_of(image).items():
        old, current = stored.get(name), limit
        held = first_level(image, limit.at, limit.rule, now_ms) if old is None else old.tokens
        carried = (0, held) if old is None else carry_over(level, image, name, old.rule, limit.rule, now_ms)
        if name in cost and limit.rule.is_idle(now_ms):
            current, put[limit.at.window] = limit.begin(now_ms), now_ms
        lots = held_lots(image, name, now_ms) if CREDITS in image and spends_credits and not level.bypassed else ()
        drawn = held, *carried, current.rule.produced_between(put[ANCHOR], now_ms)
        if not _migrate_limit(change, image, name, current, drawn, cost.get(name), lots):
            missing.append(Shortfall(name, cost[name] + limit.floor > limit.rule.capacity and not lots))
    if missing:
        return missing
    for name in stored.keys() - level.token_limits.keys() - level.slot_limits.keys():
        change.add[token_fields(name).tokens] = stored[name].since(put[ANCHOR])
    if level.usage_days and level.charges(cost):
        change.add[CHANGES] = changes
    if level.partition_writes:
        put.update(pressure.moved_attributes(level, image, now_ms, put[ANCHOR]))
    gone = [] if level.parent_id is not None else ["parent_id"]
    gone += [attr for limit in level.token_limits.values() for attr in limit.unused if attr in image]
    change.remove = [*gone, *drop_expired(image, change, now_ms), *change.remove]
    put_expiry_off(change, level, image, now_ms, owes=True)
    return change


def _begin(image: Image, anchor: int, now_ms: int) -> Change:
    """Return a change that moves a bucket to an anchor as of ``now_ms``."""
    change = Change({attr: image[attr] for attr in (ANCHOR, MADE) if attr in image})
    change.put = {ANCHOR: anchor, NEWEST: now_ms, MADE: image.get(MADE, image[ANCHOR] * MILLI)}
    return change


def _migrate_slots(level: BucketLimits, image: Image, change: Change, now_ms: int) -> None:
    """Move concurrency limits to those in force, and drop slots that have expired by ``now_ms``."""
    if SLOTS not in image and not level.slot_limits:
        return
    change.put.update(shapes_for(level, image))
    change.remove += drop_other_kind(level, image)
    park(level, image, change)
    drop_expired_slots(image, change, now_ms)
    shorten_slots(image, change, now_ms)


def _migrate_limit(
    change: Change, image: Image, name: str, limit: TokenLimit, drawn: Drawn, need: int | None, lots: HeldLots
) -> bool:
    """Move one limit to the anchor of the change and take ``need``, from ``lots`` what the allowance does not have.

    Return whether it fits. No other client can take from a limit that the bucket does not have yet.
    """
    at = limit.at
    change.put.update(limit.stated)
    if limit.announces and at.announced not in image:
        change.put[at.announced] = 0
    if need:
        change.drawn[name] = drawn
    fits = draw_with_credits(change, at, drawn, lots, need, limit.floor, limit.soft)
    if at.tokens not in image:
        change.bounds.pop(at.tokens, None)
        # Lots only have to hold what was counted on: more does no harm, as nothing else was there.
        for attr in [attr for attr, _ in lots if attr in change.bounds]:
            low, high = change.bounds[attr]
            change.bounds[attr] = low if low > 0 else high, FAR
        change.put[at.consumed] = image.get(at.consumed, 0) + change.add.pop(at.consumed, 0)
    return fits


def move_anchor(image: Image, shard: int, at_ms: int, now_ms: int) -> Change:
    """Return the change that moves a bucket to a new anchor and nothing else, but drops credit expired by now.

    It is moved as of ``at_ms``, or the newest instant that it knows of: borders of schedules after that are still to
    come for the client that charges it next.
    """
    at_ms = latest_instant(image, at_ms)
    change = _begin(image, max(at_ms, image[ANCHOR] + 1), at_ms)
    if image.get(NEWEST) == at_ms:
        del change.put[NEWEST]
    anchor = change.put[ANCHOR]
    change.add = pressure.moved_counters(image, anchor)
    for name, held in all_tokens(image, shard).items():
        numbers = held.tokens, held.since(at_ms), held.rule.capacity, held.rule.produced_between(anchor, at_ms)
        draw(change, token_fields(name), numbers, None)
    change.remove = [*drop_expired(image, change, latest_instant(image, now_ms))]
    return change


def stamp(key: Key, image: Image, version: int) -> Write | None:
    """Return the write that stamps a bucket with a config version; None if it was charged under that already.

    Every client with an older config loses its next race, and reads the config again. The level of each limit stays
    what it was at any instant: the next charge moves the bucket to other limits, as of their change.
    """
    if image[CONFIG_VERSION] >= version:
        return None
    newest_ms = latest_instant(image, 0)
    anchor = max(newest_ms, image[ANCHOR] + 1)
    change = _begin(image, anchor, newest_ms)
    change.put[CONFIG_VERSION] = version
    stored = all_tokens(image, keys.parse_bucket_pk(key.pk).shard_id)
    shifts = {token_fields(name).tokens: held.since(anchor) for name, held in stored.items()}
    change.add = pressure.moved_counters(image, anchor) | shifts
    return write_of(change, key, image)


def drop_expired(image: Image, change: Change, now_ms: int) -> tuple[str, ...]:
    """Return the attributes to remove for credit that has expired; note in a change how many lots are left."""
    if CREDITS not in image:
        return ()
    lots = lots_of(image)
    expired = tuple([lot.attr for lot in lots if lot.expires_ms <= now_ms])
    if len(expired) == len(lots):
        return (*expired, CREDITS)
    change.put[CREDITS] = len(lots) - len(expired)
    return expired


def is_far_from_anchor(image: Image, shard: int, now_ms: int) -> bool:
    """Return whether a limit has produced more than half of what may lie between an anchor and a decision."""
    return any(held.since(now_ms) > REACH // 2 for held in all_tokens(image, shard, reserved=True).values())
