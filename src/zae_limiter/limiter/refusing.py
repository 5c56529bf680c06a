"""Refusing without asking the store: only where the last sights leave no doubt. This never admits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.decide import refusal
from ..core.errors import CapacityExceeded
from ..records.charging import is_current

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..core.errors import RateLimitExceeded
    from .chain import Chain


def known_refusal(chain: Chain, cost: Mapping[str, int], now_ms: int, ttl_ms: int) -> RateLimitExceeded | None:
    """Return the refusal if a limit that refuses was seen at most ``ttl_ms`` ago; None if the store must be asked.

    Others may have given tokens back since it was seen, so no refusal is repeated for longer than that.
    """
    seen = [rung.seen_ms for rung in chain.rungs]
    if not any(0 <= now_ms - seen_ms <= ttl_ms for seen_ms in seen) or not ttl_ms:
        return None
    error = refusal(chain.offers(cost, now_ms), cost, now_ms)
    if error is None:
        return None
    short = {status.entity_id for status in error.violations}
    for level, seen_ms in zip(chain.levels, seen, strict=True):
        if level.entity_id in short and 0 <= now_ms - seen_ms <= ttl_ms:
            return error
    return None


def repeated_refusal(chain: Chain, cost: Mapping[str, int], now_ms: int, ttl_ms: int) -> RateLimitExceeded | None:
    """The same for a chain that has refused before and was not moved to other limits since: without a detour."""
    if chain.sharded or not any(sight.refused for _, sight in chain.steps):
        return None
    for level, sight in chain.steps:
        if sight.image is None or not is_current(level, sight.image):
            return None
    return known_refusal(chain, cost, now_ms, ttl_ms)


def remember_refusal(chain: Chain, error: RateLimitExceeded) -> None:
    """Mark the buckets that have refused: the next request may need no question."""
    if isinstance(error, CapacityExceeded):
        return
    short = {status.entity_id for status in error.violations}
    for level, sight in chain.steps:
        if level.entity_id in short:
            sight.refused = True
