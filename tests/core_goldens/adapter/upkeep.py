"""What happens to a bucket beside charges: its anchor moves, it is stamped or split, its usage is booked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zae_limiter.records import charging, ledger, migration, splitting

from .levels import key_of, level_of

if TYPE_CHECKING:
    from zae_limiter.records.algebra import Image, Write

    from ..worlds import Spot


def move_anchor(shard: int, image: Image, at_ms: int, now_ms: int) -> Write:
    """Return the write that moves a record to another anchor, as of an instant."""
    return charging.write_of(migration.move_anchor(image, shard, at_ms, now_ms), key_of(shard), image)


def stamp(shard: int, image: Image, version: int) -> Write | None:
    """Return the write that stamps a record with a config version; None if it has that already."""
    return migration.stamp(key_of(shard), image, version)


def split(spot: Spot, image: Image, now_ms: int) -> list[Write]:
    """Return the writes that split a record in two."""
    return splitting.split(level_of(spot, now_ms), image, now_ms)


def is_open(image: Image) -> bool:
    """Return whether a record has usage that was not booked."""
    return ledger.is_open(image)


def book(shard: int, image: Image, usage_days: int) -> tuple[Write, tuple[Write, ...]]:
    """Return the write that books the usage of a record and ends its hour, and the usage records."""
    return ledger.book(key_of(shard), image, usage_days)


def book_seen(shard: int, image: Image, usage_days: int) -> tuple[Write, tuple[Write, ...]]:
    """Return the write that books the usage seen in a record and leaves its hour open, and the usage records."""
    return ledger.book_seen(key_of(shard), image, usage_days)
