"""Writes to a bucket: making it, taking from it, moving it to other limits, settling what was taken.

`charge` is for a store that has to be asked, `spend` for one that lends its record out; both take the same.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ..core.bucket import MILLI, between, produced
from ..core.draw import apply_draw, draw, spent, upper_mark
from ..core.errors import CorruptRecordError
from ..core.give_back import MOST_CREDITED
from ..core.names import INFRASTRUCTURE_LIMIT
from . import keys, pressure
from .algebra import ABSENT, NEVER, TTL, Image, Write, applied, expiry_seconds
from .bucket import full_at, inspect, newest, stored_names, stored_rule
from .ledger import opened
from .level import ANCHOR, CHANGES, CONFIG_VERSION, HOUR_END, MADE, NEWEST, SHARDS, Anchor, Level, Slot, attribute

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from ..core.limit import Limit

LAG_MS = 50
"""How far in the past a draw may be decided when others write the same full bucket at this moment."""

_REACH = 2**51
"""Beyond this many millitokens since the anchor the bucket is anchored anew, so that numbers stay exact in
stores that count in doubles."""


new_write = partial(tuple.__new__, Write)
"""A `Write` from all its fields at once, without the detour over keyword arguments."""


def create(level: Level, cost: Mapping[str, int], now_ms: int, changes: int = 1, serial: int = 0) -> Write:
    """Make the bucket, full but for ``cost`` (in debt if that is more), unless somebody else has made it.

    ``serial`` tells it from one that was made in the same millisecond, ``changes`` is how many grants it is made by.
    """
    put: dict[str, Any] = {
        **identity(level),
        SHARDS: 1,
        ANCHOR: now_ms,
        NEWEST: now_ms,
        MADE: now_ms * MILLI + serial % MILLI,
        CONFIG_VERSION: level.version or 0,
        **pressure.fresh(level, now_ms, pressure.WRITE),
    }
    expires = now_ms + level.lifetime_ms
    outlives = False
    for name, slot in level.slots.items():
        taken = cost.get(name, 0)
        capacity, amount, period, _ = slot.rule
        outlives = outlives or taken * period // amount >= level.lifetime_ms
        put[slot.tk] = capacity - taken
        put[slot.tc] = taken
        put[slot.cr] = put[slot.hi] = 0
        put.update(slot.shape)
    if level.usage_days:
        put |= opened(now_ms, changes if level.charges(cost) else 0)
    if outlives:
        expires = max(expires, full_at(put))
    return Write(level.key, (ABSENT,), put, expires_at_ms=expires if level.lifetime_ms else None)


def identity(level: Level) -> dict[str, Any]:
    """What says whose bucket a record is, and puts it into the indexes."""
    whose: dict[str, Any] = {
        "entity_id": level.entity_id,
        "resource": level.resource,
        "cascade": level.cascade,
        "GSI2PK": keys.gsi2_pk_resource(level.namespace_id, level.resource),
        "GSI2SK": keys.gsi2_sk_bucket(level.entity_id, level.shard),
        "GSI3PK": keys.gsi3_pk_entity(level.namespace_id, level.entity_id),
        "GSI3SK": keys.gsi3_sk_bucket(level.resource, level.shard),
        "GSI4PK": level.namespace_id,
        "GSI4SK": level.key.pk,
    }
    if level.parent_id is not None:
        whose["parent_id"] = level.parent_id
    return whose


def first_charge(level: Level, cost: Mapping[str, int], now_ms: int, changes: int, serial: int) -> Write | None:
    """Make the bucket and take ``cost`` from it, or None where that is more than it can hold."""
    slots = level.slots
    for name, need in cost.items():
        if name in slots and need > slots[name].rule.capacity:
            return None
    return create(level, cost, now_ms, changes, serial)


def charge(
    level: Level,
    image: Image,
    cost: Mapping[str, int],
    now_ms: int,
    hot: Collection[str] = (),
    seen_ms: int = 0,
    lost: int = 0,
    changes: int = 1,
) -> Write | None:
    """Take ``cost``, for so many grants, from the bucket last seen as ``image`` at ``seen_ms``; None: it does not fit.

    Limits named in ``hot`` are full but others are writing them: these are drawn as of the last instant at which
    they were not yet full, at most `LAG_MS` ago, where draws commute.
    """
    rf = image[ANCHOR]
    anchor = _anchored(level, image)
    if anchor is None:
        return reshape(level, image, cost, now_ms, changes)
    terms = anchor[1]
    guards: list[tuple[str, str, Any]] = [(ANCHOR, "=", rf)]
    put: dict[str, Any] = {}
    add: dict[str, int] = {}
    for name, need in cost.items():
        if name not in terms:
            continue
        capacity, amount, period, phase, base, _, attr, counter, upper_draws = terms[name]
        since = (now_ms * amount + phase) // period - base
        if since > _REACH:
            return reshape(level, image, cost, now_ms, changes)
        tk = image[attr]
        crowd = bool(hot) and name in hot and tk + since >= capacity > need
        if crowd:
            lag_ms = min(LAG_MS, capacity * period // amount // 2)
            earliest = ((now_ms - lag_ms) * amount + phase) // period - base
            if capacity - tk > earliest or seen_ms < now_ms - lag_ms:
                since = max(capacity - tk - 1, earliest)
                tk = min(tk, capacity - since - 1)
        taken = draw(capacity, tk, since, need)
        if taken is None:
            return None
        if not need:
            guards.append((attr, ">=", -since))
            continue
        if crowd and not taken.full:  # it may meet more than was seen
            taken = taken._replace(high=capacity - since - 1, upper=True)
        guards.append(apply_draw(taken, attr, upper_draws, put, add))
        add[counter] = need
    if add:
        put |= {NEWEST: now_ms} if now_ms > image[NEWEST] else {}
        add |= {CHANGES: changes} if level.usage_days else {}
    if level.partition_writes:
        pressure.count(level, image, now_ms, put, add, seen_ms, lost)
    return new_write((level.key, tuple(guards), put, add, (), _expiry(level, image, now_ms), False, image))


def spend(image: Image | None, level: Level, cost: Mapping[str, int], now_ms: int) -> Image | None:
    """The image after ``cost`` was taken from it, for a store that lends it out.

    None where it does not fit, and where it takes more than a spend: a bucket to be made or to be moved to
    other limits or another hour, a name that is no limit.
    """
    if image is None:
        return None
    trusted = level.trusted
    anchor = trusted[1] if trusted is not None and trusted[0] is image else _checked_anchor(level, image)
    if anchor is None or (level.usage_days and now_ms >= image.get(HOUR_END, 0)):
        return None
    terms = anchor[1]
    new = image.copy()
    changes = 0
    for name, need in cost.items():
        term = terms.get(name)
        if term is None:
            return None
        capacity, amount, period, phase, base, mark, attr, counter, upper_draws = term
        since = (now_ms * amount + phase) // period - base
        tk = new[attr]
        left = spent(capacity, tk, since, need)
        if left is None or since > _REACH:
            return None
        if not need:
            continue
        if tk + since >= mark:
            new[upper_draws] += 1
        new[attr] = left
        new[counter] += need
        changes = 1
    if changes and now_ms > new[NEWEST]:
        new[NEWEST] = now_ms
    if level.usage_days:
        new[CHANGES] += changes
    if level.lifetime_ms:
        expires = expiry_seconds(now_ms + level.lifetime_ms)
        if expires > new.get(TTL, 0):
            new[TTL] = expires
    elif TTL in new:
        del new[TTL]
    level.trusted = (new, anchor)
    return new


def left(level: Level, image: Image | None, now_ms: int) -> list[tuple[Level, Limit, int]] | None:
    """Whole tokens of each limit in a bucket that was charged through ``level``; None where it was moved since."""
    anchor = level.anchored
    if image is None or anchor is None or anchor[0] != image[ANCHOR]:
        return None
    found = []
    for limit in level.limits:
        capacity, amount, period, phase, base, _, attr, _, _ = anchor[1][limit.name]
        held = image[attr] + (now_ms * amount + phase) // period - base
        found.append((level, limit, (held if held < capacity else capacity) // MILLI))
    return found


def reshape(level: Level, image: Image, cost: Mapping[str, int], now_ms: int, changes: int = 1) -> Write | None:
    """Move the bucket to the limits and the config in force and take ``cost``; None where it does not fit.

    The anchor strictly grows, so that whoever still holds the old one loses the race and looks again.
    """
    rf = image[ANCHOR]
    now_ms = newest(image, now_ms)
    anchor = max(now_ms, rf + 1)
    guards: list[tuple[str, str, Any]] = [(attr, "=", image[attr]) for attr in (ANCHOR, MADE) if attr in image]
    put: dict[str, Any] = {ANCHOR: anchor, NEWEST: now_ms, MADE: _remade(image), "cascade": level.cascade}
    add: dict[str, int] = {}
    remove: tuple[str, ...] = ("parent_id",)
    if level.parent_id is not None:
        put["parent_id"], remove = level.parent_id, ()
    if level.version is not None:
        put[CONFIG_VERSION] = max(level.version, image[CONFIG_VERSION])
    for name, slot in level.slots_of(image).items():
        if not _reshape_limit(level, image, slot, cost.get(name), (now_ms, anchor), guards, put, add):
            return None
    for name in stored_names(image) - level.slots.keys() - {INFRASTRUCTURE_LIMIT}:
        rule = stored_rule(image, name, level.shard)
        if rule is not None:
            tk, cr, hi = (attribute(name, field) for field in ("tk", "cr", "hi"))
            made = between(rule, rf, anchor)
            add |= {tk: made, cr: _credited(image.get(cr, 0), made), hi: 1}
    if level.usage_days and level.charges(cost):
        add[CHANGES] = changes
    if level.partition_writes:
        put.update(pressure.moved(level, image, now_ms, anchor))
    return kept_in_debt(
        level, image, Write(level.key, tuple(guards), put, add, remove, now_ms + level.lifetime_ms, seen=image)
    )


def _reshape_limit(
    level: Level,
    image: Image,
    slot: Slot,
    cost: int | None,
    instants: tuple[int, int],
    guards: list[tuple[str, str, Any]],
    put: dict[str, Any],
    add: dict[str, int],
) -> bool:
    """Add what a reshape does to one limit, as of the first instant and with the second as anchor; False: no fit."""
    now_ms, anchor = instants
    need = cost or 0
    rule = slot.rule
    after = between(rule, anchor, now_ms)
    old = stored_rule(image, slot.limit.name, level.shard)
    put.update(slot.shape)
    if old is None:
        put |= {slot.tk: rule.capacity - after - need, slot.tc: image.get(slot.tc, 0) + need, slot.cr: 0, slot.hi: 0}
        return need <= rule.capacity
    since = between(old, image[ANCHOR], now_ms)
    taken = draw(min(old.capacity, rule.capacity), image[slot.tk], since, cost, after)
    if taken is None:
        return False
    guards.append(apply_draw(taken, slot.tk, slot.hi, put, add))
    if need:
        add[slot.tc] = need
    add[slot.cr] = _credited(image.get(slot.cr, 0), since - after + max(0, old.capacity - rule.capacity))
    add[slot.hi] = 1
    return True


def _credited(before: int, more: int) -> int:
    """What is added to a counter of credits; it starts again where it has outgrown its bound.

    More than the bound at once is as good as the bound: no bucket holds as much.
    """
    more = min(more, MOST_CREDITED)
    return more - before if before > MOST_CREDITED else more


def _remade(image: Image) -> int:
    """The instant at which a bucket was made; another one where a counter starts again, so that no charge before is
    compared with it."""
    made: int = image.get(MADE, image[ANCHOR] * MILLI)
    outgrown = any(image[attr] > MOST_CREDITED for attr in image if attr.startswith("b_") and attr.endswith("_cr"))
    return made + 1 if outgrown else made


def kept_in_debt(level: Level, image: Image, write: Write) -> Write:
    """The write with an expiry not before the bucket is full: forgetting it sooner would forgive debt."""
    if not expires(level, image):
        return write._replace(expires_at_ms=NEVER if TTL in image else None)
    after = applied(image, write)
    assert after is not None  # it does not delete
    return write._replace(expires_at_ms=max(write.expires_at_ms or 0, full_at(after)))


def far_from_anchor(image: Image, shard: int, now_ms: int) -> bool:
    """Whether a limit has produced more than half of what may lie between an anchor and a decision."""
    rules = (stored_rule(image, name, shard) for name in stored_names(image))
    return any(rule is not None and between(rule, image[ANCHOR], now_ms) > _REACH // 2 for rule in rules)


def crowded(level: Level, image: Image, names: Collection[str], now_ms: int) -> frozenset[str]:
    """The limits that were not yet full a moment ago: others are writing them now."""
    found = set()
    slots = level.slots_of(image)
    for name in names:
        slot = slots.get(name)
        if slot is not None and slot.tk in image:
            unclipped = image[slot.tk] + between(slot.rule, image[ANCHOR], now_ms - LAG_MS)
            if unclipped <= slot.rule.capacity:
                found.add(name)
    return frozenset(found)


def undisturbed(level: Level, before: Image | None, after: Image | None, cost: Mapping[str, int]) -> bool:
    """Whether nobody but us wrote between two images: the consumption differs by our cost alone."""
    if before is None or after is None:
        return False
    counters = ((slot.tc, cost.get(name, 0)) for name, slot in level.slots.items())
    return all(after.get(attr, 0) == before.get(attr, 0) + need for attr, need in counters)


def needs_reshape(level: Level, image: Image) -> bool:
    """Whether the bucket has other limits, older config or no ledger; newer config is not ours to undo."""
    return not is_ahead(level, image) and _anchored(level, image) is None


def is_current(level: Level, image: Image) -> bool:
    """Whether the bucket is sound and under the limits and the config in force."""
    trusted = level.trusted
    return (trusted is not None and trusted[0] is image) or _checked_anchor(level, image) is not None


def is_ahead(level: Level, image: Image) -> bool:
    """Whether the bucket was charged under newer config than the level knows."""
    stamped: int = image[CONFIG_VERSION]
    return level.version is not None and stamped > level.version


def _checked_anchor(level: Level, image: Image) -> Anchor | None:
    """As `_anchored`, for an image that nobody has looked at yet; None also where it is damaged."""
    try:
        inspect(level.key, image)
    except CorruptRecordError:
        return None
    return _anchored(level, image)


def _anchored(level: Level, image: Image) -> Anchor | None:
    """What the level's rates had produced by the image's anchor; None where the limits differ or there is no ledger."""
    if level.version is not None and image[CONFIG_VERSION] != level.version:
        return None
    if MADE not in image or (level.usage_days and HOUR_END not in image):
        return None
    slots = level.slots_of(image)
    for slot in slots.values():
        for attr, value in slot.shape:
            if image.get(attr) != value:
                return None
    rf = image[ANCHOR]
    known = level.anchored
    if known is not None and known[0] == rf and known[2] is slots:
        return known
    terms = {
        name: (*slot.rule, produced(rf, slot.rule), upper_mark(slot.rule.capacity), slot.tk, slot.tc, slot.hi)
        for name, slot in slots.items()
    }
    level.anchored = known = (rf, terms, slots)
    return known


def _expiry(level: Level, image: Image, now_ms: int) -> int | None:
    """When a charged bucket may be forgotten: long after it is full; None where it is kept as long already."""
    if not expires(level, image):
        return NEVER if TTL in image else None
    wanted_ms = now_ms + level.lifetime_ms
    return wanted_ms if expiry_seconds(wanted_ms) > image.get(TTL, 0) else None


def expires(level: Level, image: Image) -> bool:
    """Whether a bucket is ever forgotten: not under an entity's own limits, and not a shard, which others count on."""
    return level.lifetime_ms > 0 and image.get(SHARDS, 1) == 1
