"""Records under the terms of a case, and what plans hand to a case."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from zae_limiter.core.production import FOR_EVER
from zae_limiter.limiter import limits_in_force
from zae_limiter.limiter.charge_path import BucketShard, BucketShards, ChargePath
from zae_limiter.limiter.draw_plan import PlannedBucket
from zae_limiter.limiter.grant import ShardCharge
from zae_limiter.records import charging, keys
from zae_limiter.records.algebra import Image, Key, Write
from zae_limiter.records.level import HOUR_END, BucketLimits, slot_limits_for, token_limits_for
from zae_limiter.records.slot_table import SlotTable
from zae_limiter.repository.last_seen import LastSeen

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from zae_limiter.core.alerts import Alert

    from ..worlds import Crowd, Spot

NAMESPACE, RESOURCE = "ns", "model"
Receipt: TypeAlias = Any
"""What is known of a charge when it is settled."""
Slot: TypeAlias = Any
"""A slot that a charge has taken."""
ImagesByShard: TypeAlias = "Mapping[int, Image]"


class NewerConfig(Exception):
    """The bucket was charged under newer config: the limits have to be read again."""


class Planned(NamedTuple):
    """A write that takes a cost, the usage that it books, and what its caller has to know of it."""

    shard: int
    cost: Mapping[str, int]
    write: Write
    accruals: tuple[Write, ...]
    alerts: tuple[Alert, ...]
    lots: tuple[tuple[str, str, int], ...]
    slots: tuple[Slot, ...]
    lots_later: Mapping[str, int]
    part: Any

    @classmethod
    def of(cls, part: ShardCharge) -> Planned:
        """Return what a part of the code under test says."""
        shard = part.shard.level.shard
        taken = part.lots, part.slots, part.lots_later
        return cls(shard, part.cost, part.write, part.accruals, part.alerts, *taken, part)


class Settled(NamedTuple):
    """A write that settles a charge at one record, the usage that it books, and the thresholds that it crosses."""

    shard: int
    write: Write
    accruals: tuple[Write, ...]
    alerts: tuple[Alert, ...]


def key_of(shard: int = 0, entity_id: str = "key") -> Key:
    """Return the key of a record."""
    return keys.bucket(NAMESPACE, entity_id, RESOURCE, shard)


def level_of(spot: Spot, now_ms: int) -> BucketLimits:
    """Return a record as it is charged at an instant."""
    scheduled = any(limit.schedule for limit in spot.terms.limits)
    return _level(spot, now_ms if scheduled else 0)


@lru_cache(maxsize=256)
def _level(spot: Spot, now_ms: int) -> BucketLimits:
    terms, limits = spot.terms, spot.terms.limits
    level = BucketLimits(
        key_of(0, spot.entity_id),
        NAMESPACE,
        spot.entity_id,
        RESOURCE,
        limits,
        token_limits_for(limits, terms.priority, terms.bypassed),
        "system",
        version=terms.version,
        lifetime_ms=terms.lifetime_ms,
        cascade=terms.cascade,
        parent_id=terms.parent_id,
        partition_writes=terms.partition_writes,
        usage_days=terms.usage_days,
        priority=terms.priority,
        bypassed=terms.bypassed,
        slot_limits=slot_limits_for(limits, terms.priority, terms.bypassed),
        since=dict(terms.since),
        known_version=terms.known_version,
    )
    if any(limit.schedule for limit in limits):
        level = limits_in_force.apply_schedules(level, now_ms)
    return level.at(spot.shard, spot.shards)


def last_seen(image: Image | None, now_ms: int, crowd: Crowd | None = None) -> LastSeen:
    """Return what a client has seen of a record at an instant, with what a crowd has shown of it."""
    seen = LastSeen()
    seen.show(image, now_ms)
    if crowd is not None and crowd.freed:
        seen.keep_freed(crowd.freed)
    if crowd is not None and crowd.before is not None:
        seen.before, seen.raced_ms = SlotTable.parse(dict(crowd.before)), now_ms
    return seen


def chain_of(shards: Sequence[BucketShard], *, busy: bool = False) -> ChargePath:
    """Return the chain of one bucket, of which the first shard is charged first."""
    return ChargePath((BucketShards(shards[0], tuple(shards), busy=busy),), None, 0, FOR_EVER, 1)


def limits_in(spot: Spot, image: Image, now_ms: int) -> charging.Frame | None:
    """Return the limits as a record holds them; None if it has to be migrated first."""
    limits = last_seen(image, now_ms).limits(level_of(spot, now_ms), image, now_ms)
    return None if limits is None or now_ms > limits.until_ms else limits


def owned(spot: Spot, image: Image, now_ms: int) -> PlannedBucket | None:
    """Return a bucket whose numbers alone say what a charge does; None if it has slots, credits or another shape."""
    level = level_of(spot, now_ms)
    if level.slot_limits or level.shard_count > 1 or (level.usage_days and now_ms >= image.get(HOUR_END, 0)):
        return None
    found = PlannedBucket.look(BucketShard(level, last_seen(image, now_ms)), now_ms)
    return found if found is not None and found.is_good(now_ms) else None
