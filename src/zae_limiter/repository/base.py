"""What all groups of operations share."""

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
    """A group of use cases over one backend; repository and limiter are made of these."""

    _backend: Backend

    def _deadline(self) -> Deadline:
        """The deadline of a call that begins now."""
        return self._backend.deadline()

    def _step_deadline(self) -> Deadline:
        """The deadline of a call that lists or deletes any number of records: each page or step has its time."""
        return self._deadline().for_each_step()
