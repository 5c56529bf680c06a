"""Processes whose callers wait: ``python -m tests.support.waiting_clients URL SECONDS HOLD CALLERS ...``.

Each process has as many tasks as ``CALLERS`` says. A task waits for what the limit has, holds it for ``HOLD`` seconds
and comes again, for ``SECONDS`` after the input has ended. A process prints ``ready``, and at the end one line for each
grant: its number, and from when to when it was held, by the monotonic clock that all processes share.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time

from tests.support import deadlines
from zae_limiter import RateLimiter, SyncRateLimiter

WHOSE = ("key", "gpt-4")
MAX_WAIT = 60


def say(what: str) -> None:
    """Write a line in one piece: the processes share the output."""
    os.write(1, f"{what}\n".encode())


async def call(limiter: RateLimiter, end: float, hold: float, held: list[tuple[int, int]]) -> None:
    """Wait and hold until the end."""
    while time.monotonic() < end:
        async with limiter.acquire(*WHOSE, {}, max_wait=MAX_WAIT):
            begun = time.monotonic_ns()
            try:
                await asyncio.sleep(hold)
            finally:  # at the end it is cancelled
                held.append((begun, time.monotonic_ns()))


async def run(number: int, url: str, seconds: float, hold: float, callers: int) -> None:
    """Do what one process does. Callers that wait at the end are sent away."""
    held: list[tuple[int, int]] = []
    async with RateLimiter(url, timeout=deadlines.PATIENCE) as limiter:
        await limiter.available(*WHOSE)
        say("ready")
        await asyncio.to_thread(sys.stdin.read)
        end = time.monotonic() + seconds
        tasks = [asyncio.create_task(call(limiter, end, hold, held)) for _ in range(callers)]
        await asyncio.wait(tasks, timeout=seconds)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for begun, ended in held:
        say(f"{number} {begun} {ended}")


def main(url: str, seconds: str, hold: str, *callers: str) -> None:
    """Fork the processes, and wait for them."""
    deadlines.lengthen()
    with SyncRateLimiter(url) as limiter:
        limiter.available(*WHOSE)  # it loads what all of them need
    children = []
    for number, count in enumerate(callers):
        child = os.fork()
        if child == 0:
            asyncio.run(run(number, url, float(seconds), float(hold), int(count)))
            os._exit(0)
        children.append(child)
    sys.exit(any(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))


if __name__ == "__main__":
    main(*sys.argv[1:])
