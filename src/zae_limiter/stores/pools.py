"""Connections kept for the next call: a pool per event loop, or one for all threads."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from ..forks import protect

if TYPE_CHECKING:
    from collections.abc import Callable

    from .connection_slots import ConnectionSlots


IDLE_SECONDS = 20.0
"""Shorter than any service keeps an idle connection, so that a request seldom meets one that is closing."""


_FORSAKEN: list[object] = []
"""Loops and pools of the process that forked this one: see `Pools._forsake_loops`."""


class Kept(Protocol):
    """A connection that can wait for its next use."""

    idle_since: float

    def usable(self) -> bool:
        """Whether the other side is still there."""
        ...

    def close(self) -> object:
        """Let go of it, without waiting."""
        ...


class Homes(Protocol):
    """What tells where connections belong."""

    def home(self) -> object:
        """What they belong to: the running loop, or the one home of all threads."""
        ...

    def on_scope_end(self, close: Callable[[], None]) -> object:
        """Have ``close`` called when the present home ends, if it does; as long as the answer is kept."""
        ...


class Closable(Protocol):
    """The connections of one home."""

    ending: object
    """What has it closed when the home ends."""

    def close(self) -> None:
        """Close what is idle, and what is in use when it is done."""
        ...


C = TypeVar("C", bound=Kept)
P = TypeVar("P", bound=Closable)


class Pool(Generic[C]):
    """The idle connections of one home, each used by one call at a time, and the slots for all of them."""

    def __init__(self, slots: ConnectionSlots) -> None:
        self.slots = slots
        self.ending: object = None
        self._idle: list[C] = []
        self._over = False

    def reuse(self) -> C | None:
        """The connection used last, if it is still fresh: the others then get old and go."""
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return None
            if time.monotonic() - connection.idle_since < IDLE_SECONDS and connection.usable():
                return connection
            connection.close()

    def keep(self, connection: C) -> None:
        """Take a connection back, or close it where nobody would use it again."""
        connection.idle_since = time.monotonic()
        self._idle.append(connection)
        if self._over:
            self.close()

    def close(self) -> None:
        """Close what is idle, and what is in use when it comes back."""
        self._over = True
        with contextlib.suppress(IndexError):
            while True:
                self._idle.pop().close()


class Pools(Generic[P]):
    """The pools of one client; a fork starts with none. ``make`` returns an empty pool for the present home."""

    def __init__(self, homes: Homes, make: Callable[[], P]) -> None:
        self._homes = homes
        self._make = make
        self._pools: weakref.WeakKeyDictionary[Any, P] = weakref.WeakKeyDictionary()
        self._pid = os.getpid()
        self._lock = threading.Lock()
        protect(self._lock)

    def here(self) -> P:
        """The pool of the present home."""
        if self._pid != os.getpid():
            self.close()
        home = self._homes.home()
        return self._pools.get(home) or self._new(home)

    def close(self) -> None:
        """Close every idle connection; one in use is closed when it is done."""
        with self._lock:
            if self._pid != os.getpid():
                self._forsake_loops()
            pools = list(self._pools.values())
            self._pools.clear()
        for pool in pools:
            pool.close()

    def _forsake_loops(self) -> None:
        """In a fork: the parent's connections carry the parent's requests, and its loops share their selectors with us.

        What a loop knows of is not even closed, nor collected: the parent would never hear of it again.
        """
        self._pid = os.getpid()
        loops = [home for home in self._pools if hasattr(home, "is_closed")]
        _FORSAKEN.extend((home, self._pools.pop(home)) for home in loops)

    def _new(self, home: object) -> P:
        with self._lock:
            for other, pool in list(self._pools.items()):
                if getattr(other, "is_closed", bool)():  # what waits in a pool keeps its loop: it does not go by itself
                    del self._pools[other]
                    pool.close()
            pool = self._pools.setdefault(home, self._make())
            pool.ending = pool.ending or self._homes.on_scope_end(pool.close)
            return pool
