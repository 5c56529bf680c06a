"""Booking: committing changes of buckets together with the usage that belongs to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..records.algebra import Committed, Conflict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..records.ledger import Turned
    from ..stores.port import Store


async def commit_turned(store: Store, changes: Sequence[Turned], timeout: float | None) -> Committed | Conflict:
    """Apply all changes or none, in one call; the images are those of the buckets."""
    writes = [change.write for change in changes]
    accruals = [accrual for change in changes for accrual in change.accruals]
    if not accruals:
        return await store.commit(writes, timeout=timeout)
    outcome = await store.commit([*writes, *accruals], timeout=timeout)
    return Committed(outcome.images[: len(writes)]) if isinstance(outcome, Committed) else outcome
