"""Deadlines: how long a call of the library may take, with everything that it asks of the store."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from ..clock import Clock
from ..core.errors import RateLimiterUnavailable


class Deadline(NamedTuple):
    """The instant at which a call must be over: made once, when the call begins, and passed down.

    Every store call gets `left` as its ``timeout``, so that all of them together, and the waiting between them, take no
    more than ``seconds``. An error names ``total``, the seconds of the whole call.
    """

    ends: float
    seconds: float
    now: Callable[[], float]
    total: float

    @classmethod
    def begin(cls, seconds: float, now: Callable[[], float] = time.monotonic, total: float | None = None) -> Deadline:
        """Return a deadline that begins now; ``total`` is given if it is a part of a longer one."""
        return cls(now() + seconds, seconds, now, total or seconds)

    def left(self) -> float:
        """Return the seconds that are left; raise `RateLimiterUnavailable` if there are none."""
        left = self.ends - self.now()
        if left <= 0:
            raise RateLimiterUnavailable(f"No decision within {self.total:g} s.")
        return left

    @property
    def elapsed(self) -> float:
        return self.seconds - (self.ends - self.now())

    def part(self, share: float) -> Deadline:
        """Return a deadline from now on that uses only a share of what is left."""
        return Deadline.begin(self.left() * share, self.now, self.total)

    def renew(self, most: float) -> Deadline:
        """Return a deadline of as many seconds from now on, but no later than ``most`` seconds after this one began."""
        return Deadline.begin(min(self.seconds, most - self.elapsed), self.now, self.total)

    def for_each_step(self) -> StepDeadline:
        """Return the deadline of a call that takes any number of steps: each step has as many seconds."""
        return StepDeadline(*self)


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
