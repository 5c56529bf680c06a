"""What is asked for of one bucket: by callers of this process, and by others as far as it shows."""

from __future__ import annotations

from collections.abc import Mapping

from ...core.production import MILLI
from ...records.algebra import Image, Write
from ...records.level import BucketLimits

FEWEST = 2
"""Minimum number of acquires expected while tokens are kept, for any to be drawn in advance."""
_WINDOW_MS = 100
"""How long is counted at a time, in milliseconds; what came before counts half as much as what came since."""


class Demand:
    """How many acquires callers of this process have asked for lately, and how much of each limit, per second."""

    def __init__(self, now_ms: int) -> None:
        self.acquires = 0.0
        self.tokens: dict[str, float] = {}
        """In millitokens, by limit."""
        self.others: dict[str, float] = {}
        """What other processes take per second, in millitokens by limit."""
        self._asked = 0
        self._wanted: dict[str, int] = {}
        self._since_ms = now_ms
        self._before: Image | None = None
        self._own: dict[str, int] = {}
        self._seen_ms = 0

    def count(self, cost: Mapping[str, int], now_ms: int) -> bool:
        """Count an acquire; return whether that has changed the means."""
        self._asked += 1
        wanted = self._wanted
        for name, need in cost.items():
            wanted[name] = wanted.get(name, 0) + need
        passed = now_ms - self._since_ms
        if 0 <= passed < _WINDOW_MS:
            return False
        if passed > 0:  # else the clock was set back
            kept = 0.5 ** (passed / _WINDOW_MS)
            self.acquires = self.acquires * kept + self._asked * MILLI / passed * (1 - kept)
            self.tokens = {
                name: self.tokens.get(name, 0.0) * kept + wanted.get(name, 0) * MILLI / passed * (1 - kept)
                for name in {*wanted, *self.tokens}
            }
        self._asked, self._wanted, self._since_ms = 0, {}, now_ms
        return True

    def learn(self, level: BucketLimits, image: Image, write: Write, now_ms: int) -> None:
        """Learn from the image that an own write has left: what it has consumed beyond that is of others."""
        counters = {name: limit.at.consumed for name, limit in level.token_limits.items()}
        for name, attr in counters.items():
            self._own[name] = self._own.get(name, 0) + write.add.get(attr, 0)
        passed = now_ms - self._seen_ms
        if self._before is not None:
            if passed < _WINDOW_MS:
                return
            for name, attr in counters.items():
                rate = (image.get(attr, 0) - self._before.get(attr, 0) - self._own[name]) * MILLI / passed
                self.others[name] = max(0.0, (self.others.get(name, rate) + rate) / 2)
        self._before, self._own, self._seen_ms = image, {}, now_ms

    def is_high(self, keep_ms: int) -> bool:
        """Return whether it is high enough for tokens that are kept so long to be drawn in advance."""
        return self.acquires * keep_ms >= FEWEST * MILLI

    def usual_cost(self, name: str) -> float:
        """Return what an acquire takes of a limit on the average, in millitokens; at least one."""
        return max(1.0, self.tokens.get(name, 0.0) / self.acquires) if self.acquires else 1.0
