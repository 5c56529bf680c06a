"""The config cache: recently read config and entity records, absent ones too."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

from ..core.values import CacheStats
from ..forks import protect

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..records.algebra import Image, Key


class ConfigCache:
    """Images by key with the instant they were read; bounded, the oldest go first.

    ``generation`` changes whenever something is dropped, so that what was derived from the cache can tell
    that it is out of date; an answer from something derived counts in ``hits`` too.
    """

    def __init__(self, ttl_seconds: float, max_entries: int = 20_000) -> None:
        self.ttl_seconds = ttl_seconds
        self.ttl_ms = int(ttl_seconds * 1000)
        self.generation = 0
        self._max_entries = max_entries
        self._lock = threading.Lock()
        self._entries: OrderedDict[Key, tuple[Image | None, int]] = OrderedDict()
        self.hits = 0
        self.misses = 0
        protect(self)

    def get(self, key: Key, now_ms: int) -> tuple[Image | None, int] | None:
        """The image and the instant it was read, or None where it is not known (any more)."""
        entry = self._entries.get(key)
        if entry is not None and 0 <= now_ms - entry[1] < self.ttl_ms:
            self.hits += 1
            return entry
        self.misses += 1
        return None

    def put(self, key: Key, image: Image | None, now_ms: int, generation: int) -> None:
        """Remember an image that was read at ``now_ms``, unless something was dropped since ``generation``."""
        with self._lock:
            if generation != self.generation:
                return
            self._entries.pop(key, None)
            if len(self._entries) >= self._max_entries:
                self._entries.popitem(last=False)
            self._entries[key] = (image, now_ms)

    def drop(self, keys: Iterable[Key]) -> None:
        """Forget some images."""
        with self._lock:
            for key in keys:
                self._entries.pop(key, None)
            self.generation += 1

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._entries.clear()
            self.generation += 1

    def stats(self) -> CacheStats:
        """How it is doing."""
        return CacheStats(self.hits, self.misses, len(self._entries), self.ttl_seconds)
