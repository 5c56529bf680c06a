"""A grant: tokens that were taken, and what is known of the buckets right after it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol, TypeAlias

from ..core.alerts import Alert
from ..core.balances import balance
from ..core.credits import SpentLots, sum_up, take_last
from ..core.limit import Limit
from ..core.production import MILLI
from ..records.algebra import Image, Write
from ..records.level import BucketLimits
from ..records.lots import credits_by_limit
from ..records.slots import SlotRequest, TakenSlot
from .charge_path import BucketShard, ChargePath

NOTHING: dict[str, int] = {}


class TakenTokens(Protocol):
    """What one grant has taken of the tokens that this process holds of a level."""

    @property
    def is_settled(self) -> bool:
        """Whether all corrections are written, as far as they can be."""

    def settle(self, delta: Mapping[str, int]) -> None:
        """Have a correction written with the next write to the bucket."""

    def undo(self) -> None:
        """Put the tokens back."""

    def read_left(self, level: BucketLimits, now_ms: int) -> Iterator[tuple[Limit, int]]:
        """Iterate over what a caller could rely on right after it, in millitokens."""


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


def add_up(costs: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return what several grants cost together."""
    amounts: dict[str, int] = {}
    for cost in costs:
        for name, amount in cost.items():
            amounts[name] = amounts.get(name, 0) + amount
    return amounts


class Grant(NamedTuple):
    """Tokens taken: from which chain, and its buckets right after it as of ``now_ms``."""

    chain: ChargePath
    cost: Mapping[str, int]
    images: Sequence[Image | None]
    now_ms: int
    later: Mapping[str, int]
    """Tokens that others may have taken on top before the images were seen."""
    parts: tuple[ShardCharge, ...] | None
    """The tokens taken from each shard, if not all were taken from the home shards or buckets have credits."""
    settled: Mapping[str, int] | None = None
    """What was settled of it before, part of ``cost``: then its place among other charges is not known any more."""
    prefetched: tuple[TakenTokens | None, ...] | None = None
    """What was taken of each level from tokens that this process held; then ``images`` are those of the others."""

    @property
    def holds_slots(self) -> bool:
        """Whether it has slots that were not freed yet."""
        return any(not slot.ended for part in self.parts or () for slot in part.slots)

    @property
    def is_prefetched(self) -> bool:
        """Whether all of it was taken from tokens that this process held."""
        return self.prefetched is not None and not self.images

    @property
    def is_settled(self) -> bool:
        """Whether no correction of it waits for the next write."""
        return all(taken is None or taken.is_settled for taken in self.prefetched or ())

    def portions(self) -> Iterator[tuple[BucketShard, Mapping[str, int], Image | None, ShardCharge | None]]:
        """Iterate over what was taken where, the bucket right after it, and the part that says what credits gave."""
        images = iter(self.images)
        if self.parts is not None:
            for part in self.parts:
                yield part.shard, part.cost, next(images), part
            return
        homes = self.chain.primary_shards
        for home, taken in zip(homes, self.prefetched or [None] * len(homes), strict=True):
            if taken is None:
                yield home, self.cost, next(images), None

    def split_by_resource(self) -> Iterator[Grant]:
        """Iterate over the grants of each resource; over itself if it is of one resource."""
        if not self.chain.multi_resource:
            yield self
            return
        levels = [shard.level for shard, _, _, _ in self.portions()]
        for chain in self.chain.multi_resource:
            level = chain.primary_shards[0].level
            places = [place for place, each in enumerate(levels) if each.resource == level.resource]
            cost, later = (self.chain.cost_at(level, amounts) for amounts in (self.cost, self.later))
            images = tuple([self.images[place] for place in places])
            parts = None if self.parts is None else tuple([self.parts[place] for place in places])
            yield Grant(chain, cost, images, self.now_ms, later, parts, self.settled)


GrantFields: TypeAlias = tuple[
    ChargePath,
    Mapping[str, int],
    Sequence[Image | None],
    int,
    Mapping[str, int],
    tuple[ShardCharge, ...] | None,
    Mapping[str, int] | None,
    "tuple[TakenTokens | None, ...] | None",
]
"""The fields of a `Grant`, which is made of them on first use."""
new_grant = partial(tuple.__new__, Grant)
"""A `Grant` from all its fields at once."""


def read_credits(grant: Grant) -> dict[tuple[str, str], int]:
    """Return the whole tokens of credit that a grant has left, by entity and limit, if there are any."""
    found = {}
    for shard, _, image, part in grant.portions():
        for name, lots in ({} if image is None else credits_by_limit(image)).items():
            later = 0 if part is None else part.lots_later.get(name, 0)
            held = sum(milli for expires_ms, milli in lots if expires_ms > grant.now_ms)
            found[shard.level.entity_id, name] = (held + later) // MILLI
    return found


def find_overdrawn(granted: GrantFields) -> tuple[str, ...]:
    """Return the limits, sorted, of which more was taken than there was: soft ones, and those of a bypassed level.

    What was taken from credits was there.
    """
    found = _overdrawn_at_homes(granted)
    if found is not None:
        return tuple(sorted(found))
    chain, asked, _, _, _, parts, _, _ = granted
    if not any(home.level.may_overdraw for home in chain.primary_shards):
        return ()
    found = set()
    credit = {} if parts is None else read_credits(new_grant(granted))
    for level, limit, left in read_left(granted):
        whose, taken = (level.entity_id, limit.name), asked.get(limit.name, 0)
        if parts is not None:
            mine = [part for part in parts if part.shard.level[2:4] == level[2:4]]  # of the entity and resource
            taken = sum(part.allowance_cost.get(limit.name, 0) for part in mine)
        if limit.name in level.overdrafts() and left - credit.get(whose, 0) < 0 < taken:
            found.add(limit.name)
    return tuple(sorted(found))


def _overdrawn_at_homes(granted: GrantFields) -> set[str] | None:
    """Return what `find_overdrawn` does, by the images alone; None if these do not say it all."""
    chain, asked, images, now_ms, later, parts, _, prefetched = granted
    if later or parts is not None or prefetched is not None or chain.sharded:
        return None
    found = set()
    for (level, seen), image in zip(chain.primary_shards, images, strict=True):
        if level.token_limits.soft:
            frame = None if image is None else seen.limits(level, image, now_ms)
            if image is None or frame is None:
                return None
            for name, limit in frame.by_name.items():
                if limit.soft and asked.get(name, 0) > 0 > image[limit.at.tokens] + limit.since(now_ms):
                    found.add(name)
    return found


def read_left(granted: GrantFields) -> list[tuple[BucketLimits, Limit, int]]:
    """Return what a grant has left of every limit of every level, in whole tokens."""
    chain, _, images, now_ms, later, parts, _, prefetched = granted
    found: list[tuple[BucketLimits, Limit, int]] = []
    if prefetched is None:
        prefetched = (None,) * len(chain.levels)
    seen_images = iter(images)
    for shards, mine in zip(chain.levels, prefetched, strict=True):
        level, seen = shards.home
        if mine is not None:
            found += [(level, limit, milli // MILLI) for limit, milli in mine.read_left(level, now_ms)]
            continue
        image = next(seen_images) if parts is None else None
        image = image if len(shards.shards) == 1 else None
        checked = None if image is None else seen.limits(level, image, now_ms)
        limits = {} if checked is None else checked.by_name
        if image is None or not limits:
            known = {shard.level.key: image for shard, _, image, _ in new_grant(granted).portions()}
            balances = shards.reading(now_ms, known).balances
        for limit in level.limits:
            if image is None or not limits:
                held = balance(balances[limit.name], now_ms)
            else:
                anchored = limits[limit.name]
                held = anchored.level(image, now_ms)
            if limit.calendar is not None:
                limit = limit.begin_window((image or seen.image or {}).get(level.token_limits[limit.name].at.window))
            found.append((level, limit, (held + later.get(limit.name, 0) if later else held) // MILLI))
    return found


def add_share(grant: Grant, share: Mapping[str, int]) -> Grant:
    """Return a grant with what was settled of it since."""
    later = {name: -max(0, amount) for name, amount in share.items()}
    back, parts = {name: -amount for name, amount in share.items()}, grant.parts
    return grant._replace(
        cost=add_up([grant.cost, share]),
        later=add_up([grant.later, later]),
        parts=None if parts is None else tuple([part.give_back(back) for part in parts]),
        settled=add_up([grant.settled or {}, share]),
    )


def apportion(grants: Sequence[Grant], delta: Mapping[str, int]) -> Iterator[tuple[Grant, dict[str, int]]]:
    """Iterate over what is settled with each grant: none gives back more than was taken with it."""
    left = dict(delta)
    for grant in grants:
        here = {name: max(amount, -grant.cost.get(name, 0)) for name, amount in left.items()}
        left = {name: amount - here[name] for name, amount in left.items()}
        yield grant, here
