"""The config cache: recently read config and entity records, absent ones too."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from ..forks import protect
from ..records.keys import CONFIG
from ..stores.bounded import MAX_CACHED_KEYS, BoundedMap

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..core.config import Resolved
    from ..core.reports import CacheStats
    from ..core.values import OnUnavailable
    from ..records.algebra import Image, Key


class Known(NamedTuple):
    """What is known of one partition: records by sort key (None: there is none), all read at ``read_ms`` or later."""

    images: Mapping[str, Image | None]
    read_ms: int


class Defaults(NamedTuple):
    """What is in force for every entity that has nothing of its own, by records that were read at ``read_ms``."""

    resolved: Resolved
    on_unavailable: OnUnavailable | None
    read_ms: int


F = TypeVar("F", Known, Defaults)


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
        self._lock = threading.Lock()
        self._partitions: BoundedMap[str, tuple[Mapping[str, Image | None], int]] = BoundedMap(max_entries)
        """What is `Known`, as plain tuples, which the garbage collector need not look at again and again."""
        self._defaults: BoundedMap[str, Defaults] = BoundedMap(max_entries)
        self.hits = 0
        self.misses = 0
        protect(self._lock)

    def get(self, pk: str, now_ms: int) -> Known | None:
        """Return what is known of a partition, unless it is too old."""
        found = self._partitions.get(pk)
        return self._fresh(None if found is None else Known(*found), now_ms)

    def get_defaults(self, resource: str, now_ms: int) -> Defaults | None:
        """Return what is in force for whoever has nothing of its own, unless it is too old."""
        return self._fresh(self._defaults.get(resource), now_ms)

    def _fresh(self, found: F | None, now_ms: int) -> F | None:
        if found is not None and 0 <= now_ms - found.read_ms < self.ttl_ms:
            self.hits += 1
            return found
        self.misses += 1
        return None

    def put(self, pk: str, known: Known, generation: int) -> None:
        """Remember what was read of a partition, unless something was dropped since ``generation``."""
        with self._lock:
            if generation == self.generation:
                self._partitions.put(pk, (known.images, known.read_ms))

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
