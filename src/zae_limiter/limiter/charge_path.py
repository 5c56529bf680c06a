"""A charge path: an entity and those above it that are charged with it, each with the shards of its bucket.

Chains of several resources are joined to one that is charged as a whole. Its costs name the limits of all of them, as
`qualify` does; what concerns one level is told in the plain names of that (`ChargePath.cost_at`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ..core.decide import Reading, describe, refusal, wait_for
from ..core.errors import RateLimitExceeded, ValidationError
from ..core.production import FOR_EVER, MILLI
from ..core.values import LimitStatus
from ..records import bucket, keys
from ..records.algebra import Image, Key
from ..records.level import SHARDS, BucketLimits
from ..records.slot_table import NO_TABLE, SLOTS, SlotTable
from ..records.slots import MOST_TAKEN, count_takes
from ..repository.last_seen import LastSeen, Outlook, Reserving
from ..runtime.port import has_ended
from .coalescer import WriteCoalescer
from .options import Override, qualify

_FRESH_MS = 1_000
"""For how long after it was read config may make new buckets, in milliseconds."""


class BucketShard(NamedTuple):
    """A level, or one shard of it, and what was last seen of its bucket."""

    level: BucketLimits
    seen: LastSeen

    @property
    def is_outgrown(self) -> bool:
        """Whether the bucket has been split since, or the shard is gone with all the others."""
        image = self.seen.image
        return self.level.shard_count > 1 if image is None else image.get(SHARDS, 1) != self.level.shard_count

    def show(self, image: Image | None, now_ms: int) -> None:
        """Keep what the store has shown of the bucket. Raise CorruptRecordError for a damaged one."""
        table = NO_TABLE
        if image is not None:
            table = SlotTable.parse(image) if SLOTS in image else table
            bucket.check(self.level.key, image, table)
        self.seen.show(image, now_ms, table)


class BucketShards(NamedTuple):
    """One entity of a chain: the shard that this process charges first, and the shards that it has seen."""

    home: BucketShard
    shards: tuple[BucketShard, ...]
    complete: bool = True
    """Whether these are all there are."""
    busy: bool = False
    """Whether others have written to them since they were looked at before."""
    read_ms: int = FOR_EVER
    """When the config of the entity was read (`FOR_EVER`: just now)."""

    def is_unsure(self, now_ms: int) -> bool:
        """Return whether the bucket has to be made under config that was read some time ago.

        A bucket that exists tells of config that has changed since.
        """
        return self.home.seen.image is None and self.read_ms < now_ms - _FRESH_MS

    def key(self, shard: int) -> Key:
        """Return the key of one shard; that of the first one is the key of the bucket as a whole."""
        level = self.home.level
        return keys.bucket(level.namespace_id, level.entity_id, level.resource, shard)

    def reading(self, now_ms: int, images: Mapping[Key, Image | None] | None = None) -> Reading:
        """Return the bucket as last seen, or with some of its images as given."""
        return _read(self.shards, now_ms, images)

    @property
    def images(self) -> list[Image]:
        """The records of the bucket as last seen, without those that do not exist."""
        return [seen.image for _, seen in self.shards if seen.image is not None]

    def may_combine(self, cost: Mapping[str, int]) -> bool:
        """Return whether one request may be served from several shards.

        Only one that no single shard can ever hold, or if nobody else writes: among many clients everybody would write
        to every shard. Otherwise one shard serves it, and what is left in the others serves the next request.
        """
        if not self.busy or self.home.level.shard_count == 1:
            return True
        level, count = self.home.level, max(shard.level.shard_count for shard in self.shards)
        return any(cost.get(name, 0) * count > capacity for name, capacity in level.capacities().items())

    def freed_home(self, now_ms: int) -> BucketShard:
        """Return the shard in which this process has freed a slot lately, the home first; else the home."""
        return next((each for each in (self.home, *self.shards) if each.seen.has_freed(now_ms)), self.home)

    def reading_for(self, cost: Mapping[str, int], now_ms: int) -> Reading:
        """Return what one request can be served from: all shards, or the one that can serve it first."""
        known = [] if self.may_combine(cost) else [shard for shard in self.shards if shard.seen.image is not None]
        readings = [_read([shard], now_ms) for shard in known] or [self.reading(now_ms)]
        return readings[0] if len(readings) == 1 else min(readings, key=lambda each: wait_for([each], cost, now_ms))

    @property
    def seen_ms(self) -> int:
        """The instant since when all of it was seen; 0 where something is not known."""
        if not self.complete:
            return 0
        return min(0 if seen.image is None else seen.seen_ms for _, seen in self.shards)


@dataclass(slots=True, eq=False)
class ChargePath:
    """The levels of one acquire, the entity itself first, and the queues in which its acquires are merged."""

    levels: tuple[BucketShards, ...]
    given: Override | None
    since_ms: int
    valid_until_ms: int
    generation: int
    coalescers: dict[object, WriteCoalescer[Any]] = field(default_factory=dict)
    multi_resource: tuple[ChargePath, ...] = ()
    """The chains of each resource, where this one is of several."""
    whole: tuple[ChargePath, tuple[int, ...]] | None = None
    """The chain that this is a part of, and the places of its levels in that."""
    parts: dict[tuple[int, ...], ChargePath] = field(default_factory=dict)
    """What `part` has made."""
    checked: set[tuple[str, ...]] = field(default_factory=set)
    """The names in costs for which it is known whether each level is charged."""
    primary_shards: tuple[BucketShard, ...] = field(init=False)
    """The shards that are charged first; where nothing is split they are all there is."""
    shards: tuple[BucketShard, ...] = field(init=False)
    """Every shard of every bucket."""
    names: Collection[str] = field(init=False)
    """The limits of all levels."""
    sharded: bool = field(init=False)
    """Whether one of the buckets is split."""
    slot_names: Collection[str] = field(init=False)
    """The concurrency limits of all levels."""
    has_quotas: bool = field(init=False)
    """Whether one of the levels has a quota."""
    plan: Any = field(init=False, default=None)
    """Its `DrawPlan`, on a store inside the process."""

    def __post_init__(self) -> None:
        first = self.levels[0]
        self.shards = (
            first.shards if len(self.levels) == 1 else tuple([shard for each in self.levels for shard in each.shards])
        )
        is_single = len(self.levels) == len(first.shards) == 1  # nearly all are: they share what the level has
        self.primary_shards = first.shards if is_single else tuple([level.home for level in self.levels])
        self.slot_names = self._collect_names([level.slot_limits for level, _ in self.primary_shards])
        self.names = self._collect_names([level.token_limits for level, _ in self.primary_shards])
        if self.slot_names:
            self.names = {*self.names, *self.slot_names}
        self.sharded = self.has_quotas = False
        for level, seen in self.primary_shards:
            self.sharded = self.sharded or level.shard_count > 1
            if level.token_limits.quotas:
                self.has_quotas, seen.outlook = True, seen.outlook or Outlook(level.token_limits.quotas)

    def _collect_names(self, limits: Sequence[Collection[str]]) -> Collection[str]:
        """Return the names of the limits of each level, as costs of this chain name them."""
        if not self.multi_resource:
            first = limits[0]
            return first if all(each is first for each in limits) else {name for names in limits for name in names}
        pairs = zip(self.primary_shards, limits, strict=True)
        return {qualify(name, home.level.resource) for home, names in pairs for name in names}

    def complete(self, cost: Mapping[str, int]) -> Mapping[str, int]:
        """Return the cost with a slot of each concurrency limit that it does not name."""
        slots = {name: MILLI for name in self.slot_names if name not in cost}
        return {**cost, **slots} if slots else cost

    def check_slots(self, cost: Mapping[str, int]) -> None:
        """Raise `ValidationError` for a cost of more slots than one write can take."""
        slots = {name: cost[name] // MILLI for name in self.slot_names if name in cost}
        if sum(slots.values()) > MOST_TAKEN:
            raise ValidationError("consume", slots, f"must be at most {MOST_TAKEN} slots at once, over all limits")

    def add_coalescer(self, scope: object) -> WriteCoalescer[Any]:
        """Open the queue of an event loop, or the one of all threads: nobody waits for a loop that may be dead.

        Writes of several loops meet in the store, as those of several processes do.
        """
        for ended in filter(has_ended, list(self.coalescers)):
            self.coalescers.pop(ended, None)
        return self.coalescers.setdefault(scope, WriteCoalescer())

    def with_levels(self, levels: tuple[BucketShards, ...]) -> ChargePath:
        """Return the same chain over other shards."""
        return replace(self, levels=levels, parts={})

    def is_like(self, other: ChargePath) -> bool:
        """Return whether another chain charges the same buckets under the same limits."""
        mine, theirs = ([(level.key, level.limits) for level, _ in chain.primary_shards] for chain in (self, other))
        return mine == theirs

    def part(self, places: tuple[int, ...]) -> ChargePath:
        """Return some levels of the chain as one of its own, as the store alone has them."""
        found = self.parts.get(places)
        if found is None:
            levels, validity = [self.levels[place] for place in places], (self.since_ms, self.valid_until_ms)
            found = ChargePath(tuple(levels), self.given, *validity, self.generation, whole=(self, places))
        return self.parts.setdefault(places, found)

    def cost_at(self, level: BucketLimits, cost: Mapping[str, int]) -> Mapping[str, int]:
        """Return the part of a cost that is taken from the resource of a level, by plain limit names."""
        if not self.multi_resource:
            return cost
        end = qualify("", level.resource)
        return {name.removesuffix(end): amount for name, amount in cost.items() if name.endswith(end)}

    @property
    def roots(self) -> tuple[Key, ...]:
        """The buckets as wholes."""
        return tuple(level.key(0) for level in self.levels)

    def count_takes(self) -> int:
        """Return how often slots of its buckets were taken, as last seen."""
        return sum(count_takes(level, seen.image or {}) for level, seen in self.primary_shards)

    def note_reservation(self, lease: Reserving, cost: Mapping[str, int]) -> None:
        """Remember that a lease takes tokens, which may come back."""
        for _, seen in self.primary_shards:
            if seen.outlook is not None:
                seen.outlook.add(lease, cost)

    def expects_return(self, status: LimitStatus, now_ms: int) -> bool:
        """Return whether tokens of a limit may come back: a lease of this process holds some, or some came lately."""
        buckets = [seen for level, seen in self.shards if level[2:4] == (status.entity_id, status.resource)]
        return any(seen.outlook is not None and seen.outlook.is_good(status.limit_name, now_ms) for seen in buckets)

    def instant(self, now_ms: int) -> int:
        """Return the instant of a decision: now, but never before what was seen last, should the clock step back.

        Slots are another matter: they come back by the clock.
        """
        for level, seen in self.primary_shards:
            if seen.seen_ms > now_ms and seen.image is not None and not level.slot_limits:
                now_ms = seen.seen_ms
        return now_ms

    def instant_for(self, cost: Mapping[str, int], now_ms: int) -> int:
        """Return the instant that the answer to a request counts from: that of the decision, or now if it is refused.

        They differ where the clock was set back: what is left stays there, but callers wait from now on.
        """
        instant = self.instant(now_ms)
        refuses = instant > now_ms and refusal(self.readings_for(cost, instant), cost, instant) is not None
        return now_ms if refuses else instant

    def refusal(self, kind: type[RateLimitExceeded], cost: Mapping[str, int], now_ms: int) -> RateLimitExceeded:
        """Return a refusal of a cost by the buckets as last seen, whose statuses are made when somebody looks."""
        images = {level.key: seen.image for level, seen in self.primary_shards}
        return kind(lambda: describe(self.readings(now_ms, images), cost, now_ms))

    def readings(self, now_ms: int, images: Mapping[Key, Image | None] | None = None) -> list[Reading]:
        """Return the chain as last seen, or with some of the images as given."""
        return self.present([level.reading(now_ms, images) for level in self.levels], now_ms)

    def readings_for(self, cost: Mapping[str, int], now_ms: int) -> list[Reading]:
        """Return what one request can be served from, level by level."""
        costs = [(level, self.cost_at(level.home.level, cost)) for level in self.levels]
        return self.present([level.reading_for(here, now_ms) for level, here in costs], now_ms)

    def primary_readings(self, now_ms: int) -> list[Reading]:
        """Return what the shards hold that are charged first."""
        return self.present([_read([home], now_ms) for home in self.primary_shards], now_ms)

    def present(self, readings: list[Reading], now_ms: int) -> list[Reading]:
        """Return readings of its levels as callers see them, for costs that name the limits of several resources."""
        several = bool(self.multi_resource)
        return [each._replace(qualifier=qualify("", each.resource)) for each in readings] if several else readings

    def show(self, images: Mapping[Key, Image | None], now_ms: int) -> None:
        """Keep what the store has shown of its buckets. Raise CorruptRecordError for a damaged one."""
        for shard in self.shards:
            if shard.level.key in images:
                shard.show(images[shard.level.key], now_ms)


def _read(shards: Sequence[BucketShard], now_ms: int, given: Mapping[Key, Image | None] | None = None) -> Reading:
    """Return what shards of a bucket hold, as last seen or with the images that are given."""
    rows = [(level, (given or {}).get(level.key, seen.image)) for level, seen in shards]
    tables = [seen.slots_of(image) for (_, seen), (_, image) in zip(shards, rows, strict=True)]
    return bucket.reading(rows, now_ms, tables)
