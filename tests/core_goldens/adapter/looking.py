"""Looking at a bucket without changing it: refusals, statuses, waits, its state, and whether its record is sound."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zae_limiter.core import decide
from zae_limiter.core.advance import Advance
from zae_limiter.core.balances import Tokens, balance, debit, wait_ms
from zae_limiter.core.tokens import TokenFrame
from zae_limiter.records import (
    bucket,
    charging,
    migration,
    pressure,
    slot_states,
    slots as slotting,
    splitting,
)
from zae_limiter.records.level import SHARDS, token_fields
from zae_limiter.records.slot_table import SlotTable
from zae_limiter.records.watching import find_quiet_bounds

from ..worlds import Spot
from .levels import key_of, level_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from zae_limiter import RateLimitExceeded
    from zae_limiter.core.decide import Reading
    from zae_limiter.core.reports import BucketState
    from zae_limiter.core.values import LimitStatus
    from zae_limiter.records.algebra import Image

    from ..worlds import Terms, View


def _readings(views: Sequence[View], now_ms: int) -> list[Reading]:
    found = []
    for view in views:
        rows = [(level_of(spot, now_ms), image) for spot, image in view.records]
        reading = bucket.reading(rows, now_ms)
        if view.held is not None:
            reading = _hold(reading, view.held, now_ms)
        found.append(reading._replace(qualifier=view.qualifier))
    return found


def _hold(reading: Reading, held: tuple[int, int, int, int], now_ms: int) -> Reading:
    """Return a reading with tokens of each rate that the process has drawn in advance."""
    size, met, left, ago_ms = held
    balances = dict(reading.balances)
    for name, shards in reading.balances.items():
        first = shards[0]
        if isinstance(first, Tokens) and first.rule.calendar is None:
            limit = TokenFrame.of(first.rule, first.anchor_ms, token_fields(name), now_ms)
            rest = Advance(limit, now_ms - ago_ms, met, size).last(left)
            balances[name] = (first._replace(advances=(rest,)), *shards[1:])
    return reading._replace(balances=balances)


def refusal(views: Sequence[View], cost: Mapping[str, int], now_ms: int) -> RateLimitExceeded | None:
    """Return why the buckets of a chain refuse a cost; None if they do not."""
    return decide.refusal(_readings(views, now_ms), cost, now_ms)


def statuses(views: Sequence[View], cost: Mapping[str, int], now_ms: int) -> list[LimitStatus]:
    """Return the status of every limit of a chain for a cost."""
    return decide.statuses(_readings(views, now_ms), cost, now_ms)


def find_fitting(views: Sequence[View], costs: Sequence[Mapping[str, int]], now_ms: int) -> list[bool]:
    """Return which of several costs fit, one after the other."""
    return decide.find_fitting(_readings(views, now_ms), costs, now_ms)


def wait_for(views: Sequence[View], cost: Mapping[str, int], now_ms: int) -> int:
    """Return the milliseconds until a chain can take a cost."""
    return decide.wait_for(_readings(views, now_ms), cost, now_ms)


def describe_states(images: Mapping[int, Image], now_ms: int) -> list[BucketState]:
    """Return the limits of a stored bucket, whoever charges it."""
    shards = bucket.group_by_bucket([(key_of(shard), image) for shard, image in sorted(images.items())])
    return bucket.states(shards[0], now_ms)


def describe_balances(
    terms: Terms, images: Mapping[int, Image], cost: Mapping[str, int], now_ms: int
) -> dict[str, list[Any]]:
    """Return what the records of a bucket hold of each limit of a cost: as stored, under the terms, and after it."""
    shards = [(key_of(shard), image) for shard, image in sorted(images.items())]
    level = level_of(Spot(terms), now_ms)
    found: dict[str, list[Any]] = {}
    for name, need in sorted(cost.items()):
        held = bucket.held_balances(shards, name, now_ms)
        found[name] = [[each.level(now_ms), each.credit(now_ms), each.full_at()] for each in held]
        if held:
            found[name] += [balance(held, now_ms), balance(debit(held, need, now_ms), now_ms)]
        if under := bucket.balances_under(level, shards, name, now_ms):
            found[name] += [[each.level(now_ms), each.full_at()] for each in under]
            found[name] += [balance(debit(under, need, now_ms), now_ms), wait_ms(under, need, now_ms)]
    return found


def merge_slots(images: Mapping[int, Image], without: Sequence[str]) -> dict[str, Any]:
    """Return the slots of all records as one record has them."""
    return slot_states.merge_slots(images.values(), without)


def full_at(image: Image) -> int:
    """Return the instant from which deleting a record loses nothing."""
    return bucket.full_at(image)


def required_expiry(image: Image) -> int | None:
    """Return until when a record must be kept; None if it is kept for that long."""
    return bucket.required_expiry(image)


def inspect(image: Image) -> None:
    """Raise CorruptRecordError for a damaged record."""
    bucket.inspect(key_of(), image)


def _find_idle(before: Image, image: Image, now_ms: int, shard: int) -> dict[str, list[int]]:
    """Return by limit the slots that are free in both images, in the order opposite to that in which they are taken."""
    preferred, found = slotting.PreferredSlots((), SlotTable.parse(before), image), {}
    for name in slotting.concurrency_limits(tuple(image)):
        count, slots = image.get(SHARDS, 1), SlotTable.parse(image).of(name)
        numbers = range(count - 1 - shard, image[f"b_{name}_cp"] // 1000, count)
        free = [number for number in numbers if not slots.is_taken(number, now_ms)]
        idle = []
        while (place := preferred.choose(name, free, now_ms)) is not None:
            idle.append(free.pop(place))
        if idle:
            found[name] = idle[::-1]
    return found


def facts(spot: Spot, image: Image, before: Image | None, cost: Mapping[str, int], now_ms: int) -> dict[str, Any]:
    """Return what further use is made of a record's numbers."""
    level = level_of(spot, now_ms)
    found: dict[str, Any] = {
        "ahead": charging.is_ahead(level, image),
        "expiring": charging.is_expiring(level, image),
        "contended": sorted(charging.contended_limits(level, image, cost, now_ms)),
        "undisturbed": charging.is_undisturbed(level, before, image, cost),
        "far": migration.is_far_from_anchor(image, spot.shard, now_ms),
        "large": splitting.is_large(image),
        "worth_splitting": splitting.is_worthwhile(level, image, cost),
        "high": pressure.is_high(level, image, now_ms),
        "new": pressure.is_new(spot.shard, image),
        "unwritten": pressure.guard_unwritten(image),
        "stated_slots": [repr(limit) for limit in slot_states.stored_slot_limits(image)],
        "charged": level.charges(cost),
    }
    if before is not None:
        found["sustained"] = pressure.is_sustained(level.partition_writes, before, image)
        found["idle"] = _find_idle(before, image, now_ms, spot.shard)
    if charging.find_frame(level, image, now_ms) is not None:
        found["quiet"] = find_quiet_bounds(level, image, now_ms)
    return found
