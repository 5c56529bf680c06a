"""Decisions over a whole chain: every level, every limit, all or nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

from .balances import Balance, balance, wait_ms
from .borders import Scheduled
from .errors import CapacityExceeded, RateLimitExceeded
from .limit import Limit
from .production import FOR_EVER, MILLI
from .refusals import StatusFields
from .tokens import Tokens
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
    floor: Mapping[str, int] = MappingProxyType({})
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

    def status(self, limit: Limit, cost_milli: int | None, now_ms: int) -> LimitStatus:
        """Return the status of one limit at ``now_ms`` for a request of ``cost_milli``.

        A cost of 0 exceeds a limit that is in debt; None, a limit that the request does not name, exceeds nothing.
        """
        return LimitStatus(*self.describe(limit, cost_milli, now_ms))

    def describe(self, limit: Limit, cost_milli: int | None, now_ms: int) -> StatusFields:
        """Return the fields of `status`."""
        balances, floor = self.balances[limit.name], self.floor.get(limit.name, 0)
        wait = self.wait_ms(limit, cost_milli or 0, now_ms)
        held, credit = balance(balances, now_ms), sum(shard.credit(now_ms) for shard in balances)
        calendar = balances[0].rule.calendar
        if calendar is not None:
            limit = limit.begin_window(calendar.phase_ms)
        return describe_limit(self.entity_id, self.resource, limit, held, cost_milli, wait, floor, now_ms, credit)


def describe_limit(
    entity_id: str,
    resource: str,
    limit: Limit,
    held_milli: int,
    cost_milli: int | None,
    wait: int,
    floor: int,
    now_ms: int,
    credit_milli: int = 0,
) -> StatusFields:
    """Return the fields of a status; ``wait`` is how many milliseconds later the cost fits, if it does not now.

    It is `FOR_EVER` if it never does. ``credit_milli`` is the part of what is held that is credit.
    """
    need = cost_milli or 0
    exceeded = cost_milli is not None and held_milli < need + floor
    retry = 0.0 if not exceeded else None if wait >= FOR_EVER else wait / MILLI
    floor = -(-floor // MILLI) if floor > 0 else 0
    held, asked = held_milli // MILLI, need // MILLI
    return entity_id, resource, limit.name, limit, held, asked, exceeded, retry, floor, now_ms, credit_milli // MILLI


def statuses(readings: Sequence[Reading], cost_milli: Mapping[str, int], now_ms: int) -> list[LimitStatus]:
    """Return the status of every limit of every level for a request of ``cost_milli``."""
    return [LimitStatus(*fields) for fields in describe(readings, cost_milli, now_ms)]


def describe(readings: Sequence[Reading], cost_milli: Mapping[str, int], now_ms: int) -> list[StatusFields]:
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
        wait = wait_for(readings, cost_milli, now_ms)
        found[last] = (*found[last][:7], None if wait >= FOR_EVER else wait / MILLI, *found[last][8:])
    return found


def refusal(readings: Sequence[Reading], cost_milli: Mapping[str, int], now_ms: int) -> RateLimitExceeded | None:
    """Return why the request cannot be granted as of ``now_ms``, or None if it can.

    The error makes its statuses when somebody looks at them.
    """
    lacks = never = False
    for reading in readings:
        for limit in reading.limits:
            need = cost_milli.get(limit.name + reading.qualifier)
            if need is None:
                continue
            needed = need + reading.floor.get(limit.name, 0)
            if balance(reading.balances[limit.name], now_ms) < needed:
                lacks = True
                never = never or (needed > limit.capacity * MILLI and reading.wait_ms(limit, need, now_ms) >= FOR_EVER)
    if not lacks:
        return None
    if any(reading.may_fall for reading in readings):
        never = wait_for(readings, cost_milli, now_ms) >= FOR_EVER
    kind = CapacityExceeded if never else RateLimitExceeded
    return kind(partial(describe, readings, cost_milli, now_ms))


def find_fitting(readings: Sequence[Reading], costs: Sequence[Mapping[str, int]], now_ms: int) -> list[bool]:
    """Return for each of several requests whether it fits, taken in order; one that does not fit takes nothing."""
    left = [
        ({name: balance(balances, now_ms) for name, balances in reading.balances.items()}, reading)
        for reading in readings
    ]
    answers = []
    for cost in costs:
        needs = [
            (shard, reading.floor, name, need)
            for shard, reading in left
            for name in shard
            if (need := cost.get(name + reading.qualifier)) is not None
        ]
        fits = all(shard[name] >= need + floor.get(name, 0) for shard, floor, name, need in needs)
        answers.append(fits)
        if fits:
            for shard, _, name, need in needs:
                shard[name] -= need
    return answers


def wait_for(readings: Sequence[Reading], cost_milli: Mapping[str, int], now_ms: int) -> int:
    """Return the milliseconds until every level can take the cost, if nobody else spends; `FOR_EVER` if never."""
    needs = [
        (reading, limit, need)
        for reading in readings
        for limit in reading.limits
        if (need := cost_milli.get(limit.name + reading.qualifier)) is not None
    ]
    wait = max([reading.wait_ms(limit, need, now_ms) for reading, limit, need in needs], default=0)
    if not any(reading.may_fall for reading in readings):
        return wait
    for _ in range(_MOST_LOOKS):
        if wait >= FOR_EVER:
            break
        later = [reading.wait_ms(limit, need, now_ms, now_ms + wait) for reading, limit, need in needs]
        again = max(later, default=0)
        if again == wait:
            return wait
        wait = again
    return FOR_EVER
