"""Processes that hold slots: ``python -m tests.support.slot_clients URL SECONDS TTL HOLD:OFF_MS ...``.

Each takes a slot, holds it for ``HOLD`` seconds and takes the next, for ``SECONDS`` after the input has ended; those
that hold one for a second or longer begin at once. ``OFF_MS`` is by how much the clock of its host is off. Each writes
down what it does, in lines that begin with its process id: ``ready``, then ``+`` or ``-`` and the instant, by the
monotonic clock that all processes share. What it says last is ``done``, if nobody has killed it.
"""

from __future__ import annotations

import os
import sys
import time

from zae_limiter import Limit, RateLimitExceeded, SyncRateLimiter, SyncRepository
from zae_limiter.stores.opening import open_store

SLOTS = 5
WHOSE = ("key", "gpt-4")
LONG = 1.0


class HostClock:
    """The clock of a host, which is off."""

    def __init__(self, off_ms: int) -> None:
        self._off_ms = off_ms

    def now_ms(self) -> int:
        """What the host believes."""
        return time.time_ns() // 1_000_000 + self._off_ms


def limits(ttl: int) -> list[Limit]:
    """The limit of all processes."""
    return [Limit.concurrent("parallel", SLOTS, ttl=ttl)]


def say(what: str) -> None:
    """Write a line that is there even if the process is killed right after it."""
    os.write(1, f"{os.getpid()} {what}\n".encode())


def hold_slots(url: str, seconds: float, ttl: int, hold: float, off_ms: int) -> None:
    """Take and hold."""
    clock = HostClock(off_ms) if off_ms else None
    repository = SyncRepository(open_store(url, blocking=True, clock=clock))
    with SyncRateLimiter(repository, timeout=60) as limiter:
        limiter.available(*WHOSE, limits=limits(ttl))
        say("ready")
        if hold < LONG:
            sys.stdin.read()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                with limiter.acquire(*WHOSE, {}, limits=limits(ttl), max_wait=1) as lease:
                    say(f"+{time.monotonic_ns()}")
                    time.sleep(hold)
                    kept, ended = not lease.lost, time.monotonic_ns()
            except RateLimitExceeded:
                continue
            say(f"-{ended}" if kept else "lost")
    say("done")


def main(url: str, seconds: str, ttl: str, *clients: str) -> None:
    """Fork the clients, and wait for them."""
    with SyncRateLimiter(url, timeout=60) as limiter:
        limiter.available(*WHOSE, limits=limits(int(ttl)))  # it loads what all of them need
    children = []
    for client in clients:
        hold, off_ms = client.split(":")
        child = os.fork()
        if child == 0:
            hold_slots(url, float(seconds), int(ttl), float(hold), int(off_ms))
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
