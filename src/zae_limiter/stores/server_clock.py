"""The clock of a store that tells its time in its answers.

An answer to a request sent at ``s`` and received at ``r`` by the host's clock says that the service's clock was within
``[e, l)`` at some instant of ``[s, r]``. So the offset, service minus host, lies in ``[e - r - 1, l - s]``; the ``- 1``
is the host's own rounding. These intervals are intersected. They widen with time, because clocks drift; when one does
not meet the others a clock was stepped, and it starts afresh.

A host whose own clock is possible (0 lies inside) keeps it: hosts in step with NTP agree better with each other than
any estimate. A host that is off by less than a second moves to the nearest possible offset, one that is further off
trusts nothing of its own and takes the middle.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from ..clock import Clock
from ..logs import CLOCK_SKEWED, log_event

SKEW_MS = 1000
"""From here on a host's clock counts as wrong."""

_MS_PER_DRIFT = 5_000
"""Every 5 s the interval widens by 1 ms on each side: 200 ppm."""


class HostClock:
    """The host's wall clock as it was at the start, moved on by the monotonic one: a step of the host's is not seen."""

    __slots__ = ("start_ns",)

    def __init__(self) -> None:
        self.start_ns = time.time_ns() - time.monotonic_ns()

    def now_ms(self) -> int:
        """Return the present instant."""
        return (self.start_ns + time.monotonic_ns()) // 1_000_000


class Interval(NamedTuple):
    """The possible offsets, in ms, as of the host's instant ``at_ms``."""

    low: int
    high: int
    at_ms: int

    def widen(self, now_ms: int) -> Interval:
        """Return it wider by the drift until ``now_ms``; ``at_ms`` moves by whole milliseconds of drift only."""
        drift = max(0, now_ms - self.at_ms) // _MS_PER_DRIFT
        return Interval(self.low - drift, self.high + drift, self.at_ms + drift * _MS_PER_DRIFT)

    def meet(self, other: Interval) -> Interval | None:
        """Return what both allow, or None."""
        low, high = max(self.low, other.low), min(self.high, other.high)
        return Interval(low, high, self.at_ms) if low <= high else None


class ServerClock:
    """The service's clock: all clients decide by it, however wrong their hosts are.

    It never steps back by less than a second: it stalls. It does step back when it learns that the host was further
    ahead, which is before the first decision, as that follows a read.
    """

    def __init__(self, service: str, host_clock: Clock | None = None, backend: str | None = None) -> None:
        self._service = service
        self._backend = backend or service.lower()
        self.host: Clock = host_clock or HostClock()
        self.interval: Interval | None = None
        self.offset_ms = 0
        """Add it to the host's time to get the service's."""
        self._last_ms = 0
        self._warned = False

    def now_ms(self) -> int:
        """Return the present instant."""
        host = self.host  # its own clock costs no further call
        host_ms = (host.start_ns + time.monotonic_ns()) // 1_000_000 if type(host) is HostClock else host.now_ms()
        now_ms = host_ms + self.offset_ms
        if 0 < self._last_ms - now_ms < SKEW_MS:
            return self._last_ms
        self._last_ms = now_ms
        return now_ms

    @property
    def skew_ms(self) -> int:
        """Return how far the host is ahead of the service."""
        return -self.offset_ms

    def learn(self, earliest_ms: int, latest_ms: int, sent_ms: int, received_ms: int) -> None:
        """Learn the service's clock: it was within the first two at some instant of the host's within the last two."""
        low, high = earliest_ms - received_ms - 1, latest_ms - sent_ms
        known = self.interval
        if known is not None and low <= known[0] and known[1] <= high and received_ms - known[2] < _MS_PER_DRIFT:
            return  # nothing new
        seen = Interval(low, high, received_ms)
        self.interval = seen if known is None else known.widen(received_ms).meet(seen) or seen
        self.offset_ms = _estimate(self.interval)
        if abs(self.offset_ms) >= SKEW_MS and not self._warned:
            self._warned = True
            skew_ms, whose = self.skew_ms, f"{self._service}'s"
            message = "The clock of this host is %+.1f s off %s; decisions follow %s."
            log_event(
                CLOCK_SKEWED, message, skew_ms / 1000, whose, whose, zae_backend=self._backend, zae_skew_ms=skew_ms
            )


def _estimate(interval: Interval) -> int:
    """Return the offset to use: the nearest to 0 that is possible, or the middle of what is possible if it is far.

    A host that is not far off moves only as far as it must: the middle could be worse.
    """
    low, high, _ = interval
    nearest = min(max(0, low), high)
    return nearest if abs(nearest) < SKEW_MS else (low + high) // 2
