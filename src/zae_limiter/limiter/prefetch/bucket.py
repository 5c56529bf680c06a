"""The tokens that this process has prefetched of one bucket, shared by all its threads and event loops.

Callers take from them without asking the store. Every write that draws more also settles what has become of the ones
before: unused tokens go back, and what leases have used more or less than they took is corrected.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from ...core.advance import Advance
from ...core.balances import Balance, Tokens
from ...core.decide import Reading
from ...core.limit import Limit
from ...core.production import FOR_EVER, MILLI
from ...records.algebra import Image, Write
from ...records.bucket import reading as read_level
from ...records.level import CREDITS, BucketLimits
from ..charge_path import BucketShard, BucketShards, ChargePath
from ..grant import NOTHING, ShardCharge, add_up
from ..options import Override
from .batches import Books, CorrectedBucket, Correction, PrefetchedBatch, WriteUnderWay, find_batch

Piece: TypeAlias = tuple[PrefetchedBatch, Mapping[str, int], Mapping[str, int]]
"""A batch, what was taken of it, and what that has left."""

FEWEST = 2
"""Minimum number of acquires expected while tokens are kept, for any to be drawn in advance."""
_WINDOW_MS = 100
"""How long is counted at a time, in milliseconds; what came before counts half as much as what came since."""
_LEAD_MS = 30
"""How long before the tokens run out, at the present demand, more of them are drawn, in milliseconds."""


@dataclass(slots=True, eq=False)
class Taken:
    """What one grant has taken of the prefetched tokens of a bucket, the oldest batch first."""

    bucket: PrefetchedBucket
    pieces: Sequence[Piece]
    corrections: tuple[Correction, ...] = ()

    def settle(self, delta: Mapping[str, int]) -> None:
        """Have a correction written with the next write to the bucket; it belongs to the oldest of the batches."""
        batch = self.pieces[0][0]
        mine = {name: amount for name, amount in delta.items() if amount and name in batch.level.token_limits}
        if mine:
            self.corrections = (*self.corrections, self.bucket.correct(batch, mine))

    @property
    def is_settled(self) -> bool:
        """Whether all corrections are written, as far as they can be."""
        return all(correction.settled for correction in self.corrections)

    def undo(self) -> None:
        """Put the tokens back; the next write returns those of which others have taken more since."""
        if not any(self.pieces[0][1].values()):  # it has taken nothing
            return
        bucket = self.bucket
        with bucket.lock:
            bucket.grants -= 1
            for batch, mine, left in self.pieces:
                if batch.left is left and batch in bucket.batches:
                    batch.left = {name: amount + mine.get(name, 0) for name, amount in left.items()}
                else:
                    back = {name: -amount for name, amount in mine.items() if name in batch.advances}
                    bucket.correct(batch, back, unused=True)

    def read_left(self, level: BucketLimits, now_ms: int) -> Iterator[tuple[Limit, int]]:
        """Iterate over what a caller could rely on right after it: what was held, and what the bucket had."""
        batch, _, left = self.pieces[-1]
        rests = [each.rest(each.left) for each in tuple(self.bucket.batches) if each is not batch] + [batch.rest(left)]
        balances = _add_rests(read_level([(batch.level, batch.image)], now_ms).balances, rests)
        for limit in level.limits:
            if limit.name in balances:
                yield limit, balances[limit.name][0].level(now_ms)


def _add_rests(
    balances: Mapping[str, tuple[Balance, ...]], rests: Iterable[Mapping[str, Advance]]
) -> dict[str, tuple[Balance, ...]]:
    """Return balances that include the tokens that are held."""
    found = dict(balances)
    for name, (first, *others) in balances.items():
        held = tuple([rest[name] for rest in rests if name in rest])
        if held and isinstance(first, Tokens):
            found[name] = (first._replace(advances=held), *others)
    return found


class Demand:
    """How many acquires callers of this process have asked for lately, and how much of each limit, per second."""

    def __init__(self, now_ms: int) -> None:
        self.acquires = 0.0
        self.tokens: dict[str, float] = {}
        """In millitokens, by limit."""
        self.others: dict[str, float] = {}
        """What other processes take per second, in millitokens by limit."""
        self._asked = 0
        self._wanted: dict[str, int] = {}
        self._since_ms = now_ms
        self._before: Image | None = None
        self._own: dict[str, int] = {}
        self._seen_ms = 0

    def count(self, cost: Mapping[str, int], now_ms: int) -> bool:
        """Count an acquire; return whether that has changed the means."""
        self._asked += 1
        wanted = self._wanted
        for name, need in cost.items():
            wanted[name] = wanted.get(name, 0) + need
        passed = now_ms - self._since_ms
        if 0 <= passed < _WINDOW_MS:
            return False
        if passed > 0:  # else the clock was set back
            kept = 0.5 ** (passed / _WINDOW_MS)
            self.acquires = self.acquires * kept + self._asked * MILLI / passed * (1 - kept)
            self.tokens = {
                name: self.tokens.get(name, 0.0) * kept + wanted.get(name, 0) * MILLI / passed * (1 - kept)
                for name in {*wanted, *self.tokens}
            }
        self._asked, self._wanted, self._since_ms = 0, {}, now_ms
        return True

    def learn(self, level: BucketLimits, image: Image, write: Write, now_ms: int) -> None:
        """Learn what others take: what was consumed in the image after an own write, beyond own writes."""
        counters = {name: limit.at.consumed for name, limit in level.token_limits.items()}
        for name, attr in counters.items():
            self._own[name] = self._own.get(name, 0) + write.add.get(attr, 0)
        passed = now_ms - self._seen_ms
        if self._before is not None:
            if passed < _WINDOW_MS:
                return
            for name, attr in counters.items():
                rate = (image.get(attr, 0) - self._before.get(attr, 0) - self._own[name]) * MILLI / passed
                self.others[name] = max(0.0, (self.others.get(name, rate) + rate) / 2)
        self._before, self._own, self._seen_ms = image, {}, now_ms

    def is_high(self, keep_ms: int) -> bool:
        """Return whether it is high enough to draw tokens in advance that are kept for ``keep_ms``."""
        return self.acquires * keep_ms >= FEWEST * MILLI

    def usual_cost(self, name: str) -> float:
        """Return what an acquire takes of a limit on the average, in millitokens; at least one."""
        return max(1.0, self.tokens.get(name, 0.0) / self.acquires) if self.acquires else 1.0


@dataclass(slots=True, eq=False)
class DrawPath(ChargePath):
    """One prefetched bucket as a path, for the writes that draw from it."""

    bucket: PrefetchedBucket = field(kw_only=True)

    def present(self, readings: list[Reading], now_ms: int) -> list[Reading]:
        """Return readings of the bucket with what is held of it."""
        return [self.bucket.add_to(self.bucket.home.level, reading, now_ms) for reading in readings]


class PrefetchedBucket(CorrectedBucket):
    """The tokens held of one bucket, the callers' demand for them, and what is to be corrected."""

    chain: DrawPath
    """The bucket alone, for the writes that draw from it."""
    names: Collection[str]
    """Its limits."""

    def __init__(self, books: Books, home: BucketShard, given: Override | None) -> None:
        super().__init__(books, home)
        self.demand = Demand(books.now_ms())
        self._looked: PrefetchedBatch | None = None
        """The empty batch of leases that have taken nothing of the bucket, as it was last seen."""
        self._low: dict[str, float] = {}
        """What is left of each limit when more has to be drawn."""
        self.is_low = False
        self.draws = True
        """Whether writes draw in advance; if not, they only settle."""
        self._move(home, given)

    def forget(self) -> None:
        super().forget()
        self.batches: list[PrefetchedBatch] = []
        """The oldest first."""

    def _move(self, home: BucketShard, given: Override | None) -> None:
        self.home = home
        self.names = frozenset(home.level.token_limits)
        self.chain = DrawPath((BucketShards(home, (home,)),), given, 0, FOR_EVER, 0, bucket=self)
        self.chain.sharded = False  # its writes know this record alone

    def serves(self, level: BucketLimits) -> bool:
        """Return whether the tokens were drawn under the limits of a level, and from its shard."""
        mine = self.home.level
        is_same = mine.version == level.version and mine.shard_count == level.shard_count
        return is_same and mine.token_limits is level.token_limits

    def follow(self, home: BucketShard, given: Override | None) -> bool:
        """Go on under other limits, and return what was drawn under the old ones. Return False if these are older."""
        if self.serves(home.level) and home.seen is self.home.seen:
            return True
        with self.lock:
            if not self.serves(home.level):  # else what was last seen was forgotten meanwhile, and is kept elsewhere
                if (home.level.version or 0) < (self.home.level.version or 0):
                    return False
                self.end_batches()
            self._move(home, given)
            return True

    @property
    def is_hot(self) -> bool:
        """Whether demand is high enough for tokens to be drawn in advance."""
        return self.demand.is_high(self.books.keep_ms)

    def count(self, cost: Mapping[str, int], now_ms: int) -> None:
        if self.demand.count(cost, now_ms):
            tokens = self.demand.tokens.items() if self.is_hot else ()
            self._low = {name: amount * _LEAD_MS / MILLI for name, amount in tokens if name in self.names}

    def take(self, cost: Mapping[str, int], now_ms: int) -> Taken | None:
        """Take ``cost`` of the tokens that are held; return None if they are not all there, or callers are waiting."""
        under_way = self.write
        for name, need in cost.items():
            if need and name in self.names:
                break
        else:  # it takes nothing of the bucket
            return self._look(cost, now_ms)
        if not self.batches or (under_way is not None and under_way.awaited):
            return None
        with self.lock:
            batches = self.batches
            for batch in batches:
                if batch.all_grantable_from <= now_ms <= batch.until_ms:
                    left = self._take_from(batch, cost)
                    if left is not None:
                        self.grants += 1
                        if batch is not batches[0] and batches[0].is_over(now_ms):
                            self.end_batches(now_ms)
                        return Taken(self, ((batch, cost, left),))
                elif not batch.is_over(now_ms):
                    break
            return self.take_across(cost, now_ms)

    def _look(self, cost: Mapping[str, int], now_ms: int) -> Taken | None:
        """Grant a cost that takes nothing, if no limit that it names is in debt.

        Return None if one is, or the bucket was last seen longer ago than tokens are kept.
        """
        level, seen = self.home
        image = seen.image
        if image is None or not self.is_hot or not 0 <= now_ms - seen.seen_ms <= self.books.keep_ms:
            return None
        limits = seen.limits(level, image, now_ms)
        if limits is None or now_ms > limits.until_ms:
            return None
        for name in cost.keys() & self.names:
            limit, settled = limits.by_name[name], self.see(image, now_ms)
            if limit.level(settled, now_ms) < limit.floor and not self.count_ready(now_ms).get(name):
                return None
        batch = self._looked
        if batch is None or batch.image is not image or batch.level is not level:
            batch = self._looked = PrefetchedBatch(level, image, now_ms, {}, now_ms)
        batch.seen_ms = max(batch.seen_ms, now_ms)  # as of which it is owed what leases use of it after all
        return Taken(self, ((batch, NOTHING, NOTHING),))

    def _take_from(self, batch: PrefetchedBatch, cost: Mapping[str, int]) -> dict[str, int] | None:
        """Take ``cost`` of one batch, if it is all there. Return what is left of the batch."""
        left, low = batch.left.copy(), self._low
        for name, need in cost.items():
            have = left.get(name, 0)
            if have < (need or 1):
                if name in self.names and (need or name not in self.batches[-1].sound):
                    return None
            elif need:
                left[name] = have = have - need
                if have < low.get(name, 0.0):
                    others = sum([each.left.get(name, 0) for each in self.batches if each is not batch])
                    self.is_low = self.is_low or have + others < low[name]
        batch.left = left
        return left

    def take_across(self, cost: Mapping[str, int], now_ms: int) -> Taken | None:
        """Take ``cost`` of as many batches as it needs, the oldest tokens first; return None if it is not all there."""
        ready, sound = self.count_ready(now_ms), self.batches[-1].sound if self.batches else ()
        needs = {name: need for name, need in cost.items() if name in self.names and (need or name not in sound)}
        if not self.batches or any(ready.get(name, 0) < (need or 1) for name, need in needs.items()):
            return None
        self.grants += any(needs.values())
        pieces: list[Piece] = []
        for batch in self.batches:
            there = batch.grantable(now_ms)
            mine = {name: min(need, there[name]) for name, need in needs.items() if need and there.get(name)}
            left = self._take_from(batch, mine) if mine else None
            if left is not None:
                needs = {name: need - mine.get(name, 0) for name, need in needs.items()}
                pieces.append((batch, mine, left))
        if not pieces:  # the limits have changed meanwhile
            pieces = [(self.batches[-1], NOTHING, self.batches[-1].left)]
        return Taken(self, pieces)

    def count_ready(self, now_ms: int) -> dict[str, int]:
        """Return what may be granted at ``now_ms``, by limit."""
        return add_up([batch.grantable(now_ms) for batch in tuple(self.batches)])

    def count_left(self, now_ms: int) -> dict[str, int]:
        """Return what may be granted at ``now_ms`` or later, by limit."""
        return add_up([batch.left for batch in tuple(self.batches) if now_ms <= batch.until_ms])

    def end_batches(self, now_ms: int | None = None) -> None:
        """Return all tokens with the next write, or only those that cannot be granted after ``now_ms``."""
        with self.lock:
            for batch in tuple(self.batches):
                if now_ms is None or batch.is_over(now_ms):
                    self.batches.remove(batch)
                    back = batch.take_back()
                    self.books.returned -= sum(back.values())
                    if back or (self.grants and batch.level.usage_days):  # they have to be counted as well
                        self.correct(batch, back, unused=True)

    def keep(self, part: ShardCharge, image: Image | None, write: WriteUnderWay) -> None:
        """Keep the tokens drawn by a write that has left the bucket as ``image``."""
        self.books.writes += 1
        if image is None:
            return
        self.demand.learn(part.shard.level, image, part.write, write.now_ms)
        batch = find_batch(part, image, write.as_of_ms, write.now_ms, self.books.keep_ms)
        if batch is not None:
            self.batches.append(batch)
            self.is_low = False
            self.books.schedule(self)

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing held and nothing to write."""
        return not (self.batches or self._corrections or self.write)

    def due_ms(self) -> int:
        """Return when something has to be written, unless another write takes it along, or the next tokens expire."""
        ends = [batch.until_ms + 1 for batch in tuple(self.batches)]
        return min([*ends, *(correction.due_ms for correction in tuple(self._corrections))], default=FOR_EVER)

    @property
    def may_have_more(self) -> bool:
        """Whether the bucket has tokens that are not drawn in advance: in other shards, or as credits."""
        image = self.home.seen.image
        return self.home.level.shard_count > 1 or (image is not None and CREDITS in image)

    def add_to(self, level: BucketLimits, reading: Reading, now_ms: int) -> Reading:
        """Return what was read of the bucket with the tokens that are held of it, and what is to be corrected."""
        if self.is_idle:
            return reading
        balances, image = reading.balances, self.home.seen.image
        if level.shard_count == 1 and self.serves(level):
            seen = None if image is None else self.see(image, now_ms)
            balances = read_level([(level, seen)], now_ms).balances
        rests = [batch.rest(batch.left) for batch in tuple(self.batches) if now_ms <= batch.until_ms]
        return reading._replace(balances=_add_rests(balances, rests))
