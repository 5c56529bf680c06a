"""Work that several callers want at once: the first of them does it while the others wait, in the order they came.

Only callers of one scope (an event loop, or all threads) wait for each other. Another loop does the work too, as
another process would, because this one may be stuck or dead.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from ..core.errors import RateLimiterUnavailable, ZAELimiterError
from ..forks import protect
from .deadline import Deadline
from .port import Runtime, Signal, has_ended

Turn: TypeAlias = tuple[object, Hashable]

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Flight:
    """The callers of one scope who want the same work: who waits for it, and the error that they share."""

    waiting: deque[Signal] = field(default_factory=deque)
    failure: Exception | None = None


class SingleFlight:
    """Lets one caller per scope and key work at a time. Those who wait raise a ``shared_error`` as well."""

    def __init__(self, runtime: Runtime, shared_error: type[Exception] | tuple[()] = ()) -> None:
        self._runtime = runtime
        self._shared_error = shared_error
        self._lock = threading.RLock()  # what a dead loop leaves is cleared away at any moment, also under the lock
        self.under_way: dict[Turn, Flight] = {}
        """The flights, until the last one who waits has gone on: later callers queue behind them."""
        protect(self._lock)

    async def run(
        self,
        key: Hashable,
        find: Callable[[], T | None],
        work: Callable[[], Awaitable[T]],
        deadline: Deadline | None,
        late: str,
    ) -> T:
        """Return the result of ``work``, or after waiting what ``find`` returns then, if it is not None.

        A caller that waits longer than its ``deadline`` raises `RateLimiterUnavailable` with the message ``late``.
        """
        turn = (self._runtime.scope(), key)
        flight, signal = self._join(turn)
        try:
            if signal is not None:
                if not await signal.wait(None if deadline is None else deadline.left()):
                    raise RateLimiterUnavailable(late)
                if flight.failure is not None:
                    raise flight.failure
                found = find()
                if found is not None:
                    return found
            try:
                return await work()
            except self._shared_error as error:
                flight.failure = error
                raise
        finally:
            self._leave(turn, flight, signal)

    def is_under_way(self, key: Hashable) -> bool:
        """Return whether callers of this scope, who came before, work or wait for the key."""
        return (self._runtime.scope(), key) in self.under_way

    def _join(self, turn: Turn) -> tuple[Flight, Signal | None]:
        """Join a flight; return it with the signal to wait for, or with None if it is a new one."""
        with self._lock:
            flight = self.under_way.get(turn)
            if flight is None:
                for other in [other for other in self.under_way if has_ended(other[0])]:
                    self.under_way.pop(other, None)
                flight = self.under_way[turn] = Flight()
                return flight, None
            signal = self._runtime.new_signal()
            flight.waiting.append(signal)
            return flight, signal

    def _leave(self, turn: Turn, flight: Flight, signal: Signal | None) -> None:
        """Let the next one go on, or just give up one's place if one has not been let through yet."""
        with self._lock:
            if signal is not None and signal in flight.waiting:
                flight.waiting.remove(signal)
                return
            following = flight.waiting.popleft() if flight.waiting else None
            ended = following is None or flight.failure is not None  # later callers do not share the error
            if ended and self.under_way.get(turn) is flight:
                del self.under_way[turn]
        if following is not None:
            following.set()


class Once:
    """Work that the first caller does, once. Those who wait share its failure; later ones try again."""

    def __init__(self, runtime: Runtime, work: Callable[[], Awaitable[None]]) -> None:
        self._work = work
        self._flights = SingleFlight(runtime, ZAELimiterError)
        self.done = False

    async def finish(self, deadline: Deadline | None = None) -> None:
        """Return when the work is done. The caller that does it has no deadline; others wait until ``deadline``."""
        if not self.done:
            late = "The stack is still being deployed; try again later."
            await self._flights.run(None, lambda: self.done or None, self._do, deadline, late)

    async def _do(self) -> bool:
        await self._work()
        self.done = True
        return True
