"""Deciding: who of those who ask is served by the next write, or why nobody is. No I/O."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from itertools import accumulate
from typing import NamedTuple

from ..core.decide import find_fitting, refusal
from ..core.errors import CapacityExceeded, RateLimitExceeded
from ..core.production import MILLI
from ..records.charging import ALONE, Shortfalls
from ..records.level import CREDITS, SHARDS
from ..records.slots import MOST_TAKEN
from .charge_path import BucketShard, ChargePath
from .coalescer import PendingCharge
from .grant import NOTHING, Grant
from .planning import ShardCharge, StalePath, add_up, new_slot_request, plan_across_shards, plan_part

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
