"""The bound of a limit: in every window of length w, capacity + rate x w."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from bench.hammering import Grant, Log


class Bound(NamedTuple):
    """A token bucket in numbers."""

    capacity: int
    per_second: float

    def over(self, seconds: float) -> float:
        """The most that may be granted in a window of this length."""
        return self.capacity + self.per_second * seconds


class Verdict(NamedTuple):
    """Granted calls compared with the bound and with the demand."""

    admitted: int
    refused: int
    bound: float
    """Capacity + rate x the time in which there was demand."""
    excess: float
    """By how much the window that is worst exceeds its own bound; 0 if none does."""


def verdict(log: Log, bound: Bound, start_ns: int, until_ns: int) -> Verdict:
    """Judge what was granted to everybody together, while there was demand."""
    end_ns = max([until_ns, *(grant.answered_ns for grant in log.grants)])
    allowed = bound.over((end_ns - start_ns) / 1e9)
    return Verdict(len(log.grants), log.refused, round(allowed, 1), round(worst_excess(log.grants, bound), 1))


def worst_excess(grants: Sequence[Grant], bound: Bound) -> float:
    """The largest excess over all windows, never more than the truth.

    A window reaches from the moment at which its first grant was asked for to the latest answer so far: the longest
    time in which its grants can have been decided. So nobody is accused of what only a slow answer makes it look like.

    >>> second = 1_000_000_000
    >>> burst = [Grant(0, 0)] * 12
    >>> worst_excess(burst, Bound(10, 5.0))
    2.0
    >>> worst_excess([*burst[:10], Grant(second, second)], Bound(10, 5.0))
    0.0
    """
    rate = bound.per_second / 1e9
    latest, best_start, worst = 0, float("-inf"), 0.0
    for number, grant in enumerate(sorted(grants)):
        latest = max(latest, grant.answered_ns)
        best_start = max(best_start, rate * grant.asked_ns - number)
        worst = max(worst, best_start + number + 1 - rate * latest - bound.capacity)
    return worst
