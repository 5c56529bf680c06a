"""Work that must be done once before anything else, by whoever comes first."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from ..core.errors import RateLimiterUnavailable, ZAELimiterError
from ..forks import protect

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ..runtime.deadline import Deadline
    from ..runtime.port import Gate, Runtime


class _Round:
    """One attempt in one event loop, and those who wait for its end."""

    def __init__(self) -> None:
        self.waiting: list[Gate] = []
        self.failure: ZAELimiterError | None = None


class Once:
    """Work that the first caller does while others wait. They share its failure; later callers try again.

    Only callers of one event loop wait for each other. Another loop does the work too, as another process would, so
    that nobody depends on a loop that may be stuck or dead.
    """

    def __init__(self, runtime: Runtime, work: Callable[[], Awaitable[None]]) -> None:
        self._runtime = runtime
        self._work = work
        self._lock = threading.RLock()  # what a dead loop leaves is cleared away at any moment, also under the lock
        self._rounds: dict[object, _Round] = {}
        self.done = False
        protect(self._lock)

    async def finish(self, deadline: Deadline | None = None) -> None:
        """Return when the work is done. Whoever does it has no deadline; the others wait until ``deadline``."""
        home = self._runtime.scope()
        while not self.done:
            gate = self._runtime.gate()
            ours, leads = self._join(home, gate)
            if leads:
                await self._lead(home, ours)
            elif not await gate.wait(None if deadline is None else deadline.left()):
                raise RateLimiterUnavailable("The stack is still being deployed; try again later.")
            elif ours.failure is not None:
                raise ours.failure

    def _join(self, home: object, gate: Gate) -> tuple[_Round, bool]:
        with self._lock:
            ours = self._rounds.get(home)
            if ours is None:
                ours = self._rounds[home] = _Round()
                return ours, True
            ours.waiting.append(gate)
            return ours, False

    async def _lead(self, home: object, ours: _Round) -> None:
        try:
            await self._work()
            self.done = True
        except ZAELimiterError as error:
            ours.failure = error
            raise
        finally:
            with self._lock:
                self._rounds.pop(home, None)
            for gate in ours.waiting:
                gate.open()
