"""A chain: an entity and those above it that are charged with it, each with the shards of its bucket."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..core.decide import wait_for
from ..records import bucket, keys
from ..records.level import SHARDS, Level
from .lane import Lanes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Set

    from ..core.decide import Reading
    from ..core.limit import Limit
    from ..records.algebra import Image, Key
    from ..repository.sights import Sight


class Step(NamedTuple):
    """A level, or one shard of it, and what was last seen of its bucket."""

    level: Level
    sight: Sight

    @property
    def outgrown(self) -> bool:
        """Whether the bucket has been split since, or the shard is gone with all the others."""
        image = self.sight.image
        return self.level.count > 1 if image is None else image.get(SHARDS, 1) != self.level.count


class Rung(NamedTuple):
    """One entity of a chain: the shard that this process charges first, and the shards that it has seen.

    ``complete`` says that these are all there are, ``busy`` that others have written to them since they were looked
    at before.
    """

    home: Step
    shards: tuple[Step, ...]
    complete: bool = True
    busy: bool = False

    @property
    def root(self) -> Key:
        """The key of the bucket as a whole: that of its first shard."""
        return self.key(0)

    def key(self, shard: int) -> Key:
        """The key of one shard."""
        level = self.home.level
        return keys.bucket(level.namespace_id, level.entity_id, level.resource, shard)

    def reading(self, now_ms: int, images: Mapping[Key, Image | None] | None = None) -> Reading:
        """The bucket as last seen, or with some of its images as given."""
        given = images or {}
        return bucket.reading([(level, given.get(level.key, sight.image)) for level, sight in self.shards], now_ms)

    def gathers(self, cost: Mapping[str, int]) -> bool:
        """Whether what several shards have left is put together for one request.

        For one that no shard can ever hold, and when nobody else is there: among many who do it, everybody would write
        to everything. Else a request is served by one shard, and what is left in the others serves the next.
        """
        if not self.busy or self.home.level.count == 1:
            return True
        slots = self.home.level.slots
        count = max(step.level.count for step in self.shards)
        return any(need * count > slots[name].rule.capacity for name, need in cost.items() if name in slots)

    def offer(self, cost: Mapping[str, int], now_ms: int) -> Reading:
        """What there is for one request: all of it, or the shard that can serve it first."""
        known = [] if self.gathers(cost) else [step for step in self.shards if step.sight.image is not None]
        if not known:
            return self.reading(now_ms)
        offers = [bucket.reading([(level, sight.image)], now_ms) for level, sight in known]
        return min(offers, key=lambda offer: wait_for([offer], cost, now_ms))

    @property
    def seen_ms(self) -> int:
        """The instant since when all of it was seen; 0 where something is not known."""
        return min(sight.seen_ms for _, sight in self.shards) if self.complete else 0


class Chain:
    """The rungs of one acquire, the entity itself first, and the lanes in which its acquires are merged.

    ``steps`` are the shards that are charged first; where nothing is split they are all there is.
    """

    __slots__ = (
        "_lanes",
        "generation",
        "given",
        "rungs",
        "sharded",
        "since_ms",
        "steps",
        "valid_until_ms",
    )

    def __init__(
        self,
        rungs: tuple[Rung, ...],
        given: tuple[Limit, ...] | None,
        since_ms: int,
        valid_until_ms: int,
        generation: int,
        lanes: Lanes | None = None,
    ) -> None:
        self.rungs = rungs
        self.steps = _homes(rungs)
        self.sharded = any(step.level.count > 1 for step in self.steps)
        """Whether one of the buckets is split."""
        self.given = given
        self.since_ms = since_ms
        self.valid_until_ms = valid_until_ms
        self.generation = generation
        self._lanes = lanes

    @property
    def levels(self) -> tuple[Level, ...]:
        """The levels of the steps."""
        return tuple([step.level for step in self.steps])

    @property
    def names(self) -> Set[str]:
        """The limits of all levels, by name."""
        if len(self.steps) == 1:
            return self.steps[0].level.slots.keys()
        return {name for step in self.steps for name in step.level.slots}

    @property
    def lanes(self) -> Lanes:
        """The lanes, made on first use; two threads that make them each only merge less."""
        if self._lanes is None:
            self._lanes = Lanes()
        return self._lanes

    def with_rungs(self, rungs: tuple[Rung, ...]) -> Chain:
        """The same chain over other shards."""
        return Chain(rungs, self.given, self.since_ms, self.valid_until_ms, self.generation, self._lanes)

    @property
    def roots(self) -> tuple[Key, ...]:
        """The buckets as wholes."""
        return tuple(rung.root for rung in self.rungs)

    def shards(self) -> Iterator[Step]:
        """Every shard of every bucket."""
        for rung in self.rungs:
            yield from rung.shards

    def instant(self, now_ms: int) -> int:
        """The instant of a decision: now, but never before what was seen last, should the clock step back."""
        return max(now_ms, *[sight.seen_ms for _, sight in self.steps])

    def readings(self, now_ms: int, images: Mapping[Key, Image | None] | None = None) -> list[Reading]:
        """The chain as last seen, or with some images as given."""
        return [rung.reading(now_ms, images) for rung in self.rungs]

    def offers(self, cost: Mapping[str, int], now_ms: int) -> list[Reading]:
        """What there is for one request."""
        return [rung.offer(cost, now_ms) for rung in self.rungs]

    def home_readings(self, now_ms: int) -> list[Reading]:
        """What the shards hold that are charged first."""
        return [bucket.reading([(level, sight.image)], now_ms) for level, sight in self.steps]

    def show(self, images: Mapping[Key, Image | None], now_ms: int) -> None:
        """Keep what the store has shown of its buckets; a damaged one is an error, not a bucket."""
        for level, sight in self.shards():
            if level.key in images:
                image = images[level.key]
                sight.show(None if image is None else bucket.inspect(level.key, image), now_ms)


def _homes(rungs: tuple[Rung, ...]) -> tuple[Step, ...]:
    """The home of every rung: of a single one with a single shard the tuple that is there already."""
    if len(rungs) == 1 and rungs[0].shards == (rungs[0].home,):
        return rungs[0].shards
    return tuple(rung.home for rung in rungs)
