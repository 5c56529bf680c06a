"""Splitting a bucket: one shard becomes two, in one commit that mints and loses nothing.

Shard ``i`` of ``n`` becomes the shards ``i`` and ``i + n`` of ``2n``: what it produces and holds is, exactly, what
these two do. The half of its balance that the new shard gets is taken from the old one as any cost is, so a split does
not collide with those who are spending; the anchor grows, so that whoever has not seen the split loses the race.
Shards are split one by one: at any moment the shards that exist make up the whole.
"""

from __future__ import annotations

from ..core.change import Change
from ..core.production import MILLI, Amounts
from ..core.tokens import split_balance
from . import pressure
from .algebra import NEVER, TTL, Image, Write
from .bucket import all_tokens, latest_instant, whole_rule
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


def is_worthwhile(level: BucketLimits, image: Image, cost: Amounts) -> bool:
    """Return whether splitting spreads the writes: not if a shard could hold only few requests like this one."""
    count, capacities = 2 * image[SHARDS], level.capacities().items()
    return count <= MAX_SHARDS and all(_REQUESTS * cost.get(name, 0) * count <= most for name, most in capacities)


def is_large(image: Image) -> bool:
    """Return whether a shard has so many slots taken that it is to be split."""
    return count_slots(image) > SLOTS_PER_RECORD


def split(level: BucketLimits, image: Image, now_ms: int) -> list[Write]:
    """Return the writes that leave the old shard half of its balance and make the new one of the other half.

    It is split as of the newest instant that it knows of: borders of schedules after that are still to come for both.
    """
    count, rf, newest_ms = image[SHARDS], image[ANCHOR], latest_instant(image, 0)
    now_ms = min(now_ms, newest_ms)
    anchor = max(now_ms, rf + 1)
    old, sibling = level.at(level.shard, count), level.at(level.shard + count, 2 * count)
    both = {ANCHOR: anchor, NEWEST: newest_ms, SHARDS: 2 * count, MADE: image.get(MADE, rf * MILLI)}
    both |= pressure.initial_attributes(level, anchor)
    change = Change({ANCHOR: rf, SHARDS: count})
    change.put, change.expires_ms = dict(both), NEVER if TTL in image else None
    slots = move_slots(old, sibling, image, change)
    born = {**identity(sibling), **index_attributes(sibling), **both, CONFIG_VERSION: image[CONFIG_VERSION]}
    for name, held in all_tokens(image, level.shard).items():
        at, whole = token_fields(name), whole_rule(image, name)
        assert whole is not None  # it holds a share of it
        mine, other = whole.share(level.shard, 2 * count), whole.share(sibling.shard, 2 * count)
        gift = split_balance(change, at, held.tokens, held.rule, mine, (rf, anchor), now_ms)
        born |= {at.tokens: gift - other.produced_between(anchor, now_ms), at.consumed: 0, **stated_rule(at, whole)}
        if at.window in image:
            born[at.window] = image[at.window]
    return [write_of(change, level.key, None), Write(sibling.key, (), born | slots, expires_at_ms=NEVER)]
