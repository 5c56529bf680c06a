"""Clocks: the one place where time enters."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Anything that tells the time in milliseconds since the epoch.

    A clock may also have ``async def pause(seconds)``; waiting then goes through it (the manual clock of the
    testing kit jumps instead of sleeping).
    """

    def now_ms(self) -> int:
        """The present instant."""
        ...


class SystemClock:
    """The host's wall clock, shared by all processes of a machine."""

    __slots__ = ()

    def now_ms(self) -> int:
        """The present instant."""
        return time.time_ns() // 1_000_000
