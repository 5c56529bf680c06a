"""Writes to a bucket: making it, taking from it, moving it to other limits, settling what was taken.

`charge` is for a store that has to be asked, `spend` for one that lends its record out; both take the same.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ..core.bucket import MILLI, between, produced
from ..core.draw import draw, owe, spent
from ..core.errors import CorruptRecordError
from ..core.names import INFRASTRUCTURE_LIMIT
from . import keys, pressure
from .algebra import ABSENT, NEVER, TTL, Image, Write, applied, expiry_seconds
from .bucket import full_at, inspect, stored_names, stored_rule
from .ledger import opened
from .level import ANCHOR, CHANGES, CONFIG_VERSION, HOUR_END, SHARDS, Anchor, Level, attribute

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


def create(level: Level, cost: Mapping[str, int], now_ms: int, changes: int = 1) -> Write:
    """Make the bucket, full but for ``cost`` (in debt if that is more), unless somebody else has made it.

    A cost below 0, given back late, only counts as consumption. ``changes`` is how many grants it is made by.
    """
    put: dict[str, Any] = {
        **identity(level),
        SHARDS: 1,
        ANCHOR: now_ms,
        CONFIG_VERSION: level.version or 0,
        **pressure.fresh(level, now_ms, pressure.WRITE),
    }
    for name, slot in level.slots.items():
        taken = cost.get(name, 0)
        put[slot.tk] = slot.rule.capacity - max(0, taken)
        put[slot.tc] = taken
        put[slot.fl] = now_ms
        put.update(slot.shape)
    if level.usage_days:
        put |= opened(now_ms, changes if level.charges(cost) else 0)
    expires = max(now_ms + level.lifetime_ms, full_at(put)) if level.lifetime_ms else None
    return Write(level.key, (ABSENT,), put, expires_at_ms=expires)


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


def first_charge(level: Level, cost: Mapping[str, int], now_ms: int, changes: int = 1) -> Write | None:
    """Make the bucket and take ``cost`` from it, or None where that is more than it can hold."""
    slots = level.slots
    if any(name in slots and need > slots[name].rule.capacity for name, need in cost.items()):
        return None
    return create(level, cost, now_ms, changes)


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
        if not need or name not in terms:
            continue
        capacity, amount, period, phase, base, attr, counter, filled = terms[name]
        since = (now_ms * amount + phase) // period - base
        if since > _REACH:
            return reshape(level, image, cost, now_ms, changes)
        tk = image[attr]
        if hot and name in hot and tk + since >= capacity > need:
            lag_ms = min(LAG_MS, capacity * period // amount // 2)
            earliest = ((now_ms - lag_ms) * amount + phase) // period - base
            if capacity - tk > earliest or seen_ms < now_ms - lag_ms:
                since = max(capacity - tk - 1, earliest)
                tk = min(tk, capacity - since - 1)
        taken = draw(capacity, tk, since, need)
        if taken is None:
            return None
        full, low, high, change = taken
        if full:
            guards.append((attr, ">", high))
            put[attr] = change
            put[filled] = now_ms
        else:
            guards.append((attr, "between", (low, high)))
            add[attr] = change
        add[counter] = need
    if level.usage_days and add:
        add[CHANGES] = changes
    if level.partition_writes:
        pressure.count(level, image, now_ms, put, add, seen_ms, lost)
    return new_write((level.key, tuple(guards), put, add, (), _expiry(level, image, now_ms), False))


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
        if not need:
            continue
        capacity, amount, period, phase, base, attr, counter, filled = term
        since = (now_ms * amount + phase) // period - base
        tk = new[attr]
        left = spent(capacity, tk, since, need)
        if left is None or since > _REACH:
            return None
        if tk + since >= capacity:
            new[filled] = now_ms
        new[attr] = left
        new[counter] += need
        changes = 1
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
        capacity, amount, period, phase, base, attr, _, _ = anchor[1][limit.name]
        held = image[attr] + (now_ms * amount + phase) // period - base
        found.append((level, limit, (held if held < capacity else capacity) // MILLI))
    return found


def reshape(level: Level, image: Image, cost: Mapping[str, int], now_ms: int, changes: int = 1) -> Write | None:
    """Move the bucket to the limits and the config in force and take ``cost``; None where it does not fit.

    The anchor strictly grows, so that whoever still holds the old one loses the race and looks again.
    """
    rf = image[ANCHOR]
    anchor = max(now_ms, rf + 1)
    guards: list[tuple[str, str, Any]] = [(ANCHOR, "=", rf)]
    put: dict[str, Any] = {ANCHOR: anchor, "cascade": level.cascade}
    add: dict[str, int] = {}
    remove: tuple[str, ...] = ("parent_id",)
    if level.parent_id is not None:
        put["parent_id"], remove = level.parent_id, ()
    if level.version is not None:
        put[CONFIG_VERSION] = max(level.version, image[CONFIG_VERSION])
    for name, slot in level.slots_of(image).items():
        need = cost.get(name, 0)
        after = between(slot.rule, anchor, now_ms)
        old = stored_rule(image, name, level.shard)
        put.update(slot.shape)
        if need:
            add[slot.tc] = need
        if old is None:
            if need > slot.rule.capacity:
                return None
            put[slot.tk] = slot.rule.capacity - after - need
            put[slot.fl] = now_ms
            put[slot.tc] = image.get(slot.tc, 0)
            continue
        ceiling = min(old.capacity, slot.rule.capacity)
        taken = draw(ceiling, image[slot.tk], between(old, rf, now_ms), need, after)
        if taken is None:
            return None
        full, low, high, change = taken
        if full:
            guards.append((slot.tk, ">", high))
            put[slot.tk] = change
            put[slot.fl] = now_ms
        else:
            guards.append((slot.tk, "<=", high) if low is None else (slot.tk, "between", (low, high)))
            add[slot.tk] = change
    for name in stored_names(image) - level.slots.keys() - {INFRASTRUCTURE_LIMIT}:
        rule = stored_rule(image, name, level.shard)
        if rule is not None:
            add[attribute(name, "tk")] = between(rule, rf, anchor)
    if level.usage_days and level.charges(cost):
        add[CHANGES] = changes
    if level.partition_writes:
        put.update(pressure.moved(level, image, now_ms, anchor))
    return _kept_in_debt(level, image, Write(level.key, tuple(guards), put, add, remove, now_ms + level.lifetime_ms))


def settle(
    level: Level,
    image: Image,
    delta: Mapping[str, int],
    charged_ms: int,
    now_ms: int,
    most_back: Mapping[str, int] | None = None,
    changes: int = 1,
) -> Write:
    """Add ``delta`` to what was consumed as of ``charged_ms``: into debt if positive, given back if negative.

    What is owed is drawn as of the charge, so a bucket that was full then does not swallow it. Of what is given
    back no more than ``most_back`` counts, and nothing if the bucket has been charged while full since then: had
    it never been taken, the bucket would not hold more now. A limit that the bucket does not hold is left alone.
    ``changes`` is what it counts for: below 0 where grants are undone that nobody was given.
    """
    guards: list[tuple[str, str, Any]] = [(ANCHOR, "=", image[ANCHOR])]
    put: dict[str, Any] = {}
    add: dict[str, int] = {}
    for name, amount in delta.items():
        rule = stored_rule(image, name, level.shard)
        tk, filled = attribute(name, "tk"), attribute(name, "fl")
        if rule is None:
            continue
        add[attribute(name, "tc")] = amount
        if amount > 0:
            full, _, high, change = owe(rule.capacity, image[tk], between(rule, image[ANCHOR], charged_ms), amount)
            guards.append((tk, ">" if full else "<=", high))
            (put if full else add)[tk] = change
        elif image.get(filled, 0) <= charged_ms:
            guards.append((filled, "<=", charged_ms))
            add[tk] = -amount if most_back is None else min(-amount, most_back[name])
    if level.usage_days and HOUR_END in image and add:
        add[CHANGES] = changes
    if level.partition_writes:
        pressure.count(level, image, now_ms, put, add)
    return _kept_in_debt(level, image, Write(level.key, tuple(guards), put, add, (), now_ms + level.lifetime_ms))


def _kept_in_debt(level: Level, image: Image, write: Write) -> Write:
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
    if level.usage_days and HOUR_END not in image:
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
    terms = {name: (*slot.rule, produced(rf, slot.rule), slot.tk, slot.tc, slot.fl) for name, slot in slots.items()}
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
