"""Deadlines: until when a call of the library may take, over all that it asks of the store."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ..core.errors import RateLimiterUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..clock import Clock


class Deadline:
    """The instant at which a call must be over. It is made once, when the call begins, and passed down.

    Every call of the store gets `left` as its ``timeout``, so that all of them together, and the waiting between them,
    take no more than ``seconds``.
    """

    __slots__ = ("_now", "_total", "ends", "seconds")

    def __init__(self, seconds: float, now: Callable[[], float] = time.monotonic, total: float | None = None) -> None:
        """Begin now; ``total`` are the seconds that an error names, if the deadline is a part of a longer one."""
        self.ends = now() + seconds
        self.seconds = seconds
        self._now = now
        self._total = total or seconds

    def left(self) -> float:
        """Return the seconds that are left; raise `RateLimiterUnavailable` if there are none."""
        left = self.ends - self._now()
        if left <= 0:
            raise RateLimiterUnavailable(f"No decision within {self._total:g} s.")
        return left

    @property
    def elapsed(self) -> float:
        """Return how many seconds have gone by since the call began."""
        return self.seconds - (self.ends - self._now())

    def part(self, share: float) -> Deadline:
        """Return a deadline from now on that uses only a share of what is left."""
        return Deadline(self.left() * share, self._now, self._total)

    def renew(self, most: float) -> Deadline:
        """Return a deadline of as many seconds from now on, but no later than ``most`` seconds after this one began."""
        return Deadline(min(self.seconds, most - self.elapsed), self._now, self._total)

    def for_each_step(self) -> StepDeadline:
        """Return the deadline of a call that takes any number of steps: each step has as many seconds."""
        return StepDeadline(self.seconds, self._now, self._total)


class StepDeadline(Deadline):
    """The deadline of each step of a call: every call of the store has all of ``seconds``, however many there are."""

    __slots__ = ()

    def left(self) -> float:
        """Return the seconds that the next step has."""
        return self.seconds


def stopwatch(clock: Clock) -> Callable[[], float]:
    """Return what deadlines are measured by, in seconds.

    That is the monotonic clock of this host, which no one sets. A clock that is waited on (it has ``pause``) also
    measures: a test that moves it moves the deadlines too.
    """
    if getattr(clock, "pause", None) is None:
        return time.monotonic
    return lambda: clock.now_ms() / 1000
