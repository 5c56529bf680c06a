"""A tally: counts that somebody else keeps, added up so that the sum never falls.

Stores and caches count for themselves. A source counts from the moment it joins; several who share it count it once;
and when the last of them leaves, what it had counted by then stays in the sum.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

from ..forks import protect

Attributes: TypeAlias = tuple[tuple[str, str], ...]


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
