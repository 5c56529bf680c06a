"""Charging a bucket as the limiter does, for tests of the records alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zae_limiter.records import charging, reshaping

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zae_limiter.records.algebra import Image, Write
    from zae_limiter.records.level import Level


def charge(level: Level, image: Image, cost: Mapping[str, int], now_ms: int) -> Write | None:
    """Return the write that takes ``cost``, moving the bucket to the limits in force where it has to be."""
    limits = charging.anchored_limits(level, image, now_ms)
    if limits is None or now_ms > limits.until_ms:
        return reshaping.reshape(level, image, cost, now_ms)
    return charging.charge(level, image, limits, cost, now_ms)
