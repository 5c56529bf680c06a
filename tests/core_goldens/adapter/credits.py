"""Adding credit to a bucket, and filling it up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zae_limiter.records import credits

from .levels import key_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from zae_limiter import Limit
    from zae_limiter.records.algebra import Image, Write


def add_credit(
    shard: int, image: Image | None, amounts: Mapping[str, int], expires_ms: int, now_ms: int, serial: int
) -> Write:
    """Return the write that adds lots to a record, making it if need be. Raise ValidationError if it has too many."""
    return credits.add_credit(key_of(shard), image, amounts, expires_ms, now_ms, serial)


def prepare_filling(shard: int, image: Image, limits: Sequence[Limit], now_ms: int) -> Write | None:
    """Return the write that moves a record to the limits under which it is filled up; None if it is there."""
    return credits.prepare_filling(key_of(shard), image, limits, now_ms)


def fill_up(shard: int, image: Image, names: Collection[str] | None, now_ms: int) -> tuple[Write, Mapping[str, int]]:
    """Return the write that fills a record up, and what each limit gains."""
    return credits.fill_up(key_of(shard), image, names, now_ms)


def free_more(shard: int, before: Image, image: Image, names: Collection[str] | None) -> Write | None:
    """Return the write that frees further slots of a record that was filled up; None if all are free."""
    return credits.free_more(key_of(shard), before, image, names)
