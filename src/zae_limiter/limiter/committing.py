"""Committing a plan: one atomic commit where that is free or asked for, else one round of independent writes."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias

from ..records.algebra import Committed, Conflict, Image, Key, Write, apply_write
from ..records.ledger import BucketChange
from ..records.pressure import guard_unwritten
from ..records.settlement import Receipt
from ..repository.backend import Backend
from ..runtime.deadline import Deadline
from ..runtime.retries import tries
from .charge_path import ChargePath
from .grant import ShardCharge
from .planning import plan_again
from .settling import SettlementPart

Settle: TypeAlias = Callable[[Sequence[SettlementPart]], Awaitable[None]]

_FOR_UNDOING = 0.25
"""The share of the time left that is kept for giving back what was taken, should one of several writes fail."""
EXACT_TRIES = 3
"""How many races a transaction may lose for leaving what is exactly known, before it settles for less."""


async def commit_transaction(
    backend: Backend, parts: Sequence[ShardCharge], deadline: Deadline, *, exact: bool
) -> Committed | Conflict:
    """Commit as one transaction on a store that does not tell what it has left.

    With ``exact`` it only takes effect on the images that were last seen, so what it leaves is known to the token.
    Otherwise others may have written since: then a bucket is taken for a little fuller than it is, which gives back
    less, never more.
    """
    before = [part.shard.seen.image for part in parts]  # others may see newer ones while this is under way
    changes = []
    for part, image in zip(parts, before, strict=True):
        guards = guard_unwritten(image or {}) if exact else ()
        changes.append(BucketChange(part.write._replace(guards=(*part.write.guards, *guards)), part.accruals))
    outcome = await backend.commit_changes(changes, deadline)
    if isinstance(outcome, Conflict):
        return outcome
    return Committed(tuple([apply_write(image, part.write) for part, image in zip(parts, before, strict=True)]))


async def commit_each(
    backend: Backend, settle: Settle, parts: list[ShardCharge], now_ms: int, deadline: Deadline
) -> Committed | Conflict:
    """Commit in parallel; a part that only lost a race tries again, and if one does not fit the others go back.

    The writes leave a share of the time for that. A part that is planned again takes the place of the old one in
    ``parts``.
    """
    writing = deadline.part(1 - _FOR_UNDOING)
    done: dict[Key, Image | None] = {}
    lost: dict[Key, Image | None] = {}
    left: Sequence[ShardCharge] = parts
    try:
        for _ in tries(parts[0].write.key.pk):
            commits = [backend.commit_changes([BucketChange(part.write, part.accruals)], writing) for part in left]
            outcomes = await backend.runtime.run_together(commits)
            lost = {}
            for part, outcome in zip(left, outcomes, strict=True):
                if isinstance(outcome, Committed):
                    done[part.write.key] = outcome.images[0]
                elif isinstance(outcome, Conflict):
                    lost |= outcome.images
            for outcome in outcomes:
                if isinstance(outcome, BaseException):
                    raise outcome
            again = [plan_again(part, lost[part.write.key], now_ms) for part in left if part.write.key in lost]
            left = [part for part in again if part is not None]
            renewed = {part.write.key: part for part in left}
            parts[:] = [renewed.get(part.write.key, part) for part in parts]
            if not left or len(left) < len(again):
                break
    except BaseException:
        with contextlib.suppress(Exception):  # what went wrong first is what the caller hears of
            await _undo(settle, parts, done, now_ms)
        raise
    if len(done) == len(parts):
        return Committed(tuple([done[part.write.key] for part in parts]))
    await _undo(settle, parts, done, now_ms)
    return Conflict(lost)


async def _undo(settle: Settle, parts: Sequence[ShardCharge], done: Mapping[Key, Image | None], now_ms: int) -> None:
    """Give back what was committed, all of it even if one fails; then raise the first failure, if there was any.

    The thresholds that it has crossed are not announced, and left for whoever crosses them next.
    """
    undone = []
    for part in parts:
        level, seen = part.shard
        image = done.get(level.key)
        back = {name: -amount for name, amount in part.cost.items() if amount and name in level.token_limits}
        if image is not None and (back or part.slots):
            seen.show(image, now_ms)
            receipt, crossed = Receipt.of(level, image, now_ms, cost=part.allowance_cost), _find_crossed(part)
            undone.append(SettlementPart(part.shard, back, receipt, -part.grants, part.lots, crossed, part.slots))
    await settle(undone)


def _find_crossed(part: ShardCharge) -> list[tuple[str, int, int]]:
    """Return the attributes by which a part marks thresholds as announced, with their values before and after it."""
    before = {attr: value for attr, op, value in part.write.guards if op == "="}
    put = part.write.put
    return [
        (attr, before.get(attr, 0), put[attr])
        for limit in part.shard.level.token_limits.values()
        if limit.announces and (attr := limit.at.announced) in put
    ]


async def commit_marks(backend: Backend, chain: ChargePath, marks: Sequence[Write], deadline: Deadline) -> set[Key]:
    """Leave marks of waiters in buckets of a chain. Return those of which the store has shown what there is."""
    shown: dict[Key, Image | None] = {}
    for write in marks:
        outcome = await backend.store.commit([write], timeout=deadline.left())
        image = outcome.images[0] if isinstance(outcome, Committed) else outcome.images.get(write.key)
        if image is not None:
            shown[write.key] = image
    chain.show(shown, backend.clock.now_ms())
    return {*shown}
