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


MEMORY_MS = 60_000
"""How long a refusal is remembered at most: others may have given tokens back meanwhile."""


def known_refusal(chain: Chain, cost: Mapping[str, int], now_ms: int, ttl_ms: int) -> RateLimitExceeded | None:
    """The refusal, if a violated limit was seen recently enough or has refused as much with the same image."""
    seen = [rung.seen_ms for rung in chain.rungs]
    error = refusal(chain.offers(cost, now_ms), cost, now_ms)
    if error is None or not ttl_ms:
        return None
    for (level, sight), seen_ms in zip(chain.steps, seen, strict=True):
        mine = [status.limit_name for status in error.violations if status.entity_id == level.entity_id]
        refused = sight.refused or {}
        if mine and 0 <= now_ms - seen_ms <= ttl_ms:
            return error
        if now_ms - seen_ms <= MEMORY_MS and any(cost[name] >= refused.get(name, cost[name] + 1) for name in mine):
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


def remember_refusal(chain: Chain, error: RateLimitExceeded, cost: Mapping[str, int]) -> None:
    """Keep what was refused: the same or more needs no question until it would fit."""
    if isinstance(error, CapacityExceeded):
        return
    for level, sight in chain.steps:
        before = sight.refused or {}
        mine = [status.limit_name for status in error.violations if status.entity_id == level.entity_id]
        if mine:
            sight.refused = {**before, **{name: min(cost[name], before.get(name, cost[name])) for name in mine}}
