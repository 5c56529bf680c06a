"""What is asked for of one bucket: by callers of this process, and by others as far as it shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...core.bucket import MILLI

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...records.algebra import Image, Write
    from ...records.level import Level

_WINDOW_MS = 100
"""How long it is counted at a time; what came before counts half as much as what came since."""


class Demand:
    """How many acquires callers of this process have asked for lately, and how much of each limit, per second."""

    __slots__ = ("_asked", "_since_ms", "_wanted", "acquires", "tokens")

    def __init__(self, now_ms: int) -> None:
        self.acquires = 0.0
        self.tokens: dict[str, float] = {}
        """In millitokens, by limit."""
        self._asked = 0
        self._wanted: dict[str, int] = {}
        self._since_ms = now_ms

    def count(self, cost: Mapping[str, int], now_ms: int) -> bool:
        """Count an acquire; return whether the mean was made anew by it."""
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

    def usual_cost(self, name: str) -> float:
        """Return what an acquire takes of a limit on the average, in millitokens; at least one."""
        return max(1.0, self.tokens.get(name, 0.0) / self.acquires) if self.acquires else 1.0


class Others:
    """How much of each limit other processes take, per second, by what one's own writes have shown."""

    __slots__ = ("_before", "_own", "_since_ms", "tokens")

    def __init__(self) -> None:
        self.tokens: dict[str, float] = {}
        """In millitokens, by limit."""
        self._before: Image | None = None
        self._own: dict[str, int] = {}
        self._since_ms = 0

    def learn(self, level: Level, image: Image, write: Write, now_ms: int) -> None:
        """Learn from the image that an own write has left: what it has consumed beyond that is of others."""
        before, passed = self._before, now_ms - self._since_ms
        for name, entry in level.token_limits.items():
            self._own[name] = self._own.get(name, 0) + write.add.get(entry.tc, 0)
        if before is not None and passed < _WINDOW_MS:
            return
        if before is not None:
            for name, entry in level.token_limits.items():
                rate = (image.get(entry.tc, 0) - before.get(entry.tc, 0) - self._own[name]) * MILLI / passed
                self.tokens[name] = max(0.0, (self.tokens.get(name, rate) + rate) / 2)
        self._before, self._own, self._since_ms = image, {}, now_ms
