"""Moving a bucket: to the limits and the config in force, if these have changed since it was written, or to an anchor.

The anchor strictly grows, so that a client that still holds the old one loses the race and looks again.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..core.borders import Carried
from ..core.change import Change, Drawn, Shortfall
from ..core.credits import Division, HeldLots, divide, draw_with_credits
from ..core.names import INFRASTRUCTURE_LIMIT
from ..core.production import MILLI, Rule
from ..core.tokens import TokenLimit, draw
from . import keys, pressure
from .algebra import NEVER, TTL, Image, Key, Write, apply_write
from .bucket import carry_over, full_at, latest_instant, stored_names, stored_rule
from .charging import REACH, Refusal, is_expiring, write_of
from .level import ANCHOR, CHANGES, CONFIG_VERSION, CREDITS, MADE, NEWEST, BucketLimits, token_fields
from .lots import held_lots, lots_of
from .parked import first_level, park
from .slot_table import SLOTS
from .slots import drop_expired_slots, drop_other_kind, shapes_for, shorten_slots


def migrate(
    level: BucketLimits,
    image: Image,
    cost: Mapping[str, int],
    now_ms: int,
    changes: int = 1,
    spends_credits: bool = True,
) -> Change | Refusal:
    """Return the change that moves the bucket to the limits in force and takes tokens, or what it lacks.

    Credit and slots that have expired are dropped; what an allowance does not have is taken from credits if
    ``spends_credits``. Slots are taken by `slots.note_taken`.
    """
    clock_ms, now_ms = now_ms, latest_instant(image, now_ms)
    change, missing = _begin(image, max(now_ms, image[ANCHOR] + 1), now_ms), []
    anchor, put = change.put[ANCHOR], change.put
    put |= {"cascade": level.cascade} | ({} if level.parent_id is None else {"parent_id": level.parent_id})
    if level.version is not None:
        put[CONFIG_VERSION] = max(level.version, image[CONFIG_VERSION])
    _migrate_slots(level, image, change, clock_ms)
    for name, limit in level.token_limits_of(image).items():
        old, calendar, current = stored_rule(image, name, level.shard), limit.rule.calendar, limit
        carried = None if old is None else carry_over(level, image, name, old, limit.rule, now_ms)
        if calendar is not None and name in cost and calendar.is_idle(now_ms):
            current, put[limit.at.window] = limit.begin(now_ms), now_ms
        lots = held_lots(image, name, now_ms) if CREDITS in image and spends_credits and not level.bypassed else ()
        if not _migrate_limit(change, image, name, current, carried, cost.get(name), now_ms, lots):
            missing.append(Shortfall(name, cost[name] + limit.floor > limit.rule.capacity and not lots))
    if missing:
        return missing
    for name in stored_names(image) - {*level.token_limits, *level.slot_limits, INFRASTRUCTURE_LIMIT}:
        _carry_limit(change, image, name, stored_rule(image, name, level.shard), anchor)
    if level.usage_days and level.charges(cost):
        change.add[CHANGES] = changes
    if level.partition_writes:
        put.update(pressure.moved_attributes(level, image, now_ms, anchor))
    gone = [] if level.parent_id is not None else ["parent_id"]
    gone += [attr for limit in level.token_limits.values() for attr in limit.unused if attr in image]
    change.remove = [*gone, *drop_expired(image, change, now_ms), *change.remove]
    change.expires_ms = now_ms + level.lifetime_ms
    keep_in_debt(level, image, change)
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
    change: Change,
    image: Image,
    name: str,
    limit: TokenLimit,
    carried: Carried | None,
    need: int | None,
    now_ms: int,
    lots: HeldLots,
) -> bool:
    """Move one limit to the anchor of the change and take ``need``. Return whether it fits.

    ``carried`` is the way from its tokens to its level; None if the bucket does not have it yet. What the allowance
    does not have is taken from ``lots``.
    """
    at, rule, put = limit.at, limit.rule, change.put
    after = rule.produced_between(put[ANCHOR], now_ms)
    put.update(limit.stated)
    if limit.announces and at.announced not in image:
        put[at.announced] = 0
    if carried is None:
        held = first_level(image, at.tokens, rule, now_ms)
        if need:
            change.drawn[name] = Drawn(held, 0, held, after)
        put |= {at.tokens: held - after, at.consumed: image.get(at.consumed, 0) + (need or 0)}
        return need is None or _take_from_new(change, limit, held, need, lots)
    since, ceiling = carried
    if need:
        change.drawn[name] = Drawn(image[at.tokens], since, ceiling, after)
    tokens, floor = image[at.tokens], 0 if limit.soft else limit.floor
    if need is not None and lots and min(ceiling, tokens + since) < need + floor:
        return draw_with_credits(change, at, tokens, lots, need, ceiling, since, floor, limit.soft, shift=since - after)
    return draw(change, at, tokens, need, ceiling, since, floor, limit.soft, shift=since - after)


def _take_from_new(change: Change, limit: TokenLimit, held: int, need: int, lots: HeldLots) -> bool:
    """Take from a limit that is new in its bucket and holds ``held``; the rest from lots. Return whether it fits."""
    found: Division | None = Division(need, need, {}, {})
    if need + max(limit.floor, 0) > held:
        found = divide(need, limit.floor, held, lots)
    if found is None:
        return False
    change.put[limit.at.tokens] -= found.allowance
    if limit.soft and found.allowance > max(0, held):
        change.add[limit.at.overdrawn] = found.allowance - max(0, held)
    for attr, amount in found.taken.items():
        change.add[attr] = -amount
    for attr, amount in found.needed.items():
        change.bound(attr, low=amount)
    return True


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
    for name in sorted(stored_names(image) - {INFRASTRUCTURE_LIMIT}):
        rule = stored_rule(image, name, shard)
        if rule is not None:
            at, since = token_fields(name), rule.produced_between(image[ANCHOR], at_ms)
            shift = since - rule.produced_between(anchor, at_ms)
            draw(change, at, image[at.tokens], None, rule.capacity, since, shift=shift)
    change.remove = [*drop_expired(image, change, latest_instant(image, now_ms))]
    return change


def stamp(key: Key, image: Image, version: int) -> Write | None:
    """Return the write that stamps a bucket with a config version; None if it was charged under that already.

    Every client with an older config loses its next race, and reads the config again. The level of each limit stays
    what it was at any instant: the next charge moves the bucket to other limits, as of their change.
    """
    if image[CONFIG_VERSION] >= version:
        return None
    newest_ms, shard = latest_instant(image, 0), keys.parse_bucket_pk(key.pk).shard_id
    anchor = max(newest_ms, image[ANCHOR] + 1)
    change = _begin(image, anchor, newest_ms)
    change.put[CONFIG_VERSION] = version
    change.add = pressure.moved_counters(image, anchor)
    for name in stored_names(image) - {INFRASTRUCTURE_LIMIT}:
        _carry_limit(change, image, name, stored_rule(image, name, shard), anchor)
    return write_of(change, key, image)


def _carry_limit(change: Change, image: Image, name: str, rule: Rule | None, anchor: int) -> None:
    """Move a limit whose rule stays as it is to an anchor: its level is the same at any instant."""
    if rule is not None:
        change.add[token_fields(name).tokens] = rule.produced_between(image[ANCHOR], anchor)


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


def keep_in_debt(level: BucketLimits, image: Image, change: Change) -> None:
    """Let a change put the expiry off until the bucket is full: an earlier one would forgive debt."""
    after = apply_write(image, write_of(change, level.key, image))
    assert after is not None  # it does not delete
    if is_expiring(level, after):
        change.expires_ms = max(change.expires_ms or 0, full_at(after))
    else:
        change.expires_ms = NEVER if TTL in image else None


def is_far_from_anchor(image: Image, shard: int, now_ms: int) -> bool:
    """Return whether a limit has produced more than half of what may lie between an anchor and a decision."""
    rules = (stored_rule(image, name, shard) for name in stored_names(image))
    return any(rule is not None and rule.produced_between(image[ANCHOR], now_ms) > REACH // 2 for rule in rules)
