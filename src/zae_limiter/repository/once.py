"""Something that has to be done once, before anything else, by whoever comes first."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from ..core.errors import ZAELimiterError
from ..forks import protect

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ..runtime.port import Gate, Runtime


class Once:
    """Work that the first caller does while the others wait. Its failure is theirs too; later ones try again."""

    def __init__(self, runtime: Runtime, work: Callable[[], Awaitable[None]]) -> None:
        self._runtime = runtime
        self._work = work
        self._lock = threading.Lock()
        self._waiting: list[Gate] | None = None
        self._failure: ZAELimiterError | None = None
        self.done = False
        protect(self)

    async def finished(self) -> None:
        """Return when the work is done."""
        while not self.done:
            gate = self._runtime.gate()
            if self._leads(gate):
                await self._lead()
            else:
                await gate.wait()
                if self._failure is not None:
                    raise self._failure

    def _leads(self, gate: Gate) -> bool:
        with self._lock:
            if self._waiting is None:
                self._waiting, self._failure = [], None
                return True
            self._waiting.append(gate)
            return False

    async def _lead(self) -> None:
        try:
            await self._work()
            self.done = True
        except ZAELimiterError as error:
            self._failure = error
            raise
        finally:
            with self._lock:
                gates, self._waiting = self._waiting or [], None
            for gate in gates:
                gate.open()
