"""Planning: who of those who ask is served by the next write, by which writes, or why nobody is. No I/O.

What was last seen of the buckets decides. The home shard of each bucket is asked first. Where it has too little, other
shards are: one of them that can take it all, else as many as it takes.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from time import monotonic_ns
from typing import NamedTuple

from ..core.change import Change
from ..core.decide import find_fitting, refusal
from ..core.errors import CapacityExceeded, RateLimitExceeded
from ..core.production import MILLI
from ..core.tokens import SOFT
from ..records import bucket, charging, migration
from ..records.algebra import Image, Write
from ..records.charging import ALONE, Contention, Shortfalls
from ..records.ledger import with_usage
from ..records.level import CREDITS, HOUR_END, SHARDS
from ..records.lots import spent_lots
from ..records.slots import MOST_TAKEN, NO_PREFERENCE, SeenSlots, SlotRequest, note_taken, taken_slots
from ..records.watching import watch
from ..runtime.serials import serials
from .charge_path import BucketShard, BucketShards, ChargePath
from .coalescer import PendingCharge
from .grant import NOTHING, Grant, ShardCharge, add_up


class StalePath(Exception):
    """A bucket of the chain was charged under newer config, or has been split: the chain has to be resolved anew."""


_RECENT_MS = 100
"""How long a look at all shards says which of them has something left."""


class Freshness(enum.Enum):
    """How sure it is what the buckets of a chain hold."""

    REMEMBERED = enum.auto()
    """They were seen some time ago: reason enough to write, but only for a moment to refuse."""
    LOST_RACE = enum.auto()
    """The store has shown what there was instead when a race was lost, of the shards that it was about."""
    SHOWN = enum.auto()
    """The store has just shown all of it."""


class CommitPlan(NamedTuple):
    """Who is to be served by one commit, what they cost together, and its parts."""

    charges: list[PendingCharge[Grant]]
    cost: Mapping[str, int]
    parts: list[ShardCharge]
    uses_other_shards: bool = False
    """Whether not the home shards alone give it, or credits beside them."""

    def share(self, grant: Grant) -> None:
        """Give each charge its part of what was granted to all of them, with what those after it took on top."""
        later, parts = NOTHING, grant.parts
        for charge in reversed(self.charges):
            if parts is not None:
                costs = [grant.chain.cost_at(part.shard.level, charge.cost) for part in parts]
                parts, last = zip(*[part.divide(cost) for part, cost in zip(parts, costs, strict=True)], strict=True)
                grant = grant._replace(parts=last)
            charge.grant = grant._replace(cost=charge.cost, later=later)
            later = add_up([later, charge.cost])


class Lack(NamedTuple):
    """What a charge lacks, shard by shard, as far as what is known tells it."""

    rows: tuple[tuple[BucketShard, Shortfalls], ...] = ()

    def refuse(self, chain: ChargePath, cost: Mapping[str, int], now_ms: int) -> RateLimitExceeded | None:
        """Return the refusal, and note it at the shards; None if this is not all there is to say.

        Limits with a schedule and credits may have the cost at another moment.
        """
        if not self.rows or not all(missing for _, missing in self.rows):
            return None
        if any(level.scheduled or CREDITS in (seen.image or ()) for level, seen in chain.primary_shards):
            return None
        if any(each.is_permanent for _, missing in self.rows for each in missing):
            return chain.refusal(CapacityExceeded, cost, now_ms)
        for (_, seen), _ in self.rows:
            seen.refused = True
        return chain.refusal(RateLimitExceeded, cost, now_ms)


UNKNOWN = Lack()


def plan_commit(
    chain: ChargePath, pending: list[PendingCharge[Grant]], now_ms: int, freshness: Freshness
) -> CommitPlan | Lack:
    """Choose what to write for whom: as many as the home shards can take, else one from whatever shards have it.

    If none can be served by what is known, return what the first one lacks. Raise `StalePath` if the chain is not what
    it was.
    """
    charges, cost = pending, pending[0].cost
    if len(pending) > 1:
        fits = find_fitting(chain.primary_readings(now_ms), [charge.cost for charge in pending], now_ms)
        charges = [charge for charge, fit in zip(pending, fits, strict=True) if fit]
        if chain.slot_names:
            charges = _choose_slot_requests(chain, charges)
        cost = add_up([charge.cost for charge in charges])
    parts: list[ShardCharge] = []
    lack: tuple[tuple[BucketShard, Shortfalls], ...] = ()
    uses_other_shards = False
    for place, home in enumerate(chain.primary_shards if charges else ()):
        level, seen = home
        image = seen.image
        is_unsure = image is None and chain.levels[place].is_unsure(now_ms)
        if is_unsure or (1 if image is None else image.get(SHARDS, 1)) != level.shard_count:
            raise StalePath
        here, grants = (chain.cost_at(level, cost) if chain.multi_resource else cost), 1
        if len(charges) > 1:
            grants = sum([level.charges(chain.cost_at(level, charge.cost)) for charge in charges])
        contention = seen.contention(now_ms) if seen.contended or level.partition_writes else ALONE
        slot_charges = charges if level.slot_limits else ()
        requests = tuple([new_slot_request(chain.cost_at(level, each.cost), each.holder) for each in slot_charges])
        part = plan_part(home, image, here, now_ms, contention, grants, level.shard_count == 1, requests)
        if not isinstance(part, ShardCharge):
            lack = (*lack, (home, part))
            continue
        if image is not None:  # with the marks of the lines whose first waiters it serves handed to the next ones
            for turn in [charge.turn for charge in charges if charge.turn is not None]:
                part = part._replace(write=turn(part.write, level, image))
        parts.append(part)
        uses_other_shards = uses_other_shards or (image is not None and CREDITS in image)
    if len(parts) == len(chain.primary_shards):
        return CommitPlan(charges, cost, parts, uses_other_shards)
    if chain.sharded:
        return _use_other_shards(chain, pending, now_ms, freshness)
    return Lack(lack) if len(pending) == 1 else UNKNOWN


def _choose_slot_requests(chain: ChargePath, charges: list[PendingCharge[Grant]]) -> list[PendingCharge[Grant]]:
    """Return those of several charges who take slots by one write, which has a guard for each.

    After a lost race it is one: the more slots a write wants, the more likely somebody else has one of them.
    """
    if any(seen.lost for _, seen in chain.primary_shards):
        return charges[:1]
    wanted = accumulate(sum(charge.cost.get(name, 0) for name in chain.slot_names) for charge in charges)
    return [charge for charge, total in zip(charges, wanted, strict=True) if total <= MOST_TAKEN * MILLI]


def _use_other_shards(
    chain: ChargePath, pending: list[PendingCharge[Grant]], now_ms: int, freshness: Freshness
) -> CommitPlan | Lack:
    """Choose whom to serve from whatever shards have the cost, if all were seen recently enough."""
    is_recent = all(now_ms - level.seen_ms <= _RECENT_MS for level in chain.levels)
    if freshness is not Freshness.SHOWN and not (freshness is Freshness.REMEMBERED and is_recent):
        return UNKNOWN
    different = {tuple(charge.cost.items()): charge for charge in reversed(pending)}
    for charge in reversed(different.values()):
        parts = plan_across_shards(chain, new_slot_request(charge.cost, charge.holder), now_ms)
        if parts is not None:
            return CommitPlan([charge], charge.cost, parts, uses_other_shards=True)
    return UNKNOWN


def known_refusal(chain: ChargePath, cost: Mapping[str, int], now_ms: int, ttl_ms: int) -> RateLimitExceeded | None:
    """Return the refusal if a limit that refuses was seen at most ``ttl_ms`` ago; None if the store must be asked.

    Others may have given tokens back since it was seen, so no refusal is repeated for longer than that. Slots come back
    whenever a call is done, so that none was free says nothing of now.
    """
    recent = [abs(now_ms - level.seen_ms) <= ttl_ms for level in chain.levels]
    if not ttl_ms or not any(recent):
        return None
    now_ms = chain.instant_for(cost, now_ms)
    readings = chain.readings_for(cost, now_ms)
    tokens = {name: need for name, need in cost.items() if name not in chain.slot_names} if chain.slot_names else cost
    if any(fresh and refusal([reading], tokens, now_ms) for fresh, reading in zip(recent, readings, strict=True)):
        return refusal(readings, cost, now_ms)
    return None


def remember_refusal(chain: ChargePath, error: RateLimitExceeded, cost: Mapping[str, int], now_ms: int) -> None:
    """Mark the buckets that have refused: the next request may need no question."""
    if not isinstance(error, CapacityExceeded):
        for home, reading in zip(chain.primary_shards, chain.primary_readings(now_ms), strict=True):
            if refusal([reading], cost, now_ms) is not None:
                home.seen.refused = True


def new_slot_request(cost: Mapping[str, int], holder: str | None) -> SlotRequest:
    """Return one who takes slots by chance."""
    from random import getrandbits  # on first use: it brings a lot along

    return SlotRequest(cost, holder or "", getrandbits(32), os.urandom(4).hex(), order=monotonic_ns())


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
