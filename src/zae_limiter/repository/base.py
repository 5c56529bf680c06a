"""The base of all groups of operations."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..runtime.deadline import Deadline
    from .backend import Backend


MAX_PAGE = 10_000
"""Most records of one page."""

MAX_COMMIT = 100
"""Most writes of one commit: what every store takes."""


class Operations:
    """A group of operations over one backend. Repository and limiter are composed of these."""

    _backend: Backend

    def _deadline(self) -> Deadline:
        """Return the deadline of a call that starts now."""
        return self._backend.deadline()

    def _step_deadline(self) -> Deadline:
        """Return the deadline of a call over any number of records: each page or step has the full time."""
        return self._deadline().for_each_step()

    async def _begin(self) -> tuple[Deadline, str]:
        """Return the deadline of a call that starts now, and the id of the namespace."""
        deadline = self._deadline()
        return deadline, await self._backend.ns(deadline)

    async def _begin_steps(self) -> tuple[Deadline, str]:
        """Return the deadline of a call over any number of records, and the id of the namespace."""
        deadline = self._step_deadline()
        return deadline, await self._backend.ns(deadline)
