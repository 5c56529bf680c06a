"""Maintain busy buckets before clients have to: split them, bring all shards to the same count, move far anchors.

Clients can do without this help: what fails here is tried again with the next change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from zae_limiter.core.change import Change
from zae_limiter.core.errors import ValidationError
from zae_limiter.core.limit import Limit
from zae_limiter.core.names import INFRASTRUCTURE_LIMIT
from zae_limiter.core.production import MILLI, Rule
from zae_limiter.core.validation import MissingCronsim
from zae_limiter.limiter.dividing import divide
from zae_limiter.records import keys, migration, pressure, splitting
from zae_limiter.records.algebra import TTL, Committed, Image, Key
from zae_limiter.records.bucket import inspect, stored_names, whole_rule
from zae_limiter.records.charging import write_of
from zae_limiter.records.level import SHARDS, BucketLimits, slot_limits_for, token_limits_for
from zae_limiter.records.slot_states import stored_slot_limits

from .consumption import measure_change

if TYPE_CHECKING:
    from zae_limiter.stores.port import Store

    from .stream import StreamChange


class UpkeepResult(NamedTuple):
    """The work that was done for a bucket."""

    splits: int = 0
    refills: int = 0


async def maintain(store: Store, changes: Sequence[StreamChange]) -> UpkeepResult:
    """Maintain one record of a bucket, given its changes. Most need nothing.

    One with a quota of a time zone that is not known here, or by a cron expression, is left to its clients.
    """
    try:
        return await _maintain(store, changes)
    except (ValidationError, MissingCronsim):
        return UpkeepResult()


async def _maintain(store: Store, changes: Sequence[StreamChange]) -> UpkeepResult:
    key, image, first = changes[-1].key, changes[-1].new, changes[0].old or changes[0].new
    if image is None or first is None:
        return UpkeepResult()
    inspect(key, image)
    shard, now_ms = keys.parse_bucket_pk(key.pk).shard_id, store.clock.now_ms()
    busy = pressure.is_sustained(store.capabilities.partition_writes, first, image)
    leads = shard == 0 and any(map(_was_split, changes))
    far = migration.is_far_from_anchor(image, shard, now_ms)
    if not (busy or leads or far):
        return UpkeepResult()
    level = level_of(store, key, image)
    splits = await split_busy_shard(store, level, image, _largest_costs(changes)) if busy else 0
    splits += await spread(store, level) if leads else 0
    return UpkeepResult(splits, await refill(store, level, image, now_ms) if far else 0)


def level_of(store: Store, key: Key, image: Image) -> BucketLimits:
    """Return a bucket record under the limits that it was written with, as far as they are valid today."""
    whose = keys.parse_bucket_pk(key.pk)
    rules = ((name, whole_rule(image, name)) for name in sorted(stored_names(image) - {INFRASTRUCTURE_LIMIT}))
    limits = tuple(
        limit_of(name, rule)
        for name, rule in rules
        if rule is not None and not any(part % MILLI for part in (rule[:3] if rule.calendar is None else rule[:2]))
    )
    limits += tuple(stored_slot_limits(image))
    return BucketLimits(
        key,
        *whose[:3],
        limits,
        token_limits_for(limits),
        lifetime_ms=1 if TTL in image else 0,
        cascade=bool(image.get("cascade", False)),
        parent_id=image.get("parent_id"),
        partition_writes=store.capabilities.partition_writes,
        shard=whose.shard_id,
        shard_count=image[SHARDS],
        slot_limits=slot_limits_for(limits),
    )


def limit_of(name: str, rule: Rule) -> Limit:
    """Return the limit that states a rule of whole tokens."""
    capacity, amount, calendar = rule.capacity // MILLI, rule.amount // MILLI, rule.calendar
    seconds = rule.period // MILLI if calendar is None else -(-calendar.longest_ms // MILLI)
    return Limit(name, capacity, amount, seconds, calendar)


async def split_busy_shard(store: Store, level: BucketLimits, image: Image, cost: Mapping[str, int]) -> int:
    """Split a bucket that takes four fifths of the writes that its partition can. Return the number of new shards."""
    if not splitting.is_worthwhile(level, image, {**cost, **dict.fromkeys(level.slot_limits, MILLI)}):
        return 0
    if level.shard:
        root = await _read_root(store, level)
        if root is None or root[1][SHARDS] <= image[SHARDS]:
            return 0 if root is None else await _split(store, *root)
    return await _split(store, level, image)


def _largest_costs(changes: Sequence[StreamChange]) -> Mapping[str, int]:
    """Return the most that a change took of each limit."""
    most: dict[str, int] = {}
    for change in changes:
        for name, amount in measure_change(change).items():
            most[name] = max(amount, most.get(name, 0))
    return most


async def spread(store: Store, root: BucketLimits) -> int:
    """Split the other shards of a bucket up to the count of the first. Return the number of new shards."""
    made = 0
    for _ in range(splitting.MAX_SHARDS.bit_length()):
        behind = await _shards_behind(store, root)
        if not behind:
            break
        made += sum([await _split(store, shard, image) for shard, image in behind])
    return made


async def _shards_behind(store: Store, root: BucketLimits) -> list[tuple[BucketLimits, Image]]:
    """Return the shards that have been split less often than the first one."""
    shards = [root.at(shard, root.shard_count) for shard in range(1, root.shard_count // 2)]
    images = await store.read([shard.key for shard in shards])
    return [
        (shard.at(shard.shard, image[SHARDS]), image)
        for shard, image in zip(shards, images, strict=True)
        if image is not None and image[SHARDS] < root.shard_count
    ]


def _was_split(change: StreamChange) -> bool:
    return change.old is not None and change.new is not None and change.old.get(SHARDS, 1) < change.new[SHARDS]


async def _read_root(store: Store, level: BucketLimits) -> tuple[BucketLimits, Image] | None:
    first = level.at(0, level.shard_count)
    (image,) = await store.read([first.key])
    return None if image is None else (level.at(0, image[SHARDS]), image)


async def _split(store: Store, level: BucketLimits, image: Image) -> int:
    return int(await divide(store, level, image, 0, lambda *_: None))


async def refill(store: Store, level: BucketLimits, image: Image, now_ms: int) -> int:
    """Move the anchor of a bucket that has produced much since it, keeping its balance. Return 1 if it was moved.

    The guard is the anchor: if a client has moved it meanwhile, that is as good. Buckets near their anchor are left
    alone, because a client would have to read them again.
    """
    change = migration.migrate(level, image, {}, now_ms)
    if not isinstance(change, Change):
        return 0
    return int(isinstance(await store.commit([write_of(change, level.key, image)]), Committed))
