"""Charging a bucket: making it, and taking from it.

`charge` is for a store that has to be asked; `limiter.in_place` does the same inside the process.
"""

from __future__ import annotations

from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from ..core.bucket import FOR_EVER, MILLI, between, first_instant, refill_ms
from ..core.credit import draw_with_credits, suffices
from ..core.draw import AnchoredLimit, draw
from ..core.names import FIRST_USE
from . import keys, pressure
from .algebra import ABSENT, NEVER, TTL, Image, Write
from .bucket import full_at
from .ledger import open_ledger
from .level import ANCHOR, CHANGES, CONFIG_VERSION, CREDITS, HOUR_END, MADE, NEWEST, SHARDS, Level, TokenLimits
from .lots import group_lots, has_expired_lots, held_lots, last_expiry
from .slot_table import NO_TABLE
from .slots import shapes_for, states_slots, take_slots

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from .lots import Lot
    from .slots import Taker

LAG_MS = 50
"""How far in the past a draw may be decided when others write the same full bucket at this moment."""

REACH = 2**51
"""Beyond this many millitokens since the anchor the bucket is anchored anew, so that numbers stay exact in
stores that count in doubles."""


new_write = partial(tuple.__new__, Write)
"""A `Write` from all its fields at once, without the detour over keyword arguments."""


class Contention(NamedTuple):
    """Others who write the same bucket, as far as known.

    ``names`` are the limits that they were writing when it was last seen, at ``seen_ms``; ``lost`` is how many races
    for it were lost since the last that was won.
    """

    names: Collection[str] = ()
    seen_ms: int = 0
    lost: int = 0


ALONE = Contention()
_FAR = 2**62
_NO_LOTS: Mapping[str, tuple[Lot, ...]] = MappingProxyType({})
_NONE: frozenset[str] = frozenset()


class AnchoredLimits(NamedTuple):
    """The limits of a level as a bucket holds them that was made, moved and configured as it says here.

    The rule of a bucket changes only with its anchor, so they are good for every image with the same three.
    """

    anchor_ms: int
    made: int
    config_version: int
    by_name: dict[str, AnchoredLimit]
    until_ms: int
    """The last instant at which the bucket can be charged without being anchored anew."""
    window: tuple[int, int]
    """The first instant at which ``by_name`` is true, and the last: the window that the quotas are in."""
    lots: Mapping[str, tuple[Lot, ...]] = _NO_LOTS
    """The lots of credit by limit, none of which expires in ``window``."""
    idle: frozenset[str] = frozenset()
    """The limits of which a window begins with the next use, which moves the bucket."""


def anchored_limits(level: Level, image: Image, now_ms: int) -> AnchoredLimits | None:
    """Return the limits of a level as the bucket holds them, of quotas in the window of ``now_ms``.

    None if the bucket has to be moved first: it has other limits, another parent or config version, no ledger, no
    expiry although it should have one, credit that has expired, or was not written since its limits are in force.
    """
    config_version = image[CONFIG_VERSION]
    if is_ahead(level, image) or (level.version is not None and config_version != level.version):
        return None
    if image.get("parent_id") != level.parent_id or bool(image.get("cascade")) != level.cascade:
        return None
    if MADE not in image or (level.usage_days and HOUR_END not in image):
        return None
    if level.lifetime_ms and TTL not in image and is_expiring(level, image):
        return None  # one that has been under an entity's own limits may be deep in debt
    if level.slot_limits and not states_slots(level, image):
        return None
    entries = level.token_limits_of(image)
    anchor_ms, by_name = image[ANCHOR], {}
    if level.scheduled and not level.is_in_force(image[NEWEST]):
        return None
    until_ms, window, lots, idle = _FAR, (-_FAR, _FAR), _NO_LOTS, _NONE
    if CREDITS in image:
        if has_expired_lots(image, now_ms):
            return None
        lots = group_lots(image)
        window = -_FAR, min(lot.expires_ms for group in lots.values() for lot in group) - 1
    for name, entry in entries.items():
        for attr, value in entry.shape:
            if image.get(attr) != value:
                return None
        calendar = entry.rule.calendar
        if (calendar is None and entry.ca in image) or (entry.al and entry.al not in image):
            return None
        if calendar is not None:
            number = calendar.index(now_ms)
            window = max(window[0], calendar.start(number)), min(window[1], calendar.start(number + 1) - 1)
            idle = idle | {name} if calendar.is_idle(now_ms) else idle
        by_name[name] = AnchoredLimit.of(entry.rule, anchor_ms, (entry.tk, entry.tc), entry.least, now_ms, entry.ov)
        until_ms = min(until_ms, first_instant(entry.rule, 0, anchor_ms, REACH + 1) - 1)
    return AnchoredLimits(anchor_ms, image[MADE], config_version, by_name, until_ms, window, lots, idle)


def create(
    level: Level,
    cost: Mapping[str, int],
    now_ms: int,
    changes: int = 1,
    serial: int = 0,
    takers: Sequence[Taker] = (),
) -> Write:
    """Return the write that makes the bucket as `new_bucket`, if there is none yet."""
    put, expires_ms = new_bucket(level, cost, now_ms, changes, serial, takers)
    # What never changes comes first: a store may send a record from the first change on.
    return Write(level.key, (ABSENT,), {**index_attributes(level), **put}, expires_at_ms=expires_ms)


def new_bucket(
    level: Level,
    cost: Mapping[str, int],
    now_ms: int,
    changes: int = 1,
    serial: int = 0,
    takers: Sequence[Taker] = (),
) -> tuple[Image, int | None]:
    """Return the image of a bucket that is full less ``cost`` (which may leave it in debt), and when it expires.

    Without the attributes of the indexes (`index_attributes`), which a store inside the process does not keep.
    ``serial`` tells it from one that was made in the same millisecond, ``changes`` is how many grants it is made by,
    ``takers`` are those for whom slots are taken.
    """
    put = identity(level)
    put[SHARDS] = 1
    put[ANCHOR] = put[NEWEST] = now_ms
    put[MADE] = now_ms * MILLI + serial % MILLI
    put[CONFIG_VERSION] = level.version or 0
    if level.partition_writes:
        put.update(pressure.initial_attributes(level, now_ms, pressure.WRITE))
    lifetime_ms, charges, outlives = level.lifetime_ms, 0, False
    for name, entry in level.token_limits.items():
        taken = cost.get(name, 0)
        capacity, amount, period, _, calendar = entry.rule
        if taken:
            charges = changes
            outlives = outlives or calendar is not None or refill_ms(taken, amount, period) >= lifetime_ms
        put[entry.tk] = capacity - taken
        put[entry.tc] = taken
        put.update(entry.shape)
    if level.token_limits.has_more:
        put.update(_further_attributes(level.token_limits, cost, now_ms))
    if level.slot_limits:
        put |= shapes_for(level, {})
        slots = take_slots(level, None, NO_TABLE, takers, now_ms)
        put |= {**slots.put, **slots.add} if slots is not None else {}
        charges = changes if takers else charges
    if level.usage_days:
        put.update(open_ledger(now_ms, charges))
    expires_ms = now_ms + lifetime_ms
    if outlives:
        expires_ms = max(expires_ms, full_at(put))
    return put, expires_ms if lifetime_ms else None


def _further_attributes(entries: TokenLimits, cost: Mapping[str, int], now_ms: int) -> Image:
    """Return the attributes of a new bucket that only soft limits, thresholds and windows of first use have."""
    found: Image = {}
    for name, entry in entries.items():
        beyond, calendar = cost.get(name, 0) - entry.rule.capacity, entry.rule.calendar
        if entry.ov and beyond > 0:
            found[entry.ov] = beyond
        if entry.al:
            found[entry.al] = 0
        if name in cost and calendar is not None and calendar.unit == FIRST_USE:
            found[entry.ws] = now_ms
    return found


IDENTITY = ("entity_id", "resource", "cascade", "parent_id")
"""The attributes that say whose bucket a record is."""


def identity(level: Level) -> dict[str, Any]:
    """Return the attributes that say whose bucket a record is."""
    return {attr: value for attr in IDENTITY if (value := getattr(level, attr)) is not None}


def index_attributes(level: Level) -> dict[str, str]:
    """Return the attributes by which a store finds a bucket."""
    return keys.bucket_indexes(keys.BucketKey(level.namespace_id, level.entity_id, level.resource, level.shard))


def first_charge(
    level: Level, cost: Mapping[str, int], now_ms: int, changes: int, serial: int, takers: Sequence[Taker] = ()
) -> Write | None:
    """Return the write that makes the bucket and takes ``cost`` from it, or None if that is more than it can hold."""
    entries, slots = level.token_limits, level.slot_limits
    for name, need in cost.items():
        if name in entries and need + entries[name].least > entries[name].rule.capacity:
            return None
        if name in slots and need + slots[name].least_milli > slots[name].rule.capacity:
            return None
    return create(level, cost, now_ms, changes, serial, takers)


def charge(
    level: Level,
    image: Image,
    limits: AnchoredLimits,
    cost: Mapping[str, int],
    now_ms: int,
    contention: Contention = ALONE,
    changes: int = 1,
    spends_credits: bool = True,
) -> Write | None:
    """Return the write that takes tokens from the bucket last seen as ``image``; None if they are not there.

    Full limits that others are writing are drawn as of an instant at most `LAG_MS` ago, where draws commute. What an
    allowance does not have is taken from credits if ``spends_credits``. Slots are taken by `slots.with_taken`.
    """
    guards: list[tuple[str, str, Any]] = [(ANCHOR, "=", limits.anchor_ms)]
    put: dict[str, Any] = {}
    add: dict[str, int] = {}
    lots = limits.lots if spends_credits and not level.bypassed else _NO_LOTS
    for name, need in cost.items():
        if (limit := limits.by_name.get(name)) is None:
            continue
        tokens = image[limit.tk]
        if name in lots and not suffices(limit, tokens, need, now_ms):
            if not (drawn := draw_with_credits(limit, tokens, held_lots(image, name, now_ms), need, now_ms, put, add)):
                return None
            guards += drawn
            continue
        drawing = draw if name not in contention.names else partial(_draw_beside_others, contention.seen_ms)
        if (guard := drawing(limit, tokens, need, now_ms, put, add)) is None:
            return None
        guards.append(guard)
    if add and now_ms > image[NEWEST]:
        put[NEWEST] = now_ms
    if add and level.usage_days:
        add[CHANGES] = changes
    if level.partition_writes:
        pressure.count(level, image, now_ms, put, add, contention.seen_ms, contention.lost)
    if not level.lifetime_ms or image.get(SHARDS, 1) != 1 or (limits.lots and not is_expiring(level, image)):
        expires_ms = NEVER if TTL in image else None
    elif (expires_ms := now_ms + level.lifetime_ms) <= image.get(TTL, 0) * MILLI:
        expires_ms = None  # it stays as it is
    return new_write((level.key, tuple(guards), put, add, (), expires_ms, False, image))


def _draw_beside_others(
    seen_ms: int, limit: AnchoredLimit, tokens: int, need: int, now_ms: int, put: dict[str, Any], add: dict[str, int]
) -> tuple[str, str, Any] | None:
    """Draw as `draw` does; from a full limit as of the last instant at which it was not full, if that suffices."""
    guard = None
    if limit.amount and tokens + limit.since(now_ms) >= limit.capacity:
        lag_ms = min(LAG_MS, refill_ms(limit.capacity, limit.amount, limit.period) // 2)
        earliest = limit.since(now_ms - lag_ms)
        if limit.capacity - tokens > earliest or seen_ms < now_ms - lag_ms:
            since = max(limit.capacity - tokens - 1, earliest)
            before = limit.crowded(since, now_ms)
            guard = draw(before, min(tokens, limit.capacity - since - 1), need, now_ms, put, add)
    return guard or draw(limit, tokens, need, now_ms, put, add)


def contended_limits(level: Level, image: Image, names: Collection[str], now_ms: int) -> frozenset[str]:
    """Return the limits that were not yet full a moment ago: others are writing them now."""
    found = set()
    entries = level.token_limits_of(image)
    for name in names:
        entry = entries.get(name)
        if entry is not None and entry.tk in image:
            unclipped = image[entry.tk] + between(entry.rule, image[ANCHOR], now_ms - LAG_MS)
            if unclipped <= entry.rule.capacity:
                found.add(name)
    return frozenset(found)


def is_undisturbed(level: Level, before: Image | None, after: Image | None, cost: Mapping[str, int]) -> bool:
    """Return whether nobody but us wrote between two images: the consumption differs by our cost alone."""
    if before is None or after is None:
        return False
    counters = ((entry.tc, cost.get(name, 0)) for name, entry in level.token_limits.items())
    return all(after.get(attr, 0) == before.get(attr, 0) + need for attr, need in counters)


def is_ahead(level: Level, image: Image) -> bool:
    """Return whether the bucket was charged under newer config than the level knows, or stamped with it."""
    stamped: int = image[CONFIG_VERSION]
    return stamped > level.known_version


def is_expiring(level: Level, image: Image) -> bool:
    """Return whether a bucket ever expires: not under an entity's own limits, if split, or with credit for ever."""
    lasts = CREDITS in image and last_expiry(image) == FOR_EVER
    return level.lifetime_ms > 0 and image.get(SHARDS, 1) == 1 and not lasts
