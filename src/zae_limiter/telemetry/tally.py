"""A tally: counts kept elsewhere, added up so that the sum never falls; and what is held at the moment.

Stores and caches count for themselves. A source counts from the moment it joins; several who share it count it once;
and when the last of them leaves, what it had counted by then stays in the sum.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from typing import Generic, NamedTuple, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from ..forks import protect

S = TypeVar("S")

Attributes: TypeAlias = tuple[tuple[str, str], ...]
Reader: TypeAlias = "Callable[[S], Iterator[tuple[Attributes, int]]]"
"""Yields how much a source holds, by attributes."""


class Series(NamedTuple):
    """One line of a metric."""

    metric: str
    attributes: Attributes


Counts: TypeAlias = "Mapping[Series, float]"


class Tally:
    """The sum over all sources, those that have left too."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._sources: dict[int, Callable[[], Counts]] = {}
        self._users: Counter[int] = Counter()
        self._past: Counter[Series] = Counter()
        """What those have counted that have left, less what the others had counted when they joined."""
        self._leaving: deque[int] = deque()
        protect(self._lock)

    def join(self, owner: object, read: Callable[[], Counts]) -> int:
        """Count what ``read`` tells from now on; ``owner`` says which source it is, and ``read`` keeps it alive."""
        with self._lock:
            self.drop_leaving()
            name = id(owner)
            if name not in self._sources:
                self._past.subtract(read())
                self._sources[name] = read
            self._users[name] += 1
            return name

    def leave(self, *names: int) -> None:
        """Count them no more. Takes no lock, so it may be called by the garbage collector at any moment."""
        self._leaving.extend(names)

    def drop_leaving(self) -> None:
        """Count those that leave up to now, and no further."""
        with self._lock:
            while self._leaving:
                name = self._leaving.popleft()
                self._users[name] -= 1
                if not self._users[name]:
                    del self._users[name]
                    self._past.update(self._sources.pop(name)())

    def totals(self, metric: str) -> dict[Attributes, float]:
        """Return the lines of a metric; one that has counted nothing yet is not there."""
        with self._lock:
            self.drop_leaving()
            sums = Counter(self._past)
            for read in self._sources.values():
                sums.update(read())
        return {series.attributes: count for series, count in sums.items() if series.metric == metric and count > 0}


class Held(Generic[S]):
    """Reads what sources hold at the moment, slots or tokens that were drawn in advance.

    A line that was reported once always is: 0 says that nothing is held any more.
    """

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
