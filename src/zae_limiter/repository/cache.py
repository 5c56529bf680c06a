"""The config cache: recently read config and entity records, absent ones too."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ..core.config import Resolved
from ..core.values import OnUnavailable
from ..forks import protect
from ..records.algebra import Image, Key
from ..records.keys import CONFIG
from ..stores.bounded import MAX_CACHED_KEYS, BoundedMap

if TYPE_CHECKING:
    from ..core.reports import CacheStats


Known: TypeAlias = tuple[Mapping[str, Image | None], int]
"""What is known of a partition: records by sort key (None: there is none), and the instant the oldest was read.

A plain tuple, which the garbage collector need not look at again and again.
"""


class Defaults(NamedTuple):
    """What is in force for every entity that has nothing of its own, by records that were read at ``read_ms``."""

    resolved: Resolved
    on_unavailable: OnUnavailable | None
    read_ms: int


class ConfigCache:
    """Records by partition with the instant they were read; bounded.

    What the records of a resource and of the system come to is kept by resource: one object for all entities under it.

    ``generation`` changes whenever something is dropped, so that what was derived from the cache can tell
    that it is out of date; an answer from something derived counts in ``hits`` too.
    """

    def __init__(self, ttl_seconds: float, max_entries: int = MAX_CACHED_KEYS) -> None:
        self.ttl_seconds = ttl_seconds
        self.ttl_ms = int(ttl_seconds * 1000)
        self.generation = 0
        self._lock = threading.RLock()  # as that of `BoundedMap`
        self._partitions: BoundedMap[str, Known] = BoundedMap(max_entries)
        self._defaults: BoundedMap[str, Defaults] = BoundedMap(max_entries)
        self.hits = 0
        self.misses = 0
        protect(self._lock)

    def get(self, pk: str, resource: str, now_ms: int) -> tuple[Known | None, Defaults | None]:
        """Return what is known of a partition and of the defaults of a resource, each unless it is too old."""
        known, defaults = self._partitions.get(pk), self._defaults.get(resource)
        before_ms = now_ms - self.ttl_ms
        if known is not None and not before_ms < known[1] <= now_ms:
            known = None
        if defaults is not None and not before_ms < defaults.read_ms <= now_ms:
            defaults = None
        misses = (known is None) + (defaults is None)
        self.misses += misses
        self.hits += 2 - misses
        return known, defaults

    def get_partition(self, pk: str, now_ms: int) -> Known | None:
        """Return what is known of a partition, unless it is too old."""
        known = self._partitions.get(pk)
        if known is not None and now_ms - self.ttl_ms < known[1] <= now_ms:
            self.hits += 1
            return known
        self.misses += 1
        return None

    def put(self, pk: str, known: Known, generation: int) -> None:
        """Remember what was read of a partition, unless something was dropped since ``generation``."""
        with self._lock:
            if generation == self.generation:
                self._partitions.put(pk, known)

    def put_defaults(self, resource: str, defaults: Defaults, generation: int) -> None:
        """Remember what is in force, unless something was dropped since ``generation``."""
        with self._lock:
            if generation == self.generation:
                self._defaults.put(resource, defaults)

    def drop(self, keys: Iterable[Key]) -> None:
        """Forget some records."""
        with self._lock:
            for key in keys:
                self._partitions.drop(key.pk)
                if key.sk == CONFIG:
                    self._defaults.clear()
            self.generation += 1

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._partitions.clear()
            self._defaults.clear()
            self.generation += 1

    def stats(self) -> CacheStats:
        """Return hits, misses and size."""
        from ..core.reports import CacheStats

        return CacheStats(self.hits, self.misses, len(self._partitions), self.ttl_seconds)
