"""Charging a bucket: making it, and taking from it.

`charge` is for a store that has to be asked; `limiter.in_place` does the same inside the process.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from ..core.change import MISSING_OR_AT_MOST, Change, Shortfall
from ..core.credits import draw_with_credits
from ..core.names import FIRST_USE
from ..core.production import FAR, FOR_EVER, MILLI, Amounts
from ..core.tokens import TokenFrame, draw
from . import keys, pressure
from .algebra import NEVER, TTL, Image, Key, Write, apply_write
from .bucket import full_at
from .ledger import open_ledger
from .level import ANCHOR, CHANGES, CONFIG_VERSION, CREDITS, HOUR_END, MADE, NEWEST, SHARDS, BucketLimits, TokenLimits
from .lots import held_lots, last_expiry, lots_of
from .slot_table import NO_TABLE
from .slots import SeenSlots, SlotRequest, shapes_for, states_slots, take_slots

LAG_MS = 50
"""How far in the past a draw may be decided when others write the same full bucket at this moment."""

REACH = 2**51
"""Beyond this many millitokens since the anchor the bucket is anchored again, so that numbers stay exact in stores that
count in doubles."""

_new_write = partial(tuple.__new__, Write)
"""A `Write` from all its fields at once, without the detour over keyword arguments."""

_MOST = FAR // 2
"""A bound beyond this is none."""
Shortfalls: TypeAlias = "list[Shortfall]"
"""What a bucket lacks of a cost."""


def write_of(change: Change, key: Key, image: Image | None) -> Write:
    """Return a change of a bucket last seen as ``image`` as a guarded write."""
    guards: list[tuple[str, str, Any]] = [("", "absent", None)] if change.absent else []
    for attr, value in change.equals.items():
        guards.append((attr, "=", value))
    for attr, (low, high) in change.bounds.items():
        if low == high:
            guards.append((attr, "=", low))
        elif high > _MOST:
            guards.append((attr, ">=", low))
        elif low < -_MOST:
            guards.append((attr, "<=", high))
        else:
            guards.append((attr, "between", (low, high)))
    guards += change.guards
    fields = (key, tuple(guards), change.put, change.add, tuple(change.remove), change.expires_ms, False, image)
    return _new_write(fields)


def change_of(write: Write) -> Change:
    """Return a write as the change that it was made of."""
    change = Change()
    change.put, change.add, change.remove = {**write.put}, {**write.add}, [*write.remove]
    change.expires_ms = write.expires_at_ms
    for attr, op, value in write.guards:
        if op == "absent":
            change.absent = True
        elif op == "=":
            change.equals[attr] = value
        elif op == MISSING_OR_AT_MOST:
            change.guards.append((attr, op, value))
        else:
            low, high = {">=": (value, FAR), "<=": (-FAR, value), "between": value}[op]
            change.bound(attr, low, high)
    return change


class Contention(NamedTuple):
    """Others who write the same bucket, as far as known.

    ``names`` are the limits that they were writing when it was last seen, at ``seen_ms``; ``lost`` is how many races
    for it were lost since the last that was won.
    """

    names: Collection[str] = ()
    seen_ms: int = 0
    lost: int = 0


ALONE = Contention()


class Frame(NamedTuple):
    """The limits of a level in a bucket that was made, moved and configured as it says here: all but the numbers.

    The rule of a bucket changes only with its anchor, so a frame is good for every image with the same three.
    """

    anchor_ms: int
    made: int
    config_version: int
    by_name: dict[str, TokenFrame]
    window: tuple[int, int]
    """The first instant and the last at which it is good: quotas are in one window, and no credit expires."""
    until_ms: int
    """The last instant at which the bucket can be charged without being anchored again."""
    with_lots: frozenset[str] = frozenset()
    """The limits that have credit."""
    idle: frozenset[str] = frozenset()
    """The limits whose window begins with the next use, which moves the bucket."""


def find_frame(level: BucketLimits, image: Image, now_ms: int) -> Frame | None:
    """Return the limits of a level as the bucket holds them at ``now_ms``.

    None if the bucket has to be moved first: it has other limits, another parent or config version, no ledger, no
    expiry although it should have one, credit that has expired, or was not written since its limits are in force.
    """
    lots = lots_of(image) if CREDITS in image else ()
    start, end, until_ms = -FAR, min([lot.expires_ms - 1 for lot in lots], default=FAR), FAR
    if end < now_ms or not _is_kept_as(level, image):
        return None
    anchor_ms, by_name, idle = image[ANCHOR], {}, set()
    for name, limit in level.token_limits_of(image).items():
        for attr, value in limit.stated.items():
            if image.get(attr) != value:
                return None
        calendar = limit.rule.calendar
        if calendar is None and limit.at.calendar in image:
            return None
        if calendar is not None:
            if limit.alert_levels is not None and limit.at.announced not in image:
                return None
            if calendar.is_idle(now_ms):
                idle.add(name)
        by_name[name] = frame = TokenFrame.of(limit.rule, anchor_ms, limit.at, now_ms, limit.floor)
        far_ms = frame.reaches(REACH) if frame.amount else limit.rule.fits_at(0, anchor_ms, REACH + 1) - 1
        start, end, until_ms = max(start, frame.start), min(end, frame.end), min(until_ms, far_ms)
    whose, with_lots = (anchor_ms, image[MADE], image[CONFIG_VERSION]), frozenset([lot.limit_name for lot in lots])
    return Frame(*whose, by_name, (start, end), until_ms, with_lots, frozenset(idle))


def _is_kept_as(level: BucketLimits, image: Image) -> bool:
    """Return whether a bucket is kept as a level wants it, its rates and quotas aside."""
    if is_ahead(level, image) or (level.version is not None and image[CONFIG_VERSION] != level.version):
        return False
    if image.get("parent_id") != level.parent_id or bool(image.get("cascade")) != level.cascade:
        return False
    if MADE not in image or (level.usage_days and HOUR_END not in image):
        return False
    if level.lifetime_ms and TTL not in image and is_expiring(level, image):
        return False  # one that has been under an entity's own limits may be deep in debt
    if level.slot_limits and not states_slots(level, image):
        return False
    return not level.scheduled or level.is_in_force(image[NEWEST])


def create(
    level: BucketLimits,
    cost: Amounts,
    now_ms: int,
    changes: int = 1,
    serial: int = 0,
    requests: Sequence[SlotRequest] = (),
) -> Change:
    """Return the change that makes the bucket as `new_bucket`, if there is none yet."""
    change = Change(absent=True)
    put, change.expires_ms = new_bucket(level, cost, now_ms, changes, serial, requests)
    # What never changes comes first: a store may send a record from the first change on.
    change.put = {**index_attributes(level), **put}
    if level.token_limits.watched:
        full = {name: limit.rule.capacity for name, limit in level.token_limits.items() if cost.get(name)}
        change.drawn = {name: (capacity, 0, capacity, None) for name, capacity in full.items()}
    return change


def new_bucket(
    level: BucketLimits,
    cost: Amounts,
    now_ms: int,
    changes: int = 1,
    serial: int = 0,
    requests: Sequence[SlotRequest] = (),
) -> tuple[Image, int | None]:
    """Return the image of a bucket that is full less ``cost`` (which may leave it in debt), and when it expires.

    Without the attributes of the indexes (`index_attributes`), which a store inside the process does not keep.
    ``serial`` tells it from one that was made in the same millisecond, ``changes`` is how many grants it is made by,
    ``requests`` are those for whom slots are taken.
    """
    put = identity(level)
    put[SHARDS] = 1
    put[ANCHOR] = put[NEWEST] = now_ms
    put[MADE] = now_ms * MILLI + serial % MILLI
    put[CONFIG_VERSION] = level.version or 0
    if level.partition_writes:
        put.update(pressure.initial_attributes(level, now_ms, pressure.WRITE))
    lifetime_ms, charges, outlives = level.lifetime_ms, 0, False
    for name, limit in level.token_limits.items():
        taken, at = cost.get(name, 0), limit.at
        capacity, amount, period, _, calendar = limit.rule
        if taken:
            charges = changes
            outlives = outlives or calendar is not None or taken * period // amount >= lifetime_ms
        put[at.tokens] = capacity - taken
        put[at.consumed] = taken
        put.update(limit.stated)
    if level.token_limits.has_more:
        put.update(_further_attributes(level.token_limits, cost, now_ms))
    if level.slot_limits:
        put |= shapes_for(level, {})
        slots = Change()
        if take_slots(level, SeenSlots({}, NO_TABLE, now_ms), slots, requests):
            put |= {**slots.put, **slots.add}
        charges = changes if requests else charges
    if level.usage_days:
        put.update(open_ledger(now_ms, charges))
    expires_ms = now_ms + lifetime_ms
    if outlives:
        expires_ms = max(expires_ms, full_at(put))
    return put, expires_ms if lifetime_ms else None


def _further_attributes(limits: TokenLimits, cost: Amounts, now_ms: int) -> Image:
    """Return the attributes of a new bucket that only soft limits, thresholds and windows of first use have."""
    found: Image = {}
    for name, limit in limits.items():
        beyond, calendar = cost.get(name, 0) - limit.rule.capacity, limit.rule.calendar
        if limit.soft and beyond > 0:
            found[limit.at.overdrawn] = beyond
        if limit.announces:
            found[limit.at.announced] = 0
        if name in cost and calendar is not None and calendar.unit == FIRST_USE:
            found[limit.at.window] = now_ms
    return found


IDENTITY = ("entity_id", "resource", "cascade", "parent_id")
"""The attributes that say whose bucket a record is."""


def identity(level: BucketLimits) -> dict[str, Any]:
    """Return the attributes that say whose bucket a record is."""
    return {attr: value for attr in IDENTITY if (value := getattr(level, attr)) is not None}


def index_attributes(level: BucketLimits) -> dict[str, str]:
    """Return the attributes by which a store finds a bucket."""
    return keys.bucket_indexes(keys.BucketKey(level.namespace_id, level.entity_id, level.resource, level.shard))


def first_charge(
    level: BucketLimits, cost: Amounts, now_ms: int, changes: int, serial: int, requests: Sequence[SlotRequest] = ()
) -> Change | Shortfalls:
    """Return the change that makes the bucket and takes ``cost`` from it, or what it lacks of that even if full."""
    limits, slots, missing = level.token_limits, level.slot_limits, []
    for name, need in cost.items():
        if name in limits and need + limits[name].floor > limits[name].rule.capacity:
            missing.append(Shortfall(name, is_permanent=True))
        if name in slots and need + slots[name].floor_milli > slots[name].rule.capacity:
            missing.append(Shortfall(name, is_permanent=True))
    return missing or create(level, cost, now_ms, changes, serial, requests)


def charge(
    level: BucketLimits,
    image: Image,
    frame: Frame,
    cost: Amounts,
    now_ms: int,
    contention: Contention = ALONE,
    changes: int = 1,
    spends_credits: bool = True,
) -> Change | Shortfalls:
    """Return the change that takes tokens from the bucket last seen as ``image``, or what it lacks.

    Full limits that others are writing are drawn as of an instant at most `LAG_MS` ago, where draws commute. What an
    allowance does not have is taken from credits if ``spends_credits``. Slots are taken by `slots.note_taken`.
    """
    change, missing = Change({ANCHOR: frame.anchor_ms}), []
    lots = frame.with_lots if spends_credits and not level.bypassed else ()
    for name, need in cost.items():
        if (limit := frame.by_name.get(name)) is None:
            continue
        (ceiling, *_), anchor_ms, at, amount, period, rest, _, _, floor, soft = limit
        tokens, made = image[at.tokens], ((now_ms - anchor_ms) * amount + rest) // period
        if name in lots and min(ceiling, tokens + made) < need + floor:
            mine = held_lots(image, name, now_ms)
            fits = draw_with_credits(change, at, (tokens, made, ceiling, None), mine, need, floor, soft)
        elif not (fits := name in contention.names and _draw_earlier(change, limit, tokens, need, now_ms, contention)):
            fits = draw(change, at, (tokens, made, ceiling, None), need, floor, soft)
        if not fits:
            missing.append(Shortfall(name, is_permanent=need + floor > ceiling and name not in frame.with_lots))
        elif need and level.token_limits.watched:
            change.drawn[name] = tokens, made, ceiling, None
    if missing:
        return missing
    if change.add and now_ms > image[NEWEST]:
        change.put[NEWEST] = now_ms
    if change.add and level.usage_days:
        change.add[CHANGES] = changes
    if level.partition_writes:
        pressure.count(level, image, now_ms, change.put, change.add, contention.seen_ms, contention.lost)
    lasts = not level.lifetime_ms or image.get(SHARDS, 1) != 1
    if frame.with_lots or (TTL in image if lasts else now_ms + level.lifetime_ms > image.get(TTL, 0) * MILLI):
        put_expiry_off(change, level, image, now_ms)
    return change


def put_expiry_off(change: Change, level: BucketLimits, image: Image, now_ms: int, *, owes: bool = False) -> None:
    """Let a change of a bucket put its expiry off, or take away the one of a bucket that does not expire.

    If it ``owes``, it is kept until it is full: an earlier expiry would forgive debt.
    """
    after = (apply_write(image, write_of(change, level.key, image)) if owes else image) or image
    if not is_expiring(level, after):
        change.expires_ms = NEVER if TTL in image else None
        return
    expires_ms = max(now_ms + level.lifetime_ms, full_at(after) if owes else 0)
    if ANCHOR in change.put or expires_ms > image.get(TTL, 0) * MILLI:
        change.expires_ms = expires_ms


def _draw_earlier(
    change: Change, limit: TokenFrame, tokens: int, need: int, now_ms: int, contention: Contention
) -> bool:
    """Draw from a full limit as of the last instant at which it was not full; return whether that suffices."""
    capacity = limit.rule.capacity
    if not limit.amount or tokens + limit.since(now_ms) < capacity:
        return False
    lag_ms = min(LAG_MS, capacity * limit.period // limit.amount // 2)
    earliest = limit.since(now_ms - lag_ms)
    if capacity - tokens <= earliest and contention.seen_ms >= now_ms - lag_ms:
        return False
    since = max(capacity - tokens - 1, earliest)
    below = min(tokens, capacity - since - 1)
    return draw(change, limit.at, (below, since, capacity, None), need, limit.floor, limit.soft)


def contended_limits(level: BucketLimits, image: Image, names: Collection[str], now_ms: int) -> frozenset[str]:
    """Return the limits that were not yet full a moment ago: others are writing them now."""
    found = set()
    for name, limit in level.token_limits_of(image).items():
        if name in names and limit.at.tokens in image:
            made = limit.rule.produced_between(image[ANCHOR], now_ms - LAG_MS)
            if image[limit.at.tokens] + made <= limit.rule.capacity:
                found.add(name)
    return frozenset(found)


def is_undisturbed(level: BucketLimits, before: Image | None, after: Image | None, cost: Amounts) -> bool:
    """Return whether nobody but us wrote between two images: the consumption differs by our cost alone."""
    if before is None or after is None:
        return False
    counters = ((limit.at.consumed, cost.get(name, 0)) for name, limit in level.token_limits.items())
    return all(after.get(attr, 0) == before.get(attr, 0) + need for attr, need in counters)


def is_ahead(level: BucketLimits, image: Image) -> bool:
    """Return whether the bucket was charged under newer config than the level knows, or stamped with it."""
    stamped: int = image[CONFIG_VERSION]
    return stamped > level.known_version


def is_expiring(level: BucketLimits, image: Image) -> bool:
    """Return whether a bucket ever expires: not under an entity's own limits, if split, or with credit for ever."""
    lasts = CREDITS in image and last_expiry(image) == FOR_EVER
    return level.lifetime_ms > 0 and image.get(SHARDS, 1) == 1 and not lasts
