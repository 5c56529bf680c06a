"""Planning: which writes take a cost from a chain, by what was last seen of its buckets. No I/O.

The home shard of each bucket is asked first. Where it has too little, other shards are: one of them that can take
it all, else as many as it takes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from time import monotonic_ns
from typing import NamedTuple

from ..core.alerts import Alert
from ..core.change import Change
from ..core.credits import SpentLots, sum_up, take_last
from ..core.production import MILLI
from ..core.tokens import SOFT
from ..records import bucket, charging, migration
from ..records.algebra import Image, Write
from ..records.charging import Contention, Shortfalls
from ..records.ledger import with_usage
from ..records.level import CREDITS, HOUR_END, SHARDS
from ..records.lots import spent_lots
from ..records.slots import NO_PREFERENCE, SeenSlots, SlotRequest, TakenSlot, note_taken, taken_slots
from ..records.watching import watch
from ..runtime.serials import serials
from .charge_path import BucketShard, BucketShards, ChargePath


def new_slot_request(cost: Mapping[str, int], holder: str | None) -> SlotRequest:
    """Return one who takes slots by chance."""
    from random import getrandbits  # on first use: it brings a lot along

    return SlotRequest(cost, holder or "", getrandbits(32), os.urandom(4).hex(), order=monotonic_ns())


class ShardCharge(NamedTuple):
    """The cost taken from one shard, for how many grants; the write that does it, and the usage that it books."""

    shard: BucketShard
    cost: Mapping[str, int]
    write: Write
    accruals: tuple[Write, ...]
    grants: int
    lots: SpentLots = ()
    """The part of the cost that was taken from credits."""
    lots_later: Mapping[str, int] = {}
    """What those who are served by the same write after this one took from credits."""
    alerts: tuple[Alert, ...] = ()
    """The thresholds that it crosses."""
    slots: tuple[TakenSlot, ...] = ()
    """The slots that it takes."""
    requests: tuple[SlotRequest, ...] = ()
    """Those for whom they are taken."""

    @property
    def allowance_cost(self) -> Mapping[str, int]:
        """The part of the cost that was not taken from credits."""
        if not self.lots:
            return self.cost
        credit = sum_up(self.lots)
        return {name: amount - credit.get(name, 0) for name, amount in self.cost.items()}

    def divide(self, cost: Mapping[str, int]) -> tuple[ShardCharge, ShardCharge]:
        """Return the part without the last of several grants, which costs ``cost``, and the part of that one."""
        rest, last = take_last(self.lots, cost)
        later = add_up([self.lots_later, sum_up(last)])
        left = {name: amount // MILLI for name, amount in cost.items()}
        mine: tuple[TakenSlot, ...] = ()
        for slot in reversed(self.slots):
            if left.get(slot.limit_name, 0):
                left[slot.limit_name] -= 1
                mine = (slot, *mine)
        others = tuple([slot for slot in self.slots if slot not in mine])
        return self._replace(lots=rest, lots_later=later, slots=others), self._replace(lots=last, slots=mine)

    def give_back(self, amounts: Mapping[str, int]) -> ShardCharge:
        """Return the part after giving ``amounts`` back, to credits first."""
        return self._replace(lots=take_last(self.lots, amounts)[0])


class StalePath(Exception):
    """A bucket of the chain was charged under newer config, or has been split: the chain has to be resolved anew."""


def add_up(costs: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return what several grants cost together."""
    amounts: dict[str, int] = {}
    for cost in costs:
        for name, amount in cost.items():
            amounts[name] = amounts.get(name, 0) + amount
    return amounts


def plan_across_shards(chain: ChargePath, request: SlotRequest, now_ms: int) -> list[ShardCharge] | None:
    """Take a cost from whatever shards can give it; return None where all of them together cannot."""
    parts: list[ShardCharge] = []
    for level in chain.levels:
        here = request._replace(cost=chain.cost_at(level.home.level, request.cost))
        found = _take_from_one(_shuffle(level), here, now_ms)
        if found is None and level.may_combine(here.cost):
            found = _take_from_several(level, here, now_ms)
        elif found is None:
            found = _take_from_one(filter(_has_credits, level.shards), here, now_ms, spends_credits=True)
        if found is None:
            return None
        parts += found
    return parts


def plan_again(part: ShardCharge, image: Image | None, now_ms: int) -> ShardCharge | None:
    """Plan a part anew for the image that it has just met.

    Return None where it does not fit, the limits or shards are others now, or there is no bucket any more.
    """
    level = part.shard.level
    if image is None or image.get(SHARDS, 1) != level.shard_count or charging.is_ahead(level, image):
        return None
    names = charging.contended_limits(level, bucket.inspect(level.key, image), part.cost, now_ms)
    contention, spends_credits = Contention(names, now_ms, 1), level.shard_count == 1 or bool(part.lots)
    planned = plan_part(part.shard, image, part.cost, now_ms, contention, part.grants, spends_credits, part.requests)
    return planned if isinstance(planned, ShardCharge) else None


def plan_part(
    shard: BucketShard,
    image: Image | None,
    cost: Mapping[str, int],
    now_ms: int,
    contention: Contention,
    grants: int = 1,
    spends_credits: bool = True,
    requests: tuple[SlotRequest, ...] = (),
) -> ShardCharge | Shortfalls:
    """Take ``cost`` from one shard, last seen as ``image``; return what it lacks (nothing if that is not known).

    What the allowance does not have is taken from credits if ``spends_credits``. Slots are taken for the ``requests``.
    Raise `StalePath` if it was charged under newer config.
    """
    level, seen = shard
    preferred = seen.preferred_slots(now_ms) if requests else NO_PREFERENCE
    if preferred is not NO_PREFERENCE:
        requests = tuple([request._replace(preferred=preferred) for request in requests])
    frame = None if image is None else seen.limits(level, image, now_ms)
    if image is None:
        if level.shard_count > 1:
            return []
        change = charging.first_charge(level, cost, now_ms, grants, next(serials), requests)
    elif frame is not None and now_ms <= frame.until_ms and (not frame.idle or frame.idle.isdisjoint(cost)):
        change = charging.charge(level, image, frame, cost, now_ms, contention, grants, spends_credits)
    elif charging.is_ahead(level, image):
        raise StalePath
    else:
        change = migration.migrate(level, image, cost, now_ms, grants, spends_credits)
    if not isinstance(change, Change):
        return change
    if requests and image is not None:
        slots_seen = SeenSlots(image, seen.slots_of(image), now_ms)
        if not note_taken(level, slots_seen, change, requests, grants):
            return []
    alerts = watch(level, image, change, now_ms) if level.token_limits.watched else ()
    write = charging.write_of(change, level.key, image)
    slots = taken_slots(level, write.put) if requests else ()
    accruals: tuple[Write, ...] = ()
    if image is not None and (now_ms >= image.get(HOUR_END, 0) or write.remove):
        write, accruals = with_usage(level, image, write, now_ms)
    lots = spent_lots(write.add) if image is not None and CREDITS in image else ()
    return ShardCharge(shard, cost, write, accruals, grants, lots, alerts=alerts, slots=slots, requests=requests)


def _shuffle(level: BucketShards) -> Iterator[BucketShard]:
    """Iterate over the home and then all shards by chance, so that those who look for tokens do not meet."""
    yield level.home
    if len(level.shards) > 1:
        from random import sample  # on first use: it brings a lot along

        yield from sample(level.shards, len(level.shards))


def _take_from_one(
    shards: Iterable[BucketShard], request: SlotRequest, now_ms: int, *, spends_credits: bool = False
) -> list[ShardCharge] | None:
    """Take all that a request costs from the first shard that has it, as they were last seen."""
    for shard in shards:
        seen, requests = shard.seen, (request,) if shard.level.slot_limits else ()
        contention = seen.contention(now_ms)
        part = plan_part(shard, seen.image, request.cost, now_ms, contention, 1, spends_credits, requests)
        if isinstance(part, ShardCharge):
            return [part]
    return None


def _has_credits(shard: BucketShard) -> bool:
    return shard.seen.image is not None and CREDITS in shard.seen.image


def _take_from_several(level: BucketShards, request: SlotRequest, now_ms: int) -> list[ShardCharge] | None:
    """Take as much from each shard as it has, the fullest first and credits last, until nothing is missing.

    The shard with the credits comes first in what is returned: it gets back what is returned first. All of soft limits
    is taken from one shard.
    """
    floor = level.home.level.floor()
    named = {name: need for name, need in request.cost.items() if name in floor and floor[name] != SOFT}
    soft = {name: need for name, need in request.cost.items() if floor.get(name) == SOFT}
    missing = {name: need for name, need in named.items() if need}
    shards = _find_spare(level, named, now_ms)
    if any(all(spare[name] < 0 for _, spare in shards) for name in named if name not in missing):
        return None
    parts: list[ShardCharge] = []
    for shard, spare in sorted(shards, key=lambda row: (_has_credits(row[0]), -sum(row[1].values()))):
        taken = {name: min(spare[name], need) for name, need in missing.items() if spare[name] > 0}
        here = request._replace(cost=taken if parts else taken | soft)
        found = _take_from_one([shard], here, now_ms, spends_credits=True) if taken or not missing else None
        if found is None:
            continue
        parts = [*found, *parts] if found[0].lots else [*parts, *found]
        missing = {name: need - taken.get(name, 0) for name, need in missing.items() if need > taken.get(name, 0)}
        if not missing:
            return parts
    return None


def _find_spare(level: BucketShards, names: Mapping[str, int], now_ms: int) -> list[tuple[BucketShard, dict[str, int]]]:
    """Return what each shard that exists can give of some limits, beside its share of what has to be left."""
    found = []
    for shard, image in [(shard, shard.seen.image) for shard in level.shards]:
        if image is not None:
            floor, balances = shard.level.floor(image), bucket.reading([(shard.level, image)], now_ms).balances
            found.append((shard, {name: balances[name][0].level(now_ms) - floor[name] for name in names}))
    return found
