"""Turns: the right to use one of a bounded number of connections."""

from __future__ import annotations

import asyncio
import contextlib
from queue import Empty, SimpleQueue
from typing import Protocol

_MOST = 10_000
"""No process has more connections than that."""


class Turns(Protocol):
    """The right to use one of the allowed connections."""

    def take_now(self) -> bool:
        """Take a turn if there is one."""
        ...

    async def take(self, timeout: float) -> None:
        """Wait for a turn; `TimeoutError` if none comes."""
        ...

    def give_back(self) -> None:
        """Let the next one in."""
        ...


class ThreadTurns:
    """Turns shared by threads."""

    def __init__(self, count: int) -> None:
        self._free: SimpleQueue[None] = SimpleQueue()  # a tenth of the time of a semaphore
        for _ in range(min(count, _MOST)):
            self._free.put(None)

    def take_now(self) -> bool:
        """Take a turn if there is one."""
        try:
            self._free.get_nowait()
        except Empty:
            return False
        return True

    async def take(self, timeout: float) -> None:
        """Block the thread until there is one."""
        try:
            self._free.get(timeout=max(0.0, timeout))
        except Empty:
            raise TimeoutError from None

    def give_back(self) -> None:
        """Let the next one in."""
        self._free.put(None)


class LoopTurns:
    """Turns shared by the tasks of one loop."""

    def __init__(self, count: int) -> None:
        self._free = asyncio.Semaphore(count)

    def take_now(self) -> bool:
        """Take a turn if there is one."""
        if self._free.locked():
            return False
        with contextlib.suppress(StopIteration):
            self._free.acquire().send(None)  # it does not suspend
        return True

    async def take(self, timeout: float) -> None:
        """Suspend the task until there is one."""
        async with asyncio.timeout(timeout):
            await self._free.acquire()

    def give_back(self) -> None:
        """Let the next one in."""
        self._free.release()
