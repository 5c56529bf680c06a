"""Booking: committing changes of buckets together with the usage that belongs to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..records.algebra import Committed, Conflict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..records.ledger import Turned
    from ..runtime.deadline import Deadline
    from ..stores.port import Store


async def commit_turned(store: Store, changes: Sequence[Turned], deadline: Deadline) -> Committed | Conflict:
    """Apply all changes or none, in one call; the images are those of the buckets."""
    writes = [change.write for change in changes]
    accruals = [accrual for change in changes for accrual in change.accruals]
    if not accruals:
        return await store.commit(writes, timeout=deadline.left())
    outcome = await store.commit([*writes, *accruals], timeout=deadline.left())
    return Committed(outcome.images[: len(writes)]) if isinstance(outcome, Committed) else outcome
