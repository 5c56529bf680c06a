"""Both ways of running a coroutine from a test that is itself blocking code."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from zae_limiter.runtime import blocking

T = TypeVar("T")

MODES = ("async", "blocking")


class Mode:
    """Async or blocking: one event loop that lasts, or none."""

    def __init__(self, name: str) -> None:
        self.mode = name
        self.blocking = name == "blocking"
        self._runner = None if self.blocking else asyncio.Runner()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end."""
        return blocking.run(work) if self._runner is None else self._runner.run(work)

    def close(self) -> None:
        """Close the loop."""
        if self._runner is not None:
            self._runner.close()
