"""The shards of a bucket: finding them, choosing one, and splitting one that is written too often."""

from __future__ import annotations

from collections.abc import Mapping

from ..records import bucket, charging, pressure, splitting
from ..records.algebra import Image
from ..records.level import SHARDS
from ..repository.backend import Backend
from ..runtime.deadline import Deadline
from .charge_path import BucketShard, BucketShards, ChargePath
from .dividing import divide

_DRAINING = 0.5
"""How full a shard is below which others are looked at."""
_LOOKING = 1 / 8
"""How often a client that does not know all shards looks at them after a grant."""


async def find_home(backend: Backend, shards: BucketShards, deadline: Deadline) -> BucketShards:
    """Return the shards with a home that exists, chosen by chance among those that the old one was split into.

    So clients spread over the shards without talking to each other.
    """
    level, seen = shards.home
    if not shards.home.is_outgrown:
        return shards
    image = seen.image  # another thread may replace it
    if image is None:
        root = await _find(backend, shards, 0, deadline)
        if root is None:
            return _start_unsplit(backend, shards)
        return BucketShards(root, (root,), complete=root.level.shard_count == 1)
    from random import randrange  # on first use: it brings a lot along

    count = image[SHARDS]
    same = BucketShard(level.at(level.shard, count), seen)
    other = level.shard + level.shard_count * randrange(max(1, count // level.shard_count))
    found = same if other == level.shard else await _find(backend, shards, other, deadline) or same
    return BucketShards(found, (same, found) if found is not same else (same,), complete=False)


async def _find(backend: Backend, shards: BucketShards, shard: int, deadline: Deadline) -> BucketShard | None:
    """Read one shard; return None if it does not exist."""
    (image,) = await backend.read([shards.key(shard)], deadline)
    return None if image is None else _show(backend, shards, shard, image)


def _show(backend: Backend, shards: BucketShards, shard: int, image: Image) -> BucketShard:
    """Keep what was seen of a shard. Raise CorruptRecordError for a damaged one."""
    found = BucketShard(shards.home.level.at(shard, image[SHARDS]), backend.last_seen.of(shards.key(shard)))
    found.seen.show(bucket.inspect(found.level.key, image), backend.clock.now_ms())
    return found


async def read_all_shards(backend: Backend, shards: BucketShards, deadline: Deadline) -> BucketShards:
    """Read and return all shards of a bucket: one that was split says how many there are at least."""
    found: dict[int, BucketShard] = {}
    busy = False
    known, count = 0, max(_count(each) for each in shards.shards)
    while known < count:
        wanted = range(known, count)
        images = await backend.read([shards.key(shard) for shard in wanted], deadline)
        for shard, image in zip(wanted, images, strict=True):
            if image is not None:
                before = backend.last_seen.of(shards.key(shard)).image
                found[shard] = _show(backend, shards, shard, image)
                busy = busy or not (before is None or charging.is_undisturbed(shards.home.level, before, image, {}))
        known, count = count, max((each.level.shard_count for each in found.values()), default=1)
    if 0 not in found:
        return _start_unsplit(backend, shards)
    found = {shard: each for shard, each in found.items() if _is_known_to_parents(found, shard)}
    home = found.get(shards.home.level.shard, found[0])
    return BucketShards(home, tuple(found.values()), busy=busy)


def _start_unsplit(backend: Backend, shards: BucketShards) -> BucketShards:
    """Return the shards of a bucket that is gone: the next one starts with one shard."""
    seen = backend.last_seen.of(shards.key(0))
    seen.show(None, backend.clock.now_ms())
    whole = BucketShard(shards.home.level.at(0, 1), seen)
    return BucketShards(whole, (whole,))


def _is_known_to_parents(found: Mapping[int, BucketShard], shard: int) -> bool:
    """Return whether the shards that one was split from know of it; else it is left over from a bucket that is gone."""
    while shard:
        born = 1 << shard.bit_length()
        shard -= born // 2
        if shard not in found or found[shard].level.shard_count < born:
            return False
    return True


def is_time_to_look(chain: ChargePath, now_ms: int) -> bool:
    """Return whether it is time to look at all shards, so that none stays full while others drain."""
    from random import random  # on first use: it brings a lot along

    is_draining = any(not shards.complete and _fullness(shards.home, now_ms) < _DRAINING for shards in chain.levels)
    return is_draining and random() < _LOOKING


def choose_home(shards: BucketShards, now_ms: int) -> BucketShard:
    """Return the home, or another shard by chance that held more when it was last seen."""
    if len(shards.shards) == 1 or _fullness(shards.home, now_ms) >= _DRAINING:
        return shards.home
    from random import choice

    return max(shards.home, choice(shards.shards), key=lambda shard: _fullness(shard, now_ms))


def _fullness(each: BucketShard, now_ms: int) -> float:
    balances = bucket.reading([(each.level, each.seen.image)], now_ms).balances.values()
    return min(shard.without_credits().level(now_ms) / max(1, shard.rule.capacity) for (shard,) in balances)


def _count(each: BucketShard) -> int:
    image = each.seen.image
    return each.level.shard_count if image is None else int(image.get(SHARDS, 1))


async def split_busy_shards(
    backend: Backend, chain: ChargePath, cost: Mapping[str, int], now_ms: int, deadline: Deadline
) -> None:
    """Split home shards that are written too often or have grown too large.

    The first shard is split before others: it knows the highest count.
    """
    for shards in chain.levels:
        level, image = shards.home.level, shards.home.seen.image
        if image is None or not (pressure.is_high(level, image, now_ms) or splitting.is_large(image)):
            continue
        if not splitting.is_worthwhile(level, image, chain.cost_at(level, cost)):
            continue
        if level.shard:
            root = await _find(backend, shards, 0, deadline)
            if root is not None and root.level.shard_count == image[SHARDS]:
                await _split(backend, root, deadline)
            if root is None or _count(root) == image[SHARDS]:
                continue
        await _split(backend, shards.home, deadline)


async def _split(backend: Backend, each: BucketShard, deadline: Deadline) -> None:
    """Split one shard, and remember what is seen of it."""
    level, seen, find = each.level, each.seen, backend.last_seen.of
    await divide(backend.store, level, seen.image, seen.seen_ms, lambda key, *shown: find(key).show(*shown), deadline)
