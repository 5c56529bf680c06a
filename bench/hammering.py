"""Demand above a limit: each participant retries at once and notes when it was granted."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple


class Grant(NamedTuple):
    """The moments between which it was decided, by the clock that all processes of a machine share."""

    asked_ns: int
    answered_ns: int


class Log(NamedTuple):
    """The answers to one participant."""

    grants: list[Grant]
    refused: int

    @staticmethod
    def of(plain: list[Any]) -> Log:
        """Back from JSON."""
        return Log([Grant(*each) for each in plain[0]], plain[1])


def merged(logs: list[Log]) -> Log:
    """Return the answers to all participants."""
    return Log([grant for log in logs for grant in log.grants], sum(log.refused for log in logs))


def hammer(take: Callable[[], bool], start_ns: int, until_ns: int) -> Log:
    """Ask from an instant until another."""
    grants, refused = [], 0
    time.sleep(max(0, start_ns - time.monotonic_ns()) / 1e9)
    while (asked := time.monotonic_ns()) < until_ns:
        if take():
            grants.append(Grant(asked, time.monotonic_ns()))
        else:
            refused += 1
    return Log(grants, refused)


async def hammer_async(take: Callable[[], Awaitable[bool]], start_ns: int, until_ns: int) -> Log:
    """The same in an event loop that has nothing else to do."""
    grants, refused = [], 0
    time.sleep(max(0, start_ns - time.monotonic_ns()) / 1e9)  # noqa: ASYNC251 - nobody else is in this loop
    while (asked := time.monotonic_ns()) < until_ns:
        if await take():
            grants.append(Grant(asked, time.monotonic_ns()))
        else:
            refused += 1
    return Log(grants, refused)
