"""A map that forgets: what a client remembers of keys is kept in maps of this kind, all of the same size."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from ..forks import protect

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

MAX_CACHED_KEYS = 131_072
"""Default number of keys a client remembers: 100,000 live keys and their parents."""
CACHED_KEYS_INSIDE = 10_000
"""The same for a store inside the process, where a forgotten key costs no call.

Each remembered key is work for the garbage collector, which stopped the process for 0.4 s when 131,072 were new."""


class BoundedMap(Generic[K, V]):
    """Values by key, at most ``max_entries`` of them: what was put in longest ago is forgotten first.

    Usable from any number of threads. Every operation takes the same time however many entries there are.
    """

    def __init__(self, max_entries: int) -> None:
        self._max_entries = max_entries
        self._lock = threading.RLock()  # the garbage collector may close a lease at any moment, also under the lock
        self._entries: OrderedDict[K, V] = OrderedDict()
        self.get: Callable[[K], V | None] = self._entries.get
        protect(self._lock)

    def put(self, key: K, value: V) -> None:
        """Remember a value, as the newest one."""
        with self._lock:
            entries = self._entries
            entries[key] = value
            entries.move_to_end(key)
            while len(entries) > self._max_entries:
                entries.popitem(last=False)

    def get_or_make(self, key: K, make: Callable[[], V]) -> V:
        """Return the value of a key as the newest one, or make one and remember it where there is none."""
        with self._lock:
            entries = self._entries
            found = entries.get(key)
            if found is not None:
                entries.move_to_end(key)
            else:
                found = entries[key] = make()
                while len(entries) > self._max_entries:
                    entries.popitem(last=False)
        return found

    def drop(self, key: K) -> None:
        """Forget a key."""
        with self._lock:
            self._entries.pop(key, None)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._entries.clear()

    def __len__(self) -> int:
        return len(self._entries)
