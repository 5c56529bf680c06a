"""Kinds of demand that exceed a limit."""

from __future__ import annotations

from typing import NamedTuple

from bench.oracle import Bound
from bench.rivals.port import Cost, Quota

KEY, COST = "crowded", Cost(rps=1)


class Demand(NamedTuple):
    """All participants retry at once for some time, perhaps after one grant and a quiet time."""

    name: str
    quota: Quota
    quiet_s: float
    seconds: float

    @property
    def bound(self) -> Bound:
        """The bound of the quota."""
        return Bound(self.quota.amount, self.quota.per_second)

    def window(self, start_ns: int) -> tuple[int, int]:
        """From when until when everybody asks."""
        first = start_ns + round(self.quiet_s * 1e9)
        return first, first + round(self.seconds * 1e9)


QUOTA = Quota("rps", 100, 1)
SATURATED = Demand("saturated", QUOTA, 0.0, 1.5)
QUIET_THEN_BURST = Demand("a burst after a quiet time", QUOTA, 0.8, 0.5)
DEMANDS = {each.name: each for each in (SATURATED, QUIET_THEN_BURST)}
