"""What measured limiters hold at the moment, added up: slots, and tokens that were drawn in advance."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Generic, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from ..forks import protect
from .tally import Attributes

S = TypeVar("S")
Reader: TypeAlias = "Callable[[S], Iterator[tuple[Attributes, int]]]"
"""Yields how much a source holds, by attributes."""


class Held(Generic[S]):
    """Reads what sources hold. A line that was reported once always is: 0 says that nothing is held any more."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._sources: WeakKeyDictionary[S, Reader[S]] = WeakKeyDictionary()
        self._told: dict[Attributes, int] = {}
        protect(self._lock)

    def join(self, source: S, read: Reader[S]) -> None:
        """Read what a source holds from now on, as long as it exists."""
        with self._lock:
            self._sources[source] = read

    def leave(self, source: S) -> None:
        """Read it no more."""
        with self._lock:
            self._sources.pop(source, None)

    def totals(self) -> dict[Attributes, int]:
        """Return how much is held by attributes, 0 where something has been held."""
        with self._lock:
            held: Counter[Attributes] = Counter()
            for source, read in tuple(self._sources.items()):
                for attributes, count in read(source):
                    held[attributes] += count
            self._told = dict.fromkeys(self._told, 0) | +held
            return self._told
