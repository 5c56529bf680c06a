"""The bucket record: one item per entity, resource and shard, holding every limit.

    rf                    the anchor, ms; moves only when the limits change
    b_{limit}_tk          tokens relative to the anchor, millitokens
    b_{limit}_tc          net consumption ever, millitokens
    b_{limit}_fl          the last instant, ms, as of which it was charged while full
    b_{limit}_cp|ra|rp    capacity, refill amount (millitokens) and period (ms) under which tk is kept
    cv                    the highest config version it was charged under; raising it moves the anchor
    ttl                   expiry in seconds, only under default limits

A bucket keeps the rule its numbers were written under, so that a client with other limits notices
(`charge` then moves the bucket to the new limits in the same write), and so that anybody can read it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ..core.bucket import MILLI, Rule, first_instant, produced
from ..core.decide import Reading
from ..core.draw import draw, owe, spent
from ..core.errors import CorruptRecordError
from ..core.values import BucketState
from . import keys
from .algebra import ABSENT, NEVER, TTL, Image, Key, Write, applied, expiry_seconds

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from ..core.limit import Limit

ANCHOR = "rf"
CONFIG_VERSION = "cv"
LAG_MS = 50
"""How far in the past a draw may be decided when others write the same full bucket at this moment."""

_FIELDS = ("tk", "tc", "fl", "cp", "ra", "rp")
_FAR = 2**62
"""No number of a bucket is ever this large."""

_REACH = 2**51
"""Beyond this many millitokens since the anchor the bucket is anchored anew, so that numbers stay exact in
stores that count in doubles."""


new_write = partial(tuple.__new__, Write)
"""A `Write` from all its fields at once, without the detour over keyword arguments."""


class Slot(NamedTuple):
    """One limit of a level: its attribute names and its rule."""

    limit: Limit
    rule: Rule
    tk: str
    tc: str
    fl: str
    shape: tuple[tuple[str, int], ...]


Anchor: TypeAlias = tuple[int, dict[str, tuple[int, int, int, int, str, str, str]]]
"""An anchor and, per limit: capacity, amount, period, what was produced by then, and the names of tk, tc and fl."""


class Level:
    """One entity's bucket for a resource, with the limits in force; a step of a cascade chain."""

    __slots__ = (
        "anchor",
        "cascade",
        "entity_id",
        "key",
        "lifetime_ms",
        "limits",
        "namespace_id",
        "parent_id",
        "resource",
        "slots",
        "source",
        "trusted",
        "version",
    )

    def __init__(
        self,
        namespace_id: str,
        entity_id: str,
        resource: str,
        limits: tuple[Limit, ...],
        *,
        source: str,
        version: int | None,
        lifetime_ms: int,
        cascade: bool = False,
        parent_id: str | None = None,
    ) -> None:
        self.namespace_id = namespace_id
        self.entity_id = entity_id
        self.resource = resource
        self.key: Key = keys.bucket(namespace_id, entity_id, resource)
        self.limits = limits
        self.source = source
        self.version = version
        self.lifetime_ms = lifetime_ms
        self.cascade = cascade
        self.parent_id = parent_id
        self.slots = {limit.name: _slot(limit) for limit in limits}
        self.anchor: Anchor | None = None
        self.trusted: Image | None = None


def attribute(limit_name: str, field: str) -> str:
    """The attribute of a limit's field; injective, as a field has two letters and no underscore."""
    return f"b_{limit_name}_{field}"


def _slot(limit: Limit) -> Slot:
    rule = Rule.of(limit)
    shape = tuple((attribute(limit.name, field), value) for field, value in zip(("cp", "ra", "rp"), rule, strict=True))
    tk, tc, fl = (attribute(limit.name, field) for field in ("tk", "tc", "fl"))
    return Slot(limit, rule, tk, tc, fl, shape)


def create(level: Level, cost: Mapping[str, int], now_ms: int) -> Write:
    """Make the bucket, full but for ``cost`` (in debt if that is more), unless somebody else has made it."""
    put: dict[str, Any] = {
        "entity_id": level.entity_id,
        "resource": level.resource,
        "shard_count": 1,
        "cascade": level.cascade,
        ANCHOR: now_ms,
        CONFIG_VERSION: level.version or 0,
        "GSI2PK": keys.gsi2_pk_resource(level.namespace_id, level.resource),
        "GSI2SK": keys.gsi2_sk_bucket(level.entity_id),
        "GSI3PK": keys.gsi3_pk_entity(level.namespace_id, level.entity_id),
        "GSI3SK": keys.gsi3_sk_bucket(level.resource),
        "GSI4PK": level.namespace_id,
        "GSI4SK": level.key.pk,
    }
    if level.parent_id is not None:
        put["parent_id"] = level.parent_id
    for name, slot in level.slots.items():
        taken = cost.get(name, 0)
        put[slot.tk] = slot.rule.capacity - taken
        put[slot.tc] = taken
        put[slot.fl] = now_ms
        put.update(slot.shape)
    expires = max(now_ms + level.lifetime_ms, full_at(put)) if level.lifetime_ms else None
    return Write(level.key, (ABSENT,), put, expires_at_ms=expires)


def first_charge(level: Level, cost: Mapping[str, int], now_ms: int) -> Write | None:
    """Make the bucket and take ``cost`` from it, or None where that is more than it can hold."""
    slots = level.slots
    if any(name in slots and need > slots[name].rule.capacity for name, need in cost.items()):
        return None
    return create(level, cost, now_ms)


def charge(
    level: Level, image: Image, cost: Mapping[str, int], now_ms: int, hot: Collection[str] = (), seen_ms: int = 0
) -> Write | None:
    """Take ``cost`` from the bucket last seen as ``image`` at ``seen_ms``, or None where it does not fit.

    Limits named in ``hot`` are full but others are writing them: these are drawn as of the last instant at which
    they were not yet full, at most `LAG_MS` ago, where draws commute.
    """
    rf = image[ANCHOR]
    anchor = _anchored(level, image)
    if anchor is None:
        return reshape(level, image, cost, now_ms)
    terms = anchor[1]
    guards: list[tuple[str, str, Any]] = [(ANCHOR, "=", rf)]
    put: dict[str, Any] = {}
    add: dict[str, int] = {}
    for name, need in cost.items():
        if not need or name not in terms:
            continue
        capacity, amount, period, base, attr, counter, filled = terms[name]
        since = now_ms * amount // period - base
        if since > _REACH:
            return reshape(level, image, cost, now_ms)
        tk = image[attr]
        if hot and name in hot and tk + since >= capacity > need:
            lag_ms = min(LAG_MS, capacity * period // amount // 2)
            earliest = produced(now_ms - lag_ms, amount, period) - base
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
    expires = _expiry(level, image, now_ms)
    return new_write((level.key, tuple(guards), put, add, (), expires, False))


def spend(image: Image | None, level: Level, cost: Mapping[str, int], now_ms: int) -> Image | None:
    """The image after ``cost`` was taken from it, for a store that lends it out.

    None where it does not fit, and where it takes more than a spend: a bucket to be made or to be moved to
    other limits, a name that is no limit.
    """
    if image is None:
        return None
    anchor = level.anchor if image is level.trusted else _checked_anchor(level, image)
    if anchor is None or anchor[0] != image[ANCHOR]:
        return None
    terms = anchor[1]
    new = image.copy()
    for name, need in cost.items():
        term = terms.get(name)
        if term is None:
            return None
        if not need:
            continue
        capacity, amount, period, base, attr, counter, filled = term
        since = now_ms * amount // period - base
        tk = new[attr]
        left = spent(capacity, tk, since, need)
        if left is None or since > _REACH:
            return None
        if tk + since >= capacity:
            new[filled] = now_ms
        new[attr] = left
        new[counter] += need
    expires = _expiry(level, image, now_ms)
    if expires:
        new[TTL] = max(new.get(TTL, 0), expiry_seconds(expires))
    elif expires == NEVER:
        del new[TTL]
    level.trusted = new
    return new


def reshape(level: Level, image: Image, cost: Mapping[str, int], now_ms: int) -> Write | None:
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
    for name, slot in level.slots.items():
        need = cost.get(name, 0)
        after = _between(slot.rule, anchor, now_ms)
        old = _stored_rule(image, name)
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
        taken = draw(ceiling, image[slot.tk], _between(old, rf, now_ms), need, after)
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
    for name in _stored_names(image) - level.slots.keys():
        rule = _stored_rule(image, name)
        if rule is not None:
            add[attribute(name, "tk")] = _between(rule, rf, anchor)
    return _kept_in_debt(level, image, Write(level.key, tuple(guards), put, add, remove, now_ms + level.lifetime_ms))


def settle(
    level: Level,
    image: Image,
    delta: Mapping[str, int],
    charged_ms: int,
    now_ms: int,
    most_back: Mapping[str, int] | None = None,
) -> Write:
    """Add ``delta`` to what was consumed as of ``charged_ms``: into debt if positive, given back if negative.

    What is owed is drawn as of the charge, so a bucket that was full then does not swallow it. Of what is given
    back no more than ``most_back`` counts, and nothing if the bucket has been charged while full since then: had
    it never been taken, the bucket would not hold more now. A limit that the bucket does not hold is left alone.
    """
    guards: list[tuple[str, str, Any]] = [(ANCHOR, "=", image[ANCHOR])]
    put: dict[str, Any] = {}
    add: dict[str, int] = {}
    for name, amount in delta.items():
        rule = _stored_rule(image, name)
        tk, filled = attribute(name, "tk"), attribute(name, "fl")
        if rule is None:
            continue
        add[attribute(name, "tc")] = amount
        if amount > 0:
            full, _, high, change = owe(rule.capacity, image[tk], _between(rule, image[ANCHOR], charged_ms), amount)
            guards.append((tk, ">" if full else "<=", high))
            (put if full else add)[tk] = change
        elif image.get(filled, 0) <= charged_ms:
            guards.append((filled, "<=", charged_ms))
            add[tk] = -amount if most_back is None else min(-amount, most_back[name])
    return _kept_in_debt(level, image, Write(level.key, tuple(guards), put, add, (), now_ms + level.lifetime_ms))


def _kept_in_debt(level: Level, image: Image, write: Write) -> Write:
    """The write with an expiry not before the bucket is full: forgetting it sooner would forgive debt."""
    if not level.lifetime_ms:
        return write._replace(expires_at_ms=NEVER if TTL in image else None)
    after = applied(image, write)
    assert after is not None  # it does not delete
    return write._replace(expires_at_ms=max(write.expires_at_ms or 0, full_at(after)))


def outlives(image: Image) -> int | None:
    """The instant until which a bucket must be kept, where its expiry is sooner."""
    if TTL not in image:
        return None
    full_ms = full_at(image)
    return full_ms if full_ms > image[TTL] * 1000 else None


def reading(level: Level, image: Image | None, now_ms: int) -> Reading:
    """The level as the limits in force see it; a bucket that does not exist is full."""
    tokens: dict[str, tuple[int, int]] = {}
    for name, slot in level.slots.items():
        old = None if image is None else _stored_rule(image, name)
        if image is None or old is None:
            tokens[name] = (slot.rule.capacity, now_ms)
        elif old == slot.rule:
            tokens[name] = (image[slot.tk], image[ANCHOR])
        else:
            ceiling = min(old.capacity, slot.rule.capacity)
            tokens[name] = (min(ceiling, image[slot.tk] + _between(old, image[ANCHOR], now_ms)), now_ms)
    return Reading(level.entity_id, level.resource, level.limits, tokens)


def crowded(level: Level, image: Image, names: Collection[str], now_ms: int) -> frozenset[str]:
    """The limits that were not yet full a moment ago: others are writing them now."""
    found = set()
    for name in names:
        slot = level.slots.get(name)
        if slot is not None and slot.tk in image:
            unclipped = image[slot.tk] + _between(slot.rule, image[ANCHOR], now_ms - LAG_MS)
            if unclipped <= slot.rule.capacity:
                found.add(name)
    return frozenset(found)


def undisturbed(level: Level, before: Image | None, after: Image | None, cost: Mapping[str, int]) -> bool:
    """Whether nobody but us wrote between two images: the consumption differs by our cost alone."""
    if before is None or after is None:
        return False
    counters = ((slot.tc, cost.get(name, 0)) for name, slot in level.slots.items())
    return all(after.get(attr) == before.get(attr, 0) + need for attr, need in counters)


def needs_reshape(level: Level, image: Image) -> bool:
    """Whether the bucket was written under other limits, or older config, than those in force."""
    return _anchored(level, image) is None


def states(key: Key, image: Image) -> list[BucketState]:
    """The limits of a stored bucket."""
    inspect(key, image)
    found = []
    for name in sorted(_stored_names(image)):
        rule = _stored_rule(image, name)
        if rule is not None:
            found.append(
                BucketState(
                    image["entity_id"],
                    image["resource"],
                    name,
                    image[attribute(name, "tk")],
                    image[ANCHOR],
                    *rule,
                    image.get(attribute(name, "tc"), 0),
                )
            )
    return found


def full_at(image: Image) -> int:
    """The instant from which every limit of the bucket is full: forgetting it then loses nothing."""
    rules = ((name, _stored_rule(image, name)) for name in _stored_names(image))
    return max(
        (
            first_instant(rule, image[attribute(name, "tk")], image[ANCHOR], rule.capacity)
            for name, rule in rules
            if rule is not None
        ),
        default=0,
    )


def inspect(key: Key, image: Image) -> Image:
    """Return ``image`` if its numbers are numbers; a bucket that cannot be read is never unlimited."""
    wrong = [attr for attr in (ANCHOR, CONFIG_VERSION) if type(image.get(attr)) is not int]
    for name in {attr[2:-3] for attr in image if attr.startswith("b_")}:
        for field in _FIELDS:
            value = image.get(attribute(name, field))
            least = 1 if field in ("cp", "ra", "rp") else -_FAR
            if type(value) is not int or not least <= value <= _FAR:
                wrong.append(attribute(name, field))
    if wrong:
        owner = keys.parse_bucket_pk(key.pk)
        found = ", ".join(f"{attr}={image.get(attr)!r}" for attr in wrong)
        raise CorruptRecordError(
            f"The bucket {key.pk} holds values that cannot be: {found}. Repair it with "
            f"reset_bucket({owner.entity_id!r}, {owner.resource!r}): the next acquire starts a full bucket."
        )
    return image


def _checked_anchor(level: Level, image: Image) -> Anchor | None:
    """As `_anchored`, for an image that nobody has looked at yet; None also where it is damaged."""
    try:
        inspect(level.key, image)
    except CorruptRecordError:
        return None
    return _anchored(level, image)


def _anchored(level: Level, image: Image) -> Anchor | None:
    """What the level's rates had produced by the image's anchor, or None where the limits differ."""
    if level.version is not None and image[CONFIG_VERSION] != level.version:
        return None
    for slot in level.slots.values():
        for attr, value in slot.shape:
            if image.get(attr) != value:
                return None
    rf = image[ANCHOR]
    terms = {
        name: (*slot.rule, produced(rf, slot.rule.amount, slot.rule.period), slot.tk, slot.tc, slot.fl)
        for name, slot in level.slots.items()
    }
    level.anchor = anchor = (rf, terms)
    return anchor


def _expiry(level: Level, image: Image, now_ms: int) -> int | None:
    """When a charged bucket may be forgotten: long after it is full, or never under an entity's own limits."""
    if level.lifetime_ms:
        return now_ms + level.lifetime_ms
    return NEVER if TTL in image else None


def _between(rule: Rule, start_ms: int, end_ms: int) -> int:
    return produced(end_ms, rule.amount, rule.period) - produced(start_ms, rule.amount, rule.period)


def _stored_rule(image: Image, name: str) -> Rule | None:
    """The rule that a limit's numbers were written under; None where it has none, and so no meaning."""
    capacity, amount, period = (image.get(attribute(name, field)) for field in ("cp", "ra", "rp"))
    if capacity is None or amount is None or period is None:
        return None
    return Rule(capacity, amount, period)


def _stored_names(image: Image) -> set[str]:
    return {attr[2:-3] for attr in image if attr.startswith("b_") and attr.endswith("_tk")}


__all__ = [
    "LAG_MS",
    "MILLI",
    "Level",
    "attribute",
    "charge",
    "create",
    "crowded",
    "first_charge",
    "full_at",
    "inspect",
    "needs_reshape",
    "outlives",
    "reading",
    "reshape",
    "settle",
    "spend",
    "states",
    "undisturbed",
]
