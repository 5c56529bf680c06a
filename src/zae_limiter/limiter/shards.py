"""The shards of a bucket: finding them, choosing one, and splitting one that is written too often."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..records import bucket, charging, pressure, splitting
from ..records.level import SHARDS
from .chain import Rung, Step
from .dividing import divide

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..records.algebra import Image, Key
    from ..repository.backend import Backend
    from ..runtime.deadline import Deadline
    from .chain import Chain

_HALF = 0.5
_LOOKING = 1 / 8
"""How often a client that does not know all shards looks at them after a grant."""


async def at_home(backend: Backend, rung: Rung, deadline: Deadline) -> Rung:
    """The rung with a home that exists, chosen by chance among those that the old one was split into.

    So clients spread over the shards without talking to each other.
    """
    level, sight = rung.home
    if not rung.home.outgrown:
        return rung
    if sight.image is None:
        root = await _found(backend, rung, 0, deadline)
        return _unsplit(backend, rung) if root is None else Rung(root, (root,), complete=root.level.count == 1)
    from random import randrange  # on first use: it brings a lot along

    count = sight.image[SHARDS]
    same = Step(level.at(level.shard, count), sight)
    other = level.shard + level.count * randrange(max(1, count // level.count))
    found = same if other == level.shard else await _found(backend, rung, other, deadline) or same
    return Rung(found, (same, found) if found is not same else (same,), complete=False)


async def _found(backend: Backend, rung: Rung, shard: int, deadline: Deadline) -> Step | None:
    key = rung.key(shard)
    (image,) = await backend.read([key], deadline)
    return None if image is None else _seen(backend, rung, shard, bucket.inspect(key, image))


def _seen(backend: Backend, rung: Rung, shard: int, image: Image) -> Step:
    sight = backend.sights.of(rung.key(shard))
    sight.show(image, backend.clock.now_ms())
    return Step(rung.home.level.at(shard, image[SHARDS]), sight)


async def in_full(backend: Backend, rung: Rung, deadline: Deadline) -> Rung:
    """The rung over all shards that exist, as they are now.

    A shard that was split says how many there are at least, so nobody has to be told.
    """
    found: dict[int, Step] = {}
    busy = False
    known, count = 0, max(_count(step) for step in rung.shards)
    while known < count:
        wanted = range(known, count)
        images = await backend.read([rung.key(shard) for shard in wanted], deadline)
        for shard, image in zip(wanted, images, strict=True):
            if image is not None:
                before = backend.sights.of(rung.key(shard)).image
                found[shard] = _seen(backend, rung, shard, bucket.inspect(rung.key(shard), image))
                busy = busy or not (before is None or charging.undisturbed(rung.home.level, before, image, {}))
        known, count = count, max((step.level.count for step in found.values()), default=1)
    if 0 not in found:
        return _unsplit(backend, rung)
    found = {shard: step for shard, step in found.items() if _vouched(found, shard)}
    home = found.get(rung.home.level.shard, found[0])
    return Rung(home, tuple(found.values()), busy=busy)


def _unsplit(backend: Backend, rung: Rung) -> Rung:
    """The rung of a bucket that is gone: the next one starts with one shard."""
    sight = backend.sights.of(rung.root)
    sight.show(None, backend.clock.now_ms())
    whole = Step(rung.home.level.at(0, 1), sight)
    return Rung(whole, (whole,))


def _vouched(found: Mapping[int, Step], shard: int) -> bool:
    """Whether the shards that one was split from know of it; else it is left over from a bucket that is gone."""
    while shard:
        born = 1 << shard.bit_length()
        shard -= born // 2
        if shard not in found or found[shard].level.count < born:
            return False
    return True


def looks_around(chain: Chain, now_ms: int) -> bool:
    """Whether it is time to look at all shards, so that none stays full, and wastes its refill, while others drain."""
    from random import random  # on first use: it brings a lot along

    return any(not rung.complete and _drains(rung.home, now_ms) for rung in chain.rungs) and random() < _LOOKING


def fuller(rung: Rung, now_ms: int) -> Step:
    """The home, or another shard by chance that seems to hold more: what was last seen is enough to choose by."""
    if len(rung.shards) == 1 or not _drains(rung.home, now_ms):
        return rung.home
    from random import choice

    other = choice(rung.shards)
    return other if _fullness(other, now_ms) > _fullness(rung.home, now_ms) else rung.home


def _drains(step: Step, now_ms: int) -> bool:
    return _fullness(step, now_ms) < _HALF


def _fullness(step: Step, now_ms: int) -> float:
    pots = bucket.reading([(step.level, step.sight.image)], now_ms).pots.values()
    return min(pot.level(now_ms) / pot.rule.capacity for (pot,) in pots)


def _count(step: Step) -> int:
    image = step.sight.image
    return step.level.count if image is None else int(image.get(SHARDS, 1))


async def relieve(backend: Backend, chain: Chain, cost: Mapping[str, int], now_ms: int, deadline: Deadline) -> None:
    """Split the home shards that are written too often, the first shard before any other.

    So the first shard always knows the highest count.
    """
    for rung in chain.rungs:
        level, sight = rung.home
        image = sight.image
        if image is None or not pressure.high(level, image, now_ms) or not splitting.worthwhile(level, image, cost):
            continue
        if level.shard:
            root = await _found(backend, rung, 0, deadline)
            if root is not None and root.level.count == image[SHARDS]:
                await _split(backend, root, deadline)
            if root is None or _count(root) == image[SHARDS]:
                continue
        await _split(backend, rung.home, deadline)


async def _split(backend: Backend, step: Step, deadline: Deadline) -> None:
    """Split one shard, and remember what is seen of it."""
    level, sight = step

    def tell(key: Key, image: Image | None, now_ms: int) -> None:
        backend.sights.of(key).show(image, now_ms)

    await divide(backend.store, level, sight.image, sight.seen_ms, tell, deadline)
