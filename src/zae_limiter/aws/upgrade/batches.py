"""Moves put together into as few commits as possible."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...stores.dynamodb.transactions import MOST_WRITES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ...records.algebra import Key, Write
    from .items import Move


def batches(moves: Sequence[Move]) -> Iterator[list[Move]]:
    """Moves that one commit can make: few enough, and no record in two of them but to count in it."""
    batch: list[Move] = []
    for move in moves:
        if batch and not _fit([*batch, move]):
            yield batch
            batch = []
        batch.append(move)
    if batch:
        yield batch


def _fit(moves: Sequence[Move]) -> bool:
    writes = [write for move in moves for write in move.writes]
    fixed = [write.key for write in writes if not _counts(write)]
    counted = {write.key for write in writes if _counts(write)}
    return (
        len(fixed) == len(set(fixed)) and not counted.intersection(fixed) and len(fixed) + len(counted) <= MOST_WRITES
    )


def together(moves: Sequence[Move]) -> list[Write]:
    """The writes of some moves; what several count in one record is one write."""
    found: dict[Key, Write] = {}
    for write in (each for move in moves for each in move.writes):
        before = found.get(write.key)
        if before is not None:
            sums = {name: before.add.get(name, 0) + write.add.get(name, 0) for name in {**before.add, **write.add}}
            write = before._replace(add=sums)
        found[write.key] = write
    return list(found.values())


def _counts(write: Write) -> bool:
    return bool(write.add) and not write.delete and not write.remove and write.expires_at_ms is None
