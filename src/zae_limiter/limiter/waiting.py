"""Waiting for tokens: first come, first served within a process.

Only the head of a line has a timer; the others are woken when they become head, so nobody stampedes. While a
line is not empty, a newcomer sees what those before it will leave: it joins if that fits in its time, and is
refused at once if not.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

from ..core.decide import Reading, refusal
from ..core.errors import CapacityExceeded, RateLimitExceeded

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence
    from typing import Any

    from ..clock import Clock
    from ..records.algebra import Key
    from ..runtime.port import Gate, Runtime
    from .engine import Grant


class Ticket:
    """A place in a line."""

    __slots__ = ("cost", "gate")

    def __init__(self, cost: Mapping[str, int], gate: Gate) -> None:
        self.cost = cost
        self.gate = gate


class Lines:
    """The lines of one limiter, by bucket."""

    def __init__(self, runtime: Runtime, clock: Clock) -> None:
        self._runtime = runtime
        self._clock = clock
        self._lock = threading.Lock()
        self.waiting: dict[Key, deque[Ticket]] = {}

    def check(
        self, key: Key, readings: Sequence[Reading], cost: Mapping[str, int], now_ms: int, max_wait_ms: int
    ) -> None:
        """Refuse a newcomer who cannot be served in time after those already in line."""
        with self._lock:
            ahead = [ticket.cost for ticket in self.waiting.get(key, ())]
        if ahead:
            error = refusal(_after(readings, ahead), cost, now_ms)
            if error is not None and not _in_time(error, max_wait_ms):
                raise error

    async def stand(
        self,
        key: Key,
        cost: Mapping[str, int],
        max_wait_ms: int,
        attempt: Callable[[], Coroutine[Any, Any, Grant]],
    ) -> Grant:
        """Stand in line and try whenever it may fit, until the time is up."""
        deadline_ms = self._clock.now_ms() + max_wait_ms
        ticket = Ticket(cost, self._runtime.gate())
        first = self._join(key, ticket)
        try:
            if not first:
                await ticket.gate.wait(max_wait_ms / 1000)
            while True:
                try:
                    return await attempt()
                except CapacityExceeded:
                    raise
                except RateLimitExceeded as error:
                    left_ms = deadline_ms - self._clock.now_ms()
                    if not self._is_head(key, ticket) or not _in_time(error, left_ms):
                        raise
                    await self._pause(error.retry_after_seconds or 0.0)
        finally:
            self._leave(key, ticket)

    def forget(self) -> None:
        """Start with empty lines: in a forked child nobody of the parent's waits."""
        self._lock = threading.Lock()
        self.waiting = {}

    async def _pause(self, seconds: float) -> None:
        pause = getattr(self._clock, "pause", None)
        await (self._runtime.sleep(seconds) if pause is None else pause(seconds))

    def _join(self, key: Key, ticket: Ticket) -> bool:
        with self._lock:
            line = self.waiting.setdefault(key, deque())
            line.append(ticket)
            return line[0] is ticket

    def _is_head(self, key: Key, ticket: Ticket) -> bool:
        with self._lock:
            return self.waiting[key][0] is ticket

    def _leave(self, key: Key, ticket: Ticket) -> None:
        with self._lock:
            line = self.waiting[key]
            was_head = line[0] is ticket
            line.remove(ticket)
            heir = line[0] if line and was_head else None
            if not line:
                del self.waiting[key]
        if heir is not None:
            heir.gate.open()


def _in_time(error: RateLimitExceeded, left_ms: int) -> bool:
    seconds = error.retry_after_seconds
    return seconds is not None and round(seconds * 1000) <= left_ms


def _after(readings: Sequence[Reading], ahead: Sequence[Mapping[str, int]]) -> list[Reading]:
    """The levels as they will be when those in line have been served."""
    return [
        reading._replace(
            tokens={
                name: (tk - sum(cost.get(name, 0) for cost in ahead), rf) for name, (tk, rf) in reading.tokens.items()
            }
        )
        for reading in readings
    ]
