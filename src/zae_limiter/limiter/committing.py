"""Committing a plan: one atomic commit where that is free or asked for, else one round of independent writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.errors import RateLimiterUnavailable
from ..records import charging
from ..records.algebra import Committed, Conflict, Image, Key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..repository.backend import Backend
    from .planning import Part


async def commit_parts(
    backend: Backend, parts: Sequence[Part], timeout: float | None, *, atomic: bool
) -> Committed | Conflict:
    """Apply the writes of all parts or none."""
    if atomic or len(parts) == 1 or backend.store.capabilities.free_atomic_commit:
        return await backend.store.commit([part.write for part in parts], timeout=timeout)
    return await _commit_each(backend, parts, timeout)


async def _commit_each(backend: Backend, parts: Sequence[Part], timeout: float | None) -> Committed | Conflict:
    """What was committed goes back when another part was not."""
    works = [backend.store.commit([part.write], timeout=timeout) for part in parts]
    results = await backend.runtime.together(works)
    done = [result.images[0] for result in results if isinstance(result, Committed)]
    if len(done) == len(parts):
        return Committed(tuple(done))
    current: dict[Key, Image | None] = {}
    failures = [result for result in results if isinstance(result, BaseException)]
    for part, result in zip(parts, results, strict=True):
        if isinstance(result, Conflict):
            current |= result.images
        elif isinstance(result, Committed):
            try:
                current[part.write.key] = await _give_back(backend, part, result.images[0], timeout)
            except RateLimiterUnavailable as error:  # the others get theirs back all the same
                failures.append(error)
    if failures:
        raise failures[0]
    return Conflict(current)


async def _give_back(backend: Backend, part: Part, image: Image | None, timeout: float | None) -> Image | None:
    """Undo a write that has just been made; by images until it holds."""
    level = part.step.level
    back = {name: -amount for name, amount in part.cost.items() if amount and name in level.slots}
    now_ms = backend.clock.now_ms()
    while image is not None:
        outcome = await backend.store.commit([charging.settle(level, image, back, now_ms, now_ms)], timeout=timeout)
        if isinstance(outcome, Committed):
            return outcome.images[0]
        image = outcome.images.get(level.key)
    return None
