"""Charging a bucket as the limiter does, for tests of the records alone: changes as the writes that they become."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zae_limiter.core.change import Change
from zae_limiter.records import charging, migration, settlement
from zae_limiter.records.algebra import Key
from zae_limiter.records.charging import write_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zae_limiter.records.algebra import Image, Write
    from zae_limiter.records.level import BucketLimits
    from zae_limiter.records.settlement import Receipt


def written(change: Change) -> Write:
    """Return a change as a write to some record."""
    return write_of(change, Key("bucket", "#STATE"), None)


def create(level: BucketLimits, cost: Mapping[str, int], now_ms: int, **options: Any) -> Write:
    """Return the write that makes a bucket less ``cost``."""
    return write_of(charging.create(level, cost, now_ms, **options), level.key, None)


def charge(level: BucketLimits, image: Image, cost: Mapping[str, int], now_ms: int) -> Write | None:
    """Return the write that takes ``cost``, moving the bucket to the limits in force where it has to be."""
    frame = charging.find_frame(level, image, now_ms)
    if frame is None or now_ms > frame.until_ms:
        return migrate(level, image, cost, now_ms)
    change = charging.charge(level, image, frame, cost, now_ms)
    return write_of(change, level.key, image) if isinstance(change, Change) else None


def draw(
    level: BucketLimits,
    image: Image,
    cost: Mapping[str, int],
    now_ms: int,
    contention: charging.Contention = charging.ALONE,
) -> Change | None:
    """Return the change that takes ``cost`` from a bucket under the limits in force."""
    frame = charging.find_frame(level, image, now_ms)
    assert frame is not None, "it has not to be moved"
    change = charging.charge(level, image, frame, cost, now_ms, contention)
    return change if isinstance(change, Change) else None


def migrate(level: BucketLimits, image: Image, cost: Mapping[str, int], now_ms: int) -> Write | None:
    """Return the write that moves a bucket to the limits in force and takes ``cost``."""
    change = migration.migrate(level, image, cost, now_ms)
    return write_of(change, level.key, image) if isinstance(change, Change) else None


def settle(level: BucketLimits, image: Image, delta: Mapping[str, int], charged: Receipt, now_ms: int) -> Write:
    """Return the write that settles a charge."""
    return write_of(settlement.settle(level, image, delta, charged, now_ms), level.key, image)
