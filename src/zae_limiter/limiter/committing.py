"""Committing a plan: one atomic commit where that is free or asked for, else one round of independent writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.errors import RateLimiterUnavailable
from ..records import charging, ledger
from ..records.algebra import Committed, Conflict, Image, Key, applied
from ..repository.base import MAX_COMMIT
from . import planning
from .booking import commit_turned
from .settling import most_back

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..repository.backend import Backend
    from .planning import Part


_MAX_TRIES = 200


async def commit_parts(
    backend: Backend, parts: Sequence[Part], now_ms: int, timeout: float | None, *, atomic: bool
) -> Committed | Conflict:
    """Apply the writes of all parts, decided as of ``now_ms``, or none."""
    if (atomic and len(parts) <= MAX_COMMIT) or len(parts) == 1 or backend.store.capabilities.free_atomic_commit:
        outcome = await commit_turned(backend.store, [part.change for part in parts], timeout)
        return outcome if isinstance(outcome, Conflict) else _told(parts, outcome)
    return await _commit_each(backend, parts, now_ms, timeout)


def _told(parts: Sequence[Part], outcome: Committed) -> Committed:
    """The outcome with every image; one that the store could not read back is what was last seen, with the write."""
    if None not in outcome.images:
        return outcome
    pairs = zip(parts, outcome.images, strict=True)
    return Committed(
        tuple([applied(part.step.sight.image, part.write) if image is None else image for part, image in pairs])
    )


async def _commit_each(
    backend: Backend, parts: Sequence[Part], now_ms: int, timeout: float | None
) -> Committed | Conflict:
    """Side by side; a part that only lost a race tries again, and if one cannot be had the others go back."""
    done: dict[Key, Image | None] = {}
    left: list[Part] = list(parts)
    for _ in range(_MAX_TRIES):
        works = [commit_turned(backend.store, [part.change], timeout) for part in left]
        results = await backend.runtime.together(works)
        lost: dict[Key, Image | None] = {}
        failures = [result for result in results if isinstance(result, BaseException)]
        for part, result in zip(left, results, strict=True):
            if isinstance(result, Committed):
                done[part.write.key] = result.images[0]
            elif isinstance(result, Conflict):
                lost |= result.images
        again = [planning.again(part, lost[part.write.key], now_ms) for part in left if part.write.key in lost]
        left = [part for part in again if part is not None]
        if not again and not failures:
            return Committed(tuple(done[part.write.key] for part in parts))
        if failures or len(left) < len(again):
            taken = [part for part in parts if part.write.key in done]
            return Conflict(lost | await _undo(backend, taken, done, now_ms, timeout, failures))
    lost_all = RateLimiterUnavailable(f"Lost {_MAX_TRIES} races for {left[0].write.key.pk} in a row; try again.")
    await _undo(backend, [part for part in parts if part.write.key in done], done, now_ms, timeout, [lost_all])
    raise lost_all


async def _undo(
    backend: Backend,
    parts: Sequence[Part],
    done: Mapping[Key, Image | None],
    charged_ms: int,
    timeout: float | None,
    failures: list[BaseException],
) -> dict[Key, Image | None]:
    """Give back what was committed, all of it even if one fails; then raise the first failure, if there was any."""
    current = {}
    for part in parts:
        try:
            current[part.write.key] = await _give_back(backend, part, done[part.write.key], charged_ms, timeout)
        except Exception as error:
            failures.append(error)
    if failures:
        raise failures[0]
    return current


async def _give_back(
    backend: Backend, part: Part, after: Image | None, charged_ms: int, timeout: float | None
) -> Image | None:
    """Undo a write that left the bucket as ``after``: no more than it would hold had the write never been made."""
    level = part.step.level
    back = {name: -amount for name, amount in part.cost.items() if amount and name in level.slots}
    image = after
    while image is not None or (back and level.usage_days and level.shard == 0):
        now_ms = max(backend.clock.now_ms(), charged_ms)
        if image is None:  # it is gone with all that was taken, but the usage is on record
            change = ledger.unhoused(level, back, -part.grants, now_ms)
        else:
            most = most_back(level, after, back, charged_ms, now_ms, {})
            settled = charging.settle(level, image, back, charged_ms, now_ms, most, -part.grants)
            change = ledger.turned(level, image, settled, now_ms)
        outcome = await commit_turned(backend.store, [change], timeout)
        if isinstance(outcome, Committed):
            return outcome.images[0]
        image = outcome.images.get(level.key)
    return None
