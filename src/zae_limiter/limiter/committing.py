"""Committing a plan: one atomic commit where that is free or asked for, else one round of independent writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.errors import RateLimiterUnavailable
from ..records import ledger, settlement
from ..records.algebra import Committed, Conflict, Image, Key, applied
from ..records.pressure import unwritten_since
from ..repository.base import MAX_COMMIT
from . import planning
from .booking import commit_turned
from .settling import keep_returns, made_up_since

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..records.ledger import Turned
    from ..repository.backend import Backend
    from ..runtime.deadline import Deadline
    from .planning import Part


_MAX_TRIES = 200
_FOR_UNDOING = 0.25
"""The share of the time left that is kept for giving back what was taken, should one of several writes fail."""
_EXACT_TRIES = 3
"""How many races a transaction may lose for leaving what is exactly known, before it settles for less."""


async def commit_parts(
    backend: Backend, parts: Sequence[Part], now_ms: int, deadline: Deadline, *, atomic: bool, lost: int = 0
) -> Committed | Conflict:
    """Apply the writes of all parts, decided as of ``now_ms``, or none; ``lost`` races came before this try."""
    if len(parts) == 1 or backend.store.capabilities.free_atomic_commit:
        return await commit_turned(backend.store, [part.change for part in parts], deadline)
    if atomic and len(parts) <= MAX_COMMIT:
        return await _commit_transaction(backend, parts, deadline, exact=lost < _EXACT_TRIES)
    return await _commit_each(backend, parts, now_ms, deadline)


async def _commit_transaction(
    backend: Backend, parts: Sequence[Part], deadline: Deadline, *, exact: bool
) -> Committed | Conflict:
    """Commit as one transaction on a store that does not tell what it has left.

    With ``exact`` it only takes effect on the images that were last seen, so what it leaves is known to the token.
    Otherwise others may have written since: then a bucket is taken for a little fuller than it is, which gives back
    less, never more.
    """
    changes = [_on_last_seen(part) if exact else part.change for part in parts]
    outcome = await commit_turned(backend.store, changes, deadline)
    if isinstance(outcome, Conflict):
        return outcome
    return Committed(tuple([applied(part.step.sight.image, part.write) for part in parts]))


def _on_last_seen(part: Part) -> Turned:
    """The change of a part, guarded against every write since its bucket was last seen."""
    image = part.step.sight.image
    if image is None:
        return part.change
    guards = (*part.write.guards, *unwritten_since(image))
    return part.change._replace(write=part.write._replace(guards=guards))


async def _commit_each(
    backend: Backend, parts: Sequence[Part], now_ms: int, deadline: Deadline
) -> Committed | Conflict:
    """Side by side; a part that only lost a race tries again, and if one cannot be had the others go back.

    The writes leave a part of the time for that.
    """
    writing = deadline.part(1 - _FOR_UNDOING)
    done: dict[Key, Image | None] = {}
    left: list[Part] = list(parts)
    for _ in range(_MAX_TRIES):
        works = [commit_turned(backend.store, [part.change], writing) for part in left]
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
            return Conflict(lost | await _undo(backend, taken, done, now_ms, deadline, failures))
    lost_all = RateLimiterUnavailable(f"Too much contention on {left[0].write.key.pk}; try again later.")
    await _undo(backend, [part for part in parts if part.write.key in done], done, now_ms, deadline, [lost_all])
    raise lost_all


async def _undo(
    backend: Backend,
    parts: Sequence[Part],
    done: Mapping[Key, Image | None],
    charged_ms: int,
    deadline: Deadline,
    failures: list[BaseException],
) -> dict[Key, Image | None]:
    """Give back what was committed, all of it even if one fails; then raise the first failure, if there was any."""
    current = {}
    for part in parts:
        try:
            current[part.write.key] = await _give_back(backend, part, done[part.write.key], charged_ms, deadline)
        except Exception as error:
            failures.append(error)
    if failures:
        raise failures[0]
    return current


async def _give_back(
    backend: Backend, part: Part, after: Image | None, charged_ms: int, deadline: Deadline
) -> Image | None:
    """Undo a write that left the bucket as ``after``: no more than it would hold had the write never been made."""
    level = part.step.level
    back = {name: -amount for name, amount in part.cost.items() if amount and name in level.slots}
    charge = None if after is None else settlement.Charge.of(level, after, charged_ms, {})
    image = after
    while image is not None or (back and level.usage_days and level.shard == 0):
        now_ms = max(backend.clock.now_ms(), charged_ms)
        credited: Mapping[str, int] = {}
        if image is None or charge is None:  # it is gone with all that was taken, but the usage is on record
            change = ledger.unhoused(level, back, -part.grants, now_ms)
        else:
            made_up = made_up_since(part.step, charge, image)
            settled = settlement.settle(level, image, back, charge, now_ms, -part.grants, made_up=made_up)
            change, credited = ledger.turned(level, image, settled.write, now_ms), settled.credited
        outcome = await commit_turned(backend.store, [change], deadline)
        if isinstance(outcome, Committed):
            if charge is not None:
                keep_returns(part.step, charge, credited, outcome.images[0])
            return outcome.images[0]
        image = outcome.images.get(level.key)
    return None
