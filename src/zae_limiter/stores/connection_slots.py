"""Connection slots: the right to use one of a bounded number of connections."""

from __future__ import annotations

import asyncio
from collections import deque
from queue import Empty, SimpleQueue
from typing import Protocol

_MOST = 10_000
"""No process has more connections than that."""


class ConnectionSlots(Protocol):
    """The right to use one of the allowed connections."""

    def take_now(self) -> bool:
        """Take a slot if one is free."""
        ...

    async def take(self, timeout: float) -> None:
        """Wait for a slot; raise `TimeoutError` if none becomes free."""
        ...

    def give_back(self) -> None:
        """Let the next one in."""
        ...


class ThreadSlots:
    """Slots shared by threads."""

    def __init__(self, count: int) -> None:
        self._free: SimpleQueue[None] = SimpleQueue()  # a tenth of the time of a semaphore
        for _ in range(min(count, _MOST)):
            self._free.put(None)

    def take_now(self) -> bool:
        """Take a slot if one is free."""
        try:
            self._free.get_nowait()
        except Empty:
            return False
        return True

    async def take(self, timeout: float) -> None:
        """Block the thread until one is free."""
        try:
            self._free.get(timeout=max(0.0, timeout))
        except Empty:
            raise TimeoutError from None

    def give_back(self) -> None:
        """Let the next one in."""
        self._free.put(None)


class LoopSlots:
    """Slots shared by the tasks of one loop. It uses no `asyncio.timeout`, which would cancel the task that waits."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._queue: deque[asyncio.Future[None]] = deque()

    def take_now(self) -> bool:
        """Take a slot if one is free."""
        if self._free <= 0:
            return False
        self._free -= 1
        return True

    async def take(self, timeout: float) -> None:
        """Suspend the task until one is free."""
        if self.take_now():
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            await asyncio.wait((turn,), timeout=timeout)
        except BaseException:
            self._withdraw(turn)
            raise
        if not turn.done():
            self._withdraw(turn)
            raise TimeoutError

    def give_back(self) -> None:
        """Hand the slot to the next one in line."""
        if self._queue:
            self._queue.popleft().set_result(None)
        else:
            self._free += 1

    def _withdraw(self, turn: asyncio.Future[None]) -> None:
        """Leave the line; a slot that was handed over meanwhile goes to the next one."""
        if turn.done():
            self.give_back()
        else:
            self._queue.remove(turn)
