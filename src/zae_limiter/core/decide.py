"""Decisions over a whole chain: every level, every limit, all or nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from .bucket import balance, limit_status, wait_ms
from .errors import CapacityExceeded, RateLimitExceeded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .bucket import Pot
    from .limit import Limit
    from .values import LimitStatus


class Reading(NamedTuple):
    """One level of a chain as last seen: its limits in force and, per limit, where its tokens are."""

    entity_id: str
    resource: str
    limits: tuple[Limit, ...]
    pots: Mapping[str, tuple[Pot, ...]]


def statuses(readings: Sequence[Reading], cost_milli: Mapping[str, int], now_ms: int) -> list[LimitStatus]:
    """Every limit of every level, seen by a request of ``cost_milli``."""
    return [
        limit_status(
            reading.entity_id,
            reading.resource,
            limit,
            reading.pots[limit.name],
            cost_milli.get(limit.name),
            now_ms,
        )
        for reading in readings
        for limit in reading.limits
    ]


def refusal(readings: Sequence[Reading], cost_milli: Mapping[str, int], now_ms: int) -> RateLimitExceeded | None:
    """Why the request cannot be granted as of ``now_ms``, or None where it can."""
    seen = statuses(readings, cost_milli, now_ms)
    if any(status.requested > status.limit.capacity for status in seen):
        return CapacityExceeded(seen)
    return RateLimitExceeded(seen) if any(status.exceeded for status in seen) else None


def fitting(readings: Sequence[Reading], costs: Sequence[Mapping[str, int]], now_ms: int) -> list[bool]:
    """Which of several requests fit together, taken in order; one that does not fit takes nothing."""
    left = [{name: balance(pots, now_ms) for name, pots in reading.pots.items()} for reading in readings]
    answers = []
    for cost in costs:
        needs = [(pot, name, need) for pot in left for name, need in cost.items() if name in pot]
        fits = all(pot[name] >= need for pot, name, need in needs)
        answers.append(fits)
        if fits:
            for pot, name, need in needs:
                pot[name] -= need
    return answers


def wait_for(readings: Sequence[Reading], cost_milli: Mapping[str, int], now_ms: int) -> int:
    """Milliseconds until every level can take the cost, if nobody else spends."""
    return max(
        (
            wait_ms(pots, cost_milli[name], now_ms)
            for reading in readings
            for name, pots in reading.pots.items()
            if name in cost_milli
        ),
        default=0,
    )
