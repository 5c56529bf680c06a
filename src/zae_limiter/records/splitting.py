"""Splitting a bucket: one shard becomes two, in one commit that mints and loses nothing.

Shard ``i`` of ``n`` becomes the shards ``i`` and ``i + n`` of ``2n``: what it produces and holds is, exactly, what
these two do. The half of its balance that the new shard gets is taken from the old one as any cost is, so a split does
not collide with those who are spending; the anchor grows, so that whoever has not seen the split loses the race.
Shards are split one by one: at any moment the shards that exist make up the whole.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..core.change import Change
from ..core.names import INFRASTRUCTURE_LIMIT
from ..core.production import MILLI
from ..core.tokens import split_balance
from . import pressure
from .algebra import NEVER, TTL, Image, Write
from .bucket import latest_instant, stored_names, whole_rule
from .charging import identity, index_attributes, write_of
from .level import ANCHOR, CONFIG_VERSION, MADE, NEWEST, SHARDS, BucketLimits, stated_rule, token_fields
from .slot_states import move_slots
from .slots import count_slots

MAX_SHARDS = 256
SLOTS_PER_RECORD = 50
"""With more taken slots a record is split. One with ten fits 1 KB, which DynamoDB bills as a unit. But the more shards
there are, the more calls it takes to find a free slot: with 1,000 in use, below 3 for each instead of 8."""
_REQUESTS = 4
"""How many requests a shard must be able to hold, lest they are served from several shards each."""


def is_worthwhile(level: BucketLimits, image: Image, cost: Mapping[str, int]) -> bool:
    """Return whether splitting spreads the writes: not if a shard could hold only few requests like this one."""
    count = 2 * image[SHARDS]
    capacities = level.capacities()
    return count <= MAX_SHARDS and all(
        _REQUESTS * cost.get(name, 0) * count <= capacity for name, capacity in capacities.items()
    )


def is_large(image: Image) -> bool:
    """Return whether a shard has so many slots taken that it is to be split."""
    return count_slots(image) > SLOTS_PER_RECORD


def split(level: BucketLimits, image: Image, now_ms: int) -> list[Write]:
    """Return the writes that leave the old shard half of its balance and make the new one of the other half.

    It is split as of the newest instant that it knows of: borders of schedules after that are still to come for both.
    """
    count, rf = image[SHARDS], image[ANCHOR]
    now_ms = min(now_ms, latest_instant(image, 0))
    anchor = max(now_ms, rf + 1)
    sibling = level.at(level.shard + count, 2 * count)
    both = {
        ANCHOR: anchor,
        NEWEST: latest_instant(image, 0),
        SHARDS: 2 * count,
        **pressure.initial_attributes(level, anchor),
    }
    both[MADE] = image.get(MADE, rf * MILLI)
    change = Change({ANCHOR: rf, SHARDS: count})
    change.put, change.expires_ms = dict(both), NEVER if TTL in image else None
    slots = move_slots(level.at(level.shard, count), sibling, image, change)
    born = {**identity(sibling), **index_attributes(sibling), **both, CONFIG_VERSION: image[CONFIG_VERSION]}
    for name in stored_names(image) - {INFRASTRUCTURE_LIMIT}:
        whole = whole_rule(image, name)
        if whole is None:
            continue
        at, (old, mine, other) = token_fields(name), (whole.share(*shard) for shard in _family(level.shard, count))
        gift = split_balance(change, at, image[at.tokens], old, mine, (rf, anchor), now_ms)
        born |= {at.tokens: gift - other.produced_between(anchor, now_ms), at.consumed: 0, **stated_rule(at, whole)}
        if at.window in image:
            born[at.window] = image[at.window]
    return [write_of(change, level.key, None), Write(sibling.key, (), born | slots, expires_at_ms=NEVER)]


def _family(shard: int, count: int) -> tuple[tuple[int, int], ...]:
    """Return a shard as it is, as it is after its split, and the other one."""
    return (shard, count), (shard, 2 * count), (shard + count, 2 * count)
