"""Splitting a bucket: one shard becomes two, in one commit that mints and loses nothing.

Shard ``i`` of ``n`` becomes the shards ``i`` and ``i + n`` of ``2n``: what it produces and holds is, exactly, what
these two do. The half of its balance that the new shard gets is taken from the old one as any cost is, so a split does
not collide with those who are spending; the anchor grows, so that whoever has not seen the split loses the race.
Shards are split one by one: at any moment the shards that exist make up the whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..core.draw import halve
from ..core.names import INFRASTRUCTURE_LIMIT
from . import pressure
from .algebra import NEVER, TTL, Image, Write
from .bucket import stored_names, whole_rule
from .charging import identity
from .level import ANCHOR, CONFIG_VERSION, SHARDS, attribute

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .level import Level

MAX_SHARDS = 256
_REQUESTS = 4
"""How many requests a shard must be able to hold, lest they are served from several shards each."""


def worthwhile(level: Level, image: Image, cost: Mapping[str, int]) -> bool:
    """Whether splitting spreads the writes: not if a shard could hold only few requests like this one."""
    count = 2 * image[SHARDS]
    slots = level.slots
    return count <= MAX_SHARDS and all(
        _REQUESTS * need * count <= slots[name].rule.capacity for name, need in cost.items() if name in slots
    )


def split(level: Level, image: Image, now_ms: int) -> list[Write]:
    """The writes that leave the old shard its half and make the new one of the other."""
    count, rf = image[SHARDS], image[ANCHOR]
    anchor = max(now_ms, rf + 1)
    sibling = level.at(level.shard + count, 2 * count)
    both = {ANCHOR: anchor, SHARDS: 2 * count, **pressure.fresh(level, anchor)}
    guards: list[tuple[str, str, Any]] = [(ANCHOR, "=", rf), (SHARDS, "=", count)]
    put: dict[str, Any] = dict(both)
    add: dict[str, int] = {}
    born = {**identity(sibling), **both, CONFIG_VERSION: image[CONFIG_VERSION]}
    for name in stored_names(image) - {INFRASTRUCTURE_LIMIT}:
        whole = whole_rule(image, name)
        if whole is None:
            continue
        tk, fl = attribute(name, "tk"), attribute(name, "fl")
        (full, low, high, change), gift = halve(whole, level.shard, count, image[tk], rf, now_ms, anchor)
        guards.append((tk, ">", high) if full else (tk, "between", (low, high)))
        (put if full else add)[tk] = change
        born |= {attribute(name, field): value for field, value in zip(("cp", "ra", "rp"), whole, strict=False)}
        born |= {tk: gift, attribute(name, "tc"): 0, fl: now_ms if full else image[fl]}
        if full:
            put[fl] = now_ms
    kept = NEVER if TTL in image else None
    return [
        Write(level.key, tuple(guards), put, add, expires_at_ms=kept),
        Write(sibling.key, (), born, expires_at_ms=NEVER),
    ]


def is_newborn(shard: int, image: Image) -> bool:
    """Whether an image is that of the new shard of a split, before its first write."""
    return 2 * shard >= image[SHARDS] > 1 and pressure.is_unwritten(image)
