"""Connections kept for the next call, a bounded number of them: a pool per event loop, or one for all threads."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from ..forks import after_fork, protect
from .outcomes import NoneFree

IDLE_SECONDS = 20.0
"""Shorter than any service keeps an idle connection, so that a request seldom meets one that is closing."""

_MOST = 10_000
"""No process has more connections than that."""

_FORSAKEN: list[object] = []
"""Loops and pools of the process that forked this one: see `Pools._forsake`."""


class ThreadSlots:
    """Slots shared by threads. Each is the right to use one connection ``where`` an error says."""

    def __init__(self, count: int, where: str = "") -> None:
        self._free: SimpleQueue[None] = SimpleQueue()  # a tenth of the time of a semaphore
        self._none_free = partial(NoneFree, count, where=where)
        self.take_now = self._free.get_nowait
        """Take a slot; raise `Empty` if none is free."""
        self.give_back: Callable[[], None] = partial(self._free.put, None)
        for _ in range(min(count, _MOST)):
            self.give_back()

    async def take(self, timeout: float) -> None:
        """Block the thread until one is free. Raise `NoneFree` if none is within ``timeout`` seconds."""
        try:
            self._free.get(timeout=max(0.0, timeout))
        except Empty:
            raise self._none_free(timeout) from None


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

    def fail_all(self, error: BaseException) -> None:
        """Raise an error in everybody who waits."""
        while self.turns:
            turn = self.turns.popleft()
            turn.set_exception(error)
            turn.exception()  # seen, should nobody wait any more


class LoopSlots:
    """Slots shared by the tasks of one loop."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._none_free = partial(NoneFree, count)
        self._line = TaskLine()

    def take_now(self) -> None:
        """Take a slot; raise `Empty` if none is free."""
        if self._free <= 0:
            raise Empty
        self._free -= 1

    async def take(self, timeout: float) -> None:
        """Suspend the task until one is free. Raise `NoneFree` if none is within ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        while self._free <= 0:
            if not await self._line.wait(deadline - time.monotonic()):
                raise self._none_free(timeout)
        self._free -= 1

    def give_back(self) -> None:
        """Let the next one in."""
        self._free += 1
        self._line.wake()


ConnectionSlots: TypeAlias = ThreadSlots | LoopSlots


class Kept(Protocol):
    """A connection that can be kept for its next use."""

    idle_since: float

    fresh_seconds: float
    """How long after its last use it is taken to be alive without a check."""

    def usable(self) -> bool:
        """Return whether the other side has not closed it."""
        ...

    def close(self) -> object:
        """Close it, without waiting."""
        ...


class Closable(Protocol):
    """The connections of one event loop, or of all threads."""

    def close(self) -> None:
        """Close the idle connections, and those in use when they are done."""
        ...


T = TypeVar("T")
OpenLink: TypeAlias = "Callable[..., Coroutine[Any, Any, T]]"
"""Opens a connection, until the instant that it may be given."""
C = TypeVar("C", bound=Kept)
P = TypeVar("P", bound=Closable)


class Pool(Generic[C]):
    """Idle connections, each used by one call at a time, and the slots for all of them."""

    def __init__(self, slots: ConnectionSlots) -> None:
        self.slots = slots
        self._idle: list[C] = []
        self._over = False

    def reuse(self, connection: C | None = None) -> C | None:
        """Return the connection that was used last, or None; close those that are too old or not usable.

        The others get old and are closed if one is enough. ``connection``: one that was taken out already.
        """
        try:
            connection = connection or self._idle.pop()
            while not _is_alive(connection):
                connection.close()
                connection = self._idle.pop()
        except IndexError:  # none is left: another thread may have been faster
            return None
        return connection

    def keep(self, connection: C) -> None:
        """Keep a connection for its next use, or close it if the pool is closed."""
        connection.idle_since = time.monotonic()
        self._idle.append(connection)
        if self._over:
            self.close()

    def close(self) -> None:
        """Close the idle connections, and those in use when they are kept again."""
        self._over = True
        with contextlib.suppress(IndexError):
            while True:
                self._idle.pop().close()


def _is_alive(connection: Kept) -> bool:
    idle = time.monotonic() - connection.idle_since
    return idle < connection.fresh_seconds or (idle < IDLE_SECONDS and connection.usable())


class Pools(Generic[P]):
    """The pools of one client; a fork starts with none. ``make`` returns an empty pool.

    Connections belong to the loop that opened them if they are ``per_loop``, else to all threads.
    """

    def __init__(self, per_loop: bool, make: Callable[[], P]) -> None:
        self.shared: P | None = None
        """The pool of all threads, once it is there."""
        self._per_loop = per_loop
        self._make = make
        self._pools: weakref.WeakKeyDictionary[Any, P] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()
        protect(self._lock)
        after_fork(self._forsake)

    def here(self) -> P:
        """Return the pool of the running loop, or of all threads."""
        home = asyncio.get_running_loop() if self._per_loop else Pools
        return self._pools.get(home) or self._new(home)

    def close(self) -> None:
        """Close every idle connection; one in use is closed when it is done."""
        with self._lock:
            pools = list(self._pools.values())
            self._pools.clear()
            self.shared = None
        for pool in pools:
            pool.close()

    def _forsake(self) -> None:
        """In a fork: the parent's connections carry the parent's requests, and its loops share their selectors with us.

        What a loop knows of is not even closed, nor collected: the parent would never hear of it again.
        """
        loops = [home for home in self._pools if hasattr(home, "is_closed")]
        _FORSAKEN.extend((home, self._pools.pop(home)) for home in loops)
        self.close()

    def _new(self, home: object) -> P:
        with self._lock:
            for other, pool in list(self._pools.items()):
                if getattr(other, "is_closed", bool)():  # what waits in a pool keeps its loop: it does not go by itself
                    del self._pools[other]
                    pool.close()
            if home not in self._pools:
                self._pools[home] = self._make()
            if not self._per_loop:
                self.shared = self._pools[home]
            return self._pools[home]
