"""Planning: which writes take a cost from a chain, by what was last seen of its buckets. No I/O.

The home shard of each bucket is asked first. Where it has too little, other shards are: one of them that can take
it all, else as many as it takes.
"""

from __future__ import annotations

import os
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from ..records import bucket, charging, ledger
from ..records.level import SHARDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..records.algebra import Image, Write
    from ..records.ledger import Turned
    from .chain import Chain, Rung, Step


serials = count(int.from_bytes(os.urandom(4)))
"""Numbers that tell buckets of one millisecond apart."""


class Part(NamedTuple):
    """What is taken from one shard, for how many grants, and the change that does it."""

    step: Step
    cost: Mapping[str, int]
    change: Turned
    grants: int

    @property
    def write(self) -> Write:
        """The change of the bucket itself."""
        return self.change.write


def plan(
    chain: Chain, cost: Mapping[str, int], now_ms: int, each: Sequence[Mapping[str, int]] = ()
) -> list[Part] | None:
    """Take ``cost``, all that ``each`` of several grants takes, from the home shard of every bucket, if it fits."""
    parts = []
    for step in chain.steps:
        grants = sum(map(step.level.charges, each)) if len(each) > 1 else 1
        part = _part(step, cost, now_ms, grants)
        if part is None:
            return None
        parts.append(part)
    return parts


def plan_widely(chain: Chain, cost: Mapping[str, int], now_ms: int) -> list[Part] | None:
    """Take ``cost`` from whatever shards can give it; None where all of them together cannot."""
    parts: list[Part] = []
    for rung in chain.rungs:
        found = _anywhere(rung, cost, now_ms)
        if found is None and rung.gathers(cost):
            found = _everywhere(rung, cost, now_ms)
        if found is None:
            return None
        parts += found
    return parts


def again(part: Part, image: Image | None, now_ms: int) -> Part | None:
    """The part for the image it has just met; None where it does not fit, or the limits or shards are others now."""
    level, cost, grants = part.step.level, part.cost, part.grants
    if image is None:
        write = charging.first_charge(level, cost, now_ms, grants, next(serials)) if level.count == 1 else None
    elif image.get(SHARDS, 1) != level.count or charging.is_ahead(level, image):
        write = None
    else:
        hot = charging.crowded(level, bucket.inspect(level.key, image), cost, now_ms)
        write = charging.charge(level, image, cost, now_ms, hot, now_ms, 1, grants)
    return None if write is None else Part(part.step, cost, ledger.turned(level, image, write, now_ms), grants)


def _part(step: Step, cost: Mapping[str, int], now_ms: int, grants: int = 1) -> Part | None:
    level, sight = step
    image = sight.image
    if image is None:
        write = charging.first_charge(level, cost, now_ms, grants, next(serials)) if level.count == 1 else None
    else:
        hot = sight.hot_at(now_ms)
        write = charging.charge(level, image, cost, now_ms, hot, sight.seen_ms, sight.lost, grants)
    return None if write is None else Part(step, cost, ledger.turned(level, image, write, now_ms), grants)


def _anywhere(rung: Rung, cost: Mapping[str, int], now_ms: int) -> list[Part] | None:
    """One shard that can take it all: the home, else any, so that those who look for tokens do not meet."""
    part = _part(rung.home, cost, now_ms)
    if part is None and len(rung.shards) > 1:
        from random import sample  # on first use: it brings a lot along

        for step in sample(rung.shards, len(rung.shards)):
            part = _part(step, cost, now_ms)
            if part is not None:
                break
    return None if part is None else [part]


def _everywhere(rung: Rung, cost: Mapping[str, int], now_ms: int) -> list[Part] | None:
    """As much from each shard as it has, the fullest first, until nothing is missing."""
    named = {name: need for name, need in cost.items() if name in rung.home.level.slots}
    missing = {name: need for name, need in named.items() if need}
    shards = _held(rung, named, now_ms)
    if any(all(held[name] < 0 for _, held in shards) for name in named if name not in missing):
        return None
    parts = []
    for step, held in sorted(shards, key=lambda row: -sum(row[1].values())):
        taken = {name: min(held[name], need) for name, need in missing.items() if held[name] > 0}
        part = _part(step, taken, now_ms) if taken else None
        if part is None:
            continue
        parts.append(part)
        missing = {name: need - taken.get(name, 0) for name, need in missing.items() if need > taken.get(name, 0)}
        if not missing:
            return parts
    return None


def _held(rung: Rung, names: Mapping[str, int], now_ms: int) -> list[tuple[Step, dict[str, int]]]:
    """What each shard that exists holds of some limits."""
    found = []
    for step in rung.shards:
        if step.sight.image is not None:
            pots = bucket.reading([(step.level, step.sight.image)], now_ms).pots
            found.append((step, {name: pots[name][0].level(now_ms) for name in names}))
    return found
