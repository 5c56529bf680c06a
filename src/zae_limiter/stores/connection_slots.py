"""Connection slots: the right to use one of a bounded number of connections."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from typing import TypeAlias

_MOST = 10_000
"""No process has more connections than that."""


class ThreadSlots:
    """Slots shared by threads. Each is the right to use one connection."""

    def __init__(self, count: int) -> None:
        self._free: SimpleQueue[None] = SimpleQueue()  # a tenth of the time of a semaphore
        self.give_back: Callable[[], None] = partial(self._free.put, None)
        for _ in range(min(count, _MOST)):
            self.give_back()

    def take_now(self) -> bool:
        """Take a slot if one is free."""
        try:
            self._free.get_nowait()
        except Empty:
            return False
        return True

    async def take(self, timeout: float) -> None:
        """Block the thread until one is free. Raise `TimeoutError` if none is within ``timeout`` seconds."""
        try:
            self._free.get(timeout=max(0.0, timeout))
        except Empty:
            raise TimeoutError from None


class TaskLine:
    """Tasks of one loop that wait, first come, first served.

    It uses no `asyncio.timeout`, which would cancel the task that waits.
    """

    def __init__(self) -> None:
        self.turns: deque[asyncio.Future[None]] = deque()

    async def wait(self, timeout: float) -> bool:
        """Suspend the task until it is woken; return False if the time is up before."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.turns.append(turn)
        try:
            await asyncio.wait((turn,), timeout=timeout)
        except BaseException:
            if turn.done():
                self.wake()
            else:
                self.turns.remove(turn)
            raise
        if not turn.done():
            self.turns.remove(turn)
            return False
        turn.result()
        return True

    def wake(self, count: int = 1) -> None:
        """Let the first ones look again."""
        for _ in range(min(count, len(self.turns))):
            self.turns.popleft().set_result(None)

    def wake_all(self, error: BaseException | None = None) -> None:
        """Let everybody look again, or raise an error in all of them."""
        while self.turns:
            turn = self.turns.popleft()
            if error is None:
                turn.set_result(None)
            else:
                turn.set_exception(error)
                turn.exception()  # seen, should nobody wait any more


class LoopSlots:
    """Slots shared by the tasks of one loop."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._line = TaskLine()

    def take_now(self) -> bool:
        """Take a slot if one is free."""
        if self._free <= 0:
            return False
        self._free -= 1
        return True

    async def take(self, timeout: float) -> None:
        """Suspend the task until one is free. Raise `TimeoutError` if none is within ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        while not self.take_now():
            if not await self._line.wait(deadline - time.monotonic()):
                raise TimeoutError

    def give_back(self) -> None:
        """Let the next one in."""
        self._free += 1
        self._line.wake()


ConnectionSlots: TypeAlias = ThreadSlots | LoopSlots
