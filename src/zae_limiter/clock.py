"""Clocks: the one place where time enters."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A source of the present time.

    A clock may also have ``async def pause(seconds)``: waiting then goes through it. The manual clock of the testing
    kit moves on instead of sleeping.
    """

    def now_ms(self) -> int:
        """Return the present instant in milliseconds since the epoch."""


class SystemClock:
    """The host's wall clock, shared by all processes of a machine."""

    __slots__ = ()

    def now_ms(self) -> int:
        """Return the present instant in milliseconds since the epoch."""
        return time.time_ns() // 1_000_000
