"""Combine moves into as few commits as possible."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...stores.dynamodb.transactions import MOST_WRITES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ...records.algebra import Key, Write
    from .items import Move


def split_batches(moves: Sequence[Move]) -> Iterator[list[Move]]:
    """Yield groups of moves that fit into one commit: no record is written twice except to add to a counter."""
    batch: list[Move] = []
    for move in moves:
        if batch and not _fits_one_commit([*batch, move]):
            yield batch
            batch = []
        batch.append(move)
    if batch:
        yield batch


def _fits_one_commit(moves: Sequence[Move]) -> bool:
    writes = [write for move in moves for write in move.writes]
    fixed = [write.key for write in writes if not _is_count(write)]
    counted = {write.key for write in writes if _is_count(write)}
    return (
        len(fixed) == len(set(fixed)) and not counted.intersection(fixed) and len(fixed) + len(counted) <= MOST_WRITES
    )


def merge_writes(moves: Sequence[Move]) -> list[Write]:
    """Return the writes of some moves; additions to the same record become one write."""
    found: dict[Key, Write] = {}
    for write in (each for move in moves for each in move.writes):
        before = found.get(write.key)
        if before is not None:
            sums = {name: before.add.get(name, 0) + write.add.get(name, 0) for name in {**before.add, **write.add}}
            write = before._replace(add=sums)
        found[write.key] = write
    return list(found.values())


def _is_count(write: Write) -> bool:
    return bool(write.add) and not write.delete and not write.remove and write.expires_at_ms is None
