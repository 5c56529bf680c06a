"""Production: what a rate or a quota makes over time. Exact integers: millitokens and milliseconds since the epoch.

By the instant ``t`` a rule has produced ``(ticks(t) * amount + phase) // period``. A rate ticks every millisecond, a
quota once per window of its calendar. Differences telescope, so refill is exact however often it is looked at.

Between two ticks of a calendar nothing is produced, so at any instant every rule is a straight line over some interval:
a `Segment`. Arithmetic on balances uses segments and never asks which kind of rule it has.

A bucket may be split over several shards. Shard ``i`` of ``n`` has produced ``(produced(t) + i) // n`` by ``t`` and
holds ``(capacity + i) // n`` at most; over all shards these sum to the whole, exactly. Shard ``i`` of ``n`` is in turn
the sum of the shards ``i`` and ``i + n`` of ``2n``, so any of them can be split again without the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from .calendar import Calendar
from .limit import Limit

Amounts: TypeAlias = Mapping[str, int]
"""Thousandths of tokens or slots, by the name of the limit."""
MILLI = 1000
FAR = 2**62
"""No instant and no amount is as large."""
FOR_EVER = FAR
"""The expiry of credit that does not expire, and the wait for a cost that never fits."""


class Segment(NamedTuple):
    """A stretch of a rule, from ``start`` to ``end``, both included: there it is a straight line.

    What it has produced since an anchor is ``((t - anchor) * amount + rest) // period``.
    """

    amount: int
    period: int
    rest: int
    start: int
    end: int


class Rule(NamedTuple):
    """A limit, or a shard's share of it, in stored units: millitokens, and milliseconds or windows of a calendar."""

    capacity: int
    amount: int
    period: int
    phase: int = 0
    calendar: Calendar | None = None

    @classmethod
    def of(cls, limit: Limit) -> Rule:
        """Return the rule that a limit states."""
        if limit.calendar is not None:
            return cls(limit.capacity * MILLI, limit.refill_amount * MILLI, 1, 0, limit.calendar)
        return cls(limit.capacity * MILLI, limit.refill_amount * MILLI, limit.refill_period_seconds * MILLI)

    def share(self, shard: int, count: int) -> Rule:
        """Return the share of one shard of ``count`` in a whole rule."""
        if count == 1:
            return self
        capacity, period, phase = (self.capacity + shard) // count, self.period * count, self.period * shard
        return Rule(capacity, self.amount, period, phase, self.calendar)

    def begin(self, start_ms: int | None) -> Rule:
        """Return the rule in a bucket whose window has begun with its first use at ``start_ms``; others stay."""
        return self if self.calendar is None else self._replace(calendar=self.calendar.begin(start_ms))

    def is_idle(self, now_ms: int) -> bool:
        """Return whether a window begins with the next use."""
        return self.calendar is not None and self.calendar.is_idle(now_ms)

    def produced(self, instant_ms: int) -> int:
        """Return the millitokens made by an instant."""
        ticks = instant_ms if self.calendar is None else self.calendar.index(instant_ms)
        return (ticks * self.amount + self.phase) // self.period

    def produced_between(self, start_ms: int, end_ms: int) -> int:
        """Return the millitokens made from one instant to another."""
        return self.produced(end_ms) - self.produced(start_ms)

    def reaches(self, total: int) -> int:
        """Return the first instant by which ``total`` millitokens have been made, exact to the millisecond."""
        ticks = -((self.phase - total * self.period) // self.amount)
        return ticks if self.calendar is None else self.calendar.start(ticks)

    def level(self, tokens: int, anchor_ms: int, now_ms: int) -> int:
        """Return the balance at ``now_ms`` of ``tokens`` relative to an anchor; negative means debt."""
        return min(self.capacity, tokens + self.produced_between(anchor_ms, now_ms))

    def fits_at(self, tokens: int, anchor_ms: int, needed: int) -> int:
        """Return the first instant at which ``needed`` millitokens, at most the capacity, are there."""
        return self.reaches(self.produced(anchor_ms) + needed - tokens)

    def segment(self, anchor_ms: int, now_ms: int) -> Segment:
        """Return the straight line that the rule is around an instant."""
        if self.calendar is None:
            rest = (anchor_ms * self.amount + self.phase) % self.period
            return Segment(self.amount, self.period, rest, -FAR, FAR)
        window = self.calendar.index(now_ms)
        start, end = self.calendar.start(window), self.calendar.start(window + 1) - 1
        return Segment(0, 1, self.produced_between(anchor_ms, now_ms), start, end)
