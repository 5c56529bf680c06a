"""Committing a chain: one atomic commit where that is free, else one round of independent writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.errors import RateLimiterUnavailable
from ..records import charging
from ..records.algebra import Committed, Conflict, Image, Key, Write

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..records.level import Level
    from ..repository.backend import Backend


async def commit_chain(
    backend: Backend, levels: Sequence[Level], writes: list[Write], timeout: float | None
) -> Committed | Conflict:
    """Apply the writes of all levels or none."""
    if len(writes) == 1 or backend.store.capabilities.free_atomic_commit:
        return await backend.store.commit(writes, timeout=timeout)
    return await _commit_each(backend, levels, writes, timeout)


async def _commit_each(
    backend: Backend, levels: Sequence[Level], writes: list[Write], timeout: float | None
) -> Committed | Conflict:
    """What was committed goes back when another level was not."""
    results = await backend.runtime.together([backend.store.commit([write], timeout=timeout) for write in writes])
    done = [result.images[0] for result in results if isinstance(result, Committed)]
    if len(done) == len(writes):
        return Committed(tuple(done))
    current: dict[Key, Image | None] = {}
    failures = [result for result in results if isinstance(result, BaseException)]
    for level, write, result in zip(levels, writes, results, strict=True):
        if isinstance(result, Conflict):
            current |= result.images
        elif isinstance(result, Committed):
            try:
                current[level.key] = await _give_back(backend, level, write, result.images[0], timeout)
            except RateLimiterUnavailable as error:  # the other levels get theirs back all the same
                failures.append(error)
    if failures:
        raise failures[0]
    return Conflict(current)


async def _give_back(
    backend: Backend, level: Level, write: Write, image: Image | None, timeout: float | None
) -> Image | None:
    """Undo a write that has just been made; by images until it holds."""
    back = {name: -amount for name, amount in taken_by(level, write).items() if amount}
    now_ms = backend.clock.now_ms()
    while image is not None:
        outcome = await backend.store.commit([charging.settle(level, image, back, now_ms, now_ms)], timeout=timeout)
        if isinstance(outcome, Committed):
            return outcome.images[0]
        image = outcome.images.get(level.key)
    return None


def taken_by(level: Level, write: Write) -> dict[str, int]:
    """What a charge or create took, by limit: it is what it added to the consumption counters."""
    return {name: write.add.get(slot.tc, 0) or write.put.get(slot.tc, 0) for name, slot in level.slots.items()}
