"""Buckets in a dictionary of this process: for tests, for one process, and to see how small an adapter is.

Bounded: at most ``max_entries`` buckets. When there are more, expired ones go, then those that were fullest when they
were last written, the longest untouched first. A new client's bucket is among the fullest, so a flood of new addresses
washes out itself and never the empty bucket of whoever sends it.
"""

from __future__ import annotations

import heapq
import threading
from typing import TYPE_CHECKING, NamedTuple

from ..clock import Clock, SystemClock
from ..core.limit import MAX_AMOUNT, MAX_PERIOD_SECONDS, whole
from ..forks import protect
from .port import TTL_SECONDS

if TYPE_CHECKING:
    from .bucket import TokenBucket


class _Entry(NamedTuple):
    bucket: TokenBucket
    expires_ms: int


class DictRepository:
    """Buckets in this process; usable from any number of threads and event loops at once.

    ``ttl_seconds``: after how many seconds without a write a bucket expires. ``clock``: the system's unless given.
    ``max_entries``: how many buckets are kept at most.
    """

    blocking = True

    def __init__(self, ttl_seconds: int = TTL_SECONDS, clock: Clock | None = None, max_entries: int = 100_000) -> None:
        self.ttl_seconds: int = whole("ttl_seconds", ttl_seconds, 1, MAX_PERIOD_SECONDS, "seconds")
        self.max_entries: int = whole("max_entries", max_entries, 1, MAX_AMOUNT, "entries")
        self.clock: Clock = clock or SystemClock()
        self.evicted: int = 0
        """How many buckets were dropped for want of room before they had expired."""
        self._entries: dict[str, _Entry] = {}
        self._lock = threading.Lock()
        protect(self._lock)

    def __len__(self) -> int:
        return len(self._entries)

    async def get(self, key: str) -> TokenBucket | None:
        """Return the bucket under ``key``, None if there is none or it has expired."""
        now_ms = self.clock.now_ms()
        with self._lock:
            found = self._entries.get(key)
            if found is None:
                return None
            if found.expires_ms <= now_ms:
                del self._entries[key]
                return None
            return found.bucket

    async def save(self, key: str, bucket: TokenBucket) -> None:
        """Store a bucket for ``ttl_seconds``, counted from its own instant if our clock is behind that."""
        now_ms = self.clock.now_ms()
        expires_ms = max(now_ms, bucket.last_refill_ms) + self.ttl_seconds * 1000
        with self._lock:
            self._entries[key] = _Entry(bucket, expires_ms)
            if len(self._entries) > self.max_entries:
                self._evict(key, now_ms)

    def _evict(self, newest: str, now_ms: int) -> None:
        """Make room for several buckets at once, so that one scan serves them all."""
        for key in [key for key, entry in self._entries.items() if entry.expires_ms <= now_ms]:
            del self._entries[key]
        if len(self._entries) <= self.max_entries:
            return
        others = (key for key in self._entries if key != newest)
        for key in heapq.nsmallest(max(1, self.max_entries // 64), others, key=self._emptiness):
            del self._entries[key]
            self.evicted += 1

    def _emptiness(self, key: str) -> tuple[float, int]:
        bucket, expires_ms = self._entries[key]
        return -bucket.tokens / bucket.capacity, expires_ms
