"""Decisions over a whole chain: every level, every limit, all or nothing."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from .bucket import MILLI, balance, limit_status, wait_ms
from .errors import CapacityExceeded, RateLimitExceeded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .bucket import ShardBalance
    from .limit import Limit
    from .values import LimitStatus


class Reading(NamedTuple):
    """One level of a chain as last seen: its limits in force and, per limit, where its tokens are."""

    entity_id: str
    resource: str
    limits: tuple[Limit, ...]
    balances: Mapping[str, tuple[ShardBalance, ...]]


def statuses(readings: Sequence[Reading], cost_milli: Mapping[str, int], now_ms: int) -> list[LimitStatus]:
    """Return the status of every limit of every level for a request of ``cost_milli``."""
    return [
        limit_status(
            reading.entity_id,
            reading.resource,
            limit,
            reading.balances[limit.name],
            cost_milli.get(limit.name),
            now_ms,
        )
        for reading in readings
        for limit in reading.limits
    ]


def refusal(readings: Sequence[Reading], cost_milli: Mapping[str, int], now_ms: int) -> RateLimitExceeded | None:
    """Return why the request cannot be granted as of ``now_ms``, or None if it can.

    The error makes its statuses when somebody looks at them.
    """
    lacks = never = False
    for reading in readings:
        for limit in reading.limits:
            need = cost_milli.get(limit.name)
            if need is not None and balance(reading.balances[limit.name], now_ms) < need:
                lacks = True
                never = never or need > limit.capacity * MILLI
    if not lacks:
        return None
    kind = CapacityExceeded if never else RateLimitExceeded
    return kind(partial(statuses, readings, cost_milli, now_ms))


def find_fitting(readings: Sequence[Reading], costs: Sequence[Mapping[str, int]], now_ms: int) -> list[bool]:
    """Return for each of several requests whether it fits, taken in order; one that does not fit takes nothing."""
    left = [{name: balance(balances, now_ms) for name, balances in reading.balances.items()} for reading in readings]
    answers = []
    for cost in costs:
        needs = [(shard, name, need) for shard in left for name, need in cost.items() if name in shard]
        fits = all(shard[name] >= need for shard, name, need in needs)
        answers.append(fits)
        if fits:
            for shard, name, need in needs:
                shard[name] -= need
    return answers


def wait_for(readings: Sequence[Reading], cost_milli: Mapping[str, int], now_ms: int) -> int:
    """Return the milliseconds until every level can take the cost, if nobody else spends."""
    return max(
        (
            wait_ms(balances, cost_milli[name], now_ms)
            for reading in readings
            for name, balances in reading.balances.items()
            if name in cost_milli
        ),
        default=0,
    )
