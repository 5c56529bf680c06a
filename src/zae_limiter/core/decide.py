"""Decisions over a whole chain: every level, every limit, all or nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

from .balances import Balance, Tokens, balance, wait_ms
from .borders import Scheduled
from .errors import CapacityExceeded, RateLimitExceeded
from .limit import Limit
from .production import FOR_EVER, MILLI, Amounts
from .refusals import StatusFields
from .values import LimitStatus

_MOST_LOOKS = 100
"""How often a moment is looked for at which limits that may fall have a cost together."""


class Reading(NamedTuple):
    """One level of a chain as last seen: its limits in force and, per limit, where its tokens are.

    ``floor`` is what a request has to leave of a limit, where it is not 0. A cost names the limits with the
    ``qualifier`` behind their names, where it is for several resources. ``scheduled`` are those with a schedule.
    """

    entity_id: str
    resource: str
    limits: tuple[Limit, ...]
    balances: Mapping[str, tuple[Balance, ...]]
    floor: Amounts = MappingProxyType({})
    qualifier: str = ""
    scheduled: Mapping[str, Scheduled] = MappingProxyType({})

    @property
    def may_fall(self) -> bool:
        """Return whether a level may fall by itself: where a schedule cuts it, or credit expires."""
        return bool(self.scheduled) or any(shard.credits for held in self.balances.values() for shard in held)

    def wait_ms(self, limit: Limit, cost_milli: int, now_ms: int, from_ms: int | None = None) -> int:
        """Return the milliseconds until a limit can take a cost; `FOR_EVER` if it never can.

        ``from_ms`` is an instant before which it is not asked for.
        """
        from_ms = now_ms if from_ms is None else from_ms
        balances, floor = self.balances[limit.name], self.floor.get(limit.name, 0)
        if limit.name in self.scheduled and floor >= 0:
            from .borders import wait_across

            tokens = [shard for shard in balances if isinstance(shard, Tokens)]
            return wait_across(self.scheduled[limit.name], tokens, cost_milli, now_ms, from_ms)
        if cost_milli + floor > limit.capacity * MILLI and not any(shard.credits for shard in balances):
            return FOR_EVER
        return from_ms - now_ms + wait_ms(balances, cost_milli + floor, from_ms)

    def describe(self, limit: Limit, cost_milli: int | None, now_ms: int) -> StatusFields:
        """Return the fields of the status of one limit at ``now_ms`` for a request of ``cost_milli``.

        A cost of 0 exceeds a limit that is in debt; None, a limit that the request does not name, exceeds nothing.
        """
        balances, floor, need = self.balances[limit.name], self.floor.get(limit.name, 0), cost_milli or 0
        held, credit = balance(balances, now_ms), sum(shard.credit(now_ms) for shard in balances)
        exceeded = cost_milli is not None and held < need + floor
        wait = self.wait_ms(limit, need, now_ms) if exceeded else 0
        if (calendar := balances[0].rule.calendar) is not None:
            limit = limit.begin_window(calendar.phase_ms)
        amounts = limit.name, limit, held // MILLI, need // MILLI, exceeded, _seconds(wait), -(-max(0, floor) // MILLI)
        return self.entity_id, self.resource, *amounts, now_ms, credit // MILLI


def _seconds(wait_ms: int) -> float | None:
    return None if wait_ms >= FOR_EVER else wait_ms / MILLI


def _find_needs(readings: Sequence[Reading], cost_milli: Amounts) -> list[tuple[Reading, Limit, int]]:
    """Return what a cost takes of each limit that it names."""
    return [
        (reading, limit, need)
        for reading in readings
        for limit in reading.limits
        if (need := cost_milli.get(limit.name + reading.qualifier)) is not None
    ]


def statuses(readings: Sequence[Reading], cost_milli: Amounts, now_ms: int) -> list[LimitStatus]:
    """Return the status of every limit of every level for a request of ``cost_milli``."""
    return [LimitStatus(*fields) for fields in describe(readings, cost_milli, now_ms)]


def describe(readings: Sequence[Reading], cost_milli: Amounts, now_ms: int) -> list[StatusFields]:
    """Return the fields of `statuses`.

    Where levels may fall by themselves, a limit that has the cost now may lack it when another has it. Then the limit
    that takes longest waits for the first moment at which all of them have it.
    """
    found = [
        reading.describe(limit, cost_milli.get(limit.name + reading.qualifier), now_ms)
        for reading in readings
        for limit in reading.limits
    ]
    lacking = [place for place, fields in enumerate(found) if fields[6]]
    if lacking and any(reading.may_fall for reading in readings):
        last = max(lacking, key=lambda place: FOR_EVER if found[place][7] is None else found[place][7] or 0)
        found[last] = (*found[last][:7], _seconds(wait_for(readings, cost_milli, now_ms)), *found[last][8:])
    return found


def refusal(readings: Sequence[Reading], cost_milli: Amounts, now_ms: int) -> RateLimitExceeded | None:
    """Return why the request cannot be granted as of ``now_ms``, or None if it can.

    The error makes its statuses when somebody looks at them.
    """
    lacking = [
        (limit, needed)
        for reading, limit, need in _find_needs(readings, cost_milli)
        if balance(reading.balances[limit.name], now_ms) < (needed := need + reading.floor.get(limit.name, 0))
    ]
    if not lacking:
        return None
    if any(reading.may_fall for reading in readings):
        never = wait_for(readings, cost_milli, now_ms) >= FOR_EVER
    else:
        never = any(needed > limit.capacity * MILLI for limit, needed in lacking)
    return (CapacityExceeded if never else RateLimitExceeded)(partial(describe, readings, cost_milli, now_ms))


def find_fitting(readings: Sequence[Reading], costs: Sequence[Amounts], now_ms: int) -> list[bool]:
    """Return for each of several requests whether it fits, taken in order; one that does not fit takes nothing."""
    spare = [
        {name: balance(held, now_ms) - reading.floor.get(name, 0) for name, held in reading.balances.items()}
        for reading in readings
    ]
    answers = []
    for cost in costs:
        needs = [
            (left, name, need)
            for left, reading in zip(spare, readings, strict=True)
            for name in left
            if (need := cost.get(name + reading.qualifier)) is not None
        ]
        answers.append(all(left[name] >= need for left, name, need in needs))
        for left, name, need in needs if answers[-1] else ():
            left[name] -= need
    return answers


def wait_for(readings: Sequence[Reading], cost_milli: Amounts, now_ms: int) -> int:
    """Return the milliseconds until every level can take the cost, if nobody else spends; `FOR_EVER` if never."""
    needs, wait = _find_needs(readings, cost_milli), 0
    may_fall = any(reading.may_fall for reading in readings)
    for _ in range(_MOST_LOOKS):
        again = max([reading.wait_ms(limit, need, now_ms, now_ms + wait) for reading, limit, need in needs], default=0)
        if again == wait or not may_fall:
            return again
        if again >= FOR_EVER:
            break
        wait = again
    return FOR_EVER
