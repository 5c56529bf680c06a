"""Turns: the right to use one of a bounded number of connections."""

from __future__ import annotations

import asyncio
import threading
from typing import Protocol


class Turns(Protocol):
    """The right to use one of the allowed connections."""

    async def take(self, timeout: float) -> None:
        """Wait for a turn; `TimeoutError` if none comes."""
        ...

    def give_back(self) -> None:
        """Let the next one in."""
        ...


class ThreadTurns:
    """Turns shared by threads."""

    def __init__(self, count: int) -> None:
        self._free = threading.BoundedSemaphore(count)

    async def take(self, timeout: float) -> None:
        """Block the thread until there is one."""
        if not self._free.acquire(blocking=False) and not self._free.acquire(timeout=max(0.0, timeout)):
            raise TimeoutError

    def give_back(self) -> None:
        """Let the next one in."""
        self._free.release()


class LoopTurns:
    """Turns shared by the tasks of one loop."""

    def __init__(self, count: int) -> None:
        self._free = asyncio.Semaphore(count)

    async def take(self, timeout: float) -> None:
        """Suspend the task until there is one."""
        if not self._free.locked():
            await self._free.acquire()  # does not suspend
            return
        async with asyncio.timeout(timeout):
            await self._free.acquire()

    def give_back(self) -> None:
        """Let the next one in."""
        self._free.release()
