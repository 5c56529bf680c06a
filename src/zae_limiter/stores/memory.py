"""The memory store: records in a dictionary, a commit under a lock.

Bounded: at most ``max_buckets`` buckets. When there are more, full ones go first, which loses nothing; when
none is full, those nearest to full go and are counted in ``evicted_unfull``. So a flood of new keys cannot
wash out the empty bucket of whoever sends it. What they had used is kept, in at most as many usage records as there
may be buckets: the oldest windows go and are counted in ``dropped_usage``. Expired records are dropped when met.
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVarTuple

from ..clock import Clock, SystemClock
from ..core.errors import CorruptRecordError
from ..core.limit import MAX_AMOUNT, whole
from ..core.values import BackendCapabilities
from ..forks import protect
from ..records import bucket, ledger
from ..records.algebra import TTL, Committed, Conflict, Image, Key, Page, Query, Write, applied, holds, is_live
from ..records.keys import STATE, USAGE_PREFIX
from ..records.usage import USAGE_RETENTION_DAYS
from .ranges import INDEXES, index_entry, page_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence, Set

Ts = TypeVarTuple("Ts")

CAPABILITIES = BackendCapabilities(
    name="memory",
    instant=True,
    free_atomic_commit=True,
    own_clock=True,
    several_processes=False,
    several_hosts=False,
    usage_retention_days=USAGE_RETENTION_DAYS,
)


class MemoryStore:
    """Records of one process. Usable from any number of threads and event loops at once."""

    def __init__(
        self,
        clock: Clock | None = None,
        max_buckets: int = 100_000,
        usage_retention_days: int = USAGE_RETENTION_DAYS,
    ) -> None:
        days = whole("usage_retention_days", usage_retention_days, 0, 36_500, "days")
        self.capabilities = replace(CAPABILITIES, usage_retention_days=days)
        self.clock: Clock = clock or SystemClock()
        self.max_buckets = whole("max_buckets", max_buckets, 1, MAX_AMOUNT, "buckets")
        self.evicted_unfull = 0
        self.dropped_usage = 0
        self._lock = threading.Lock()
        self._items: dict[Key, Image] = {}
        self._partitions: dict[str, set[Key]] = {}
        self._indexes: dict[str, dict[str, set[Key]]] = {name: {} for name in INDEXES}
        self._buckets = 0
        self._windows = 0
        protect(self)

    async def read(self, keys: Sequence[Key], *, timeout: float | None = None) -> list[Image | None]:
        """The current images, in the order of the keys."""
        now_ms = self.clock.now_ms()
        with self._lock:
            return [self._live(key, now_ms) for key in keys]

    async def commit(self, writes: Sequence[Write], *, timeout: float | None = None) -> Committed | Conflict:
        """Apply all writes if all guards hold, else none."""
        now_ms = self.clock.now_ms()
        with self._lock:
            before = {write.key: self._live(write.key, now_ms) for write in writes}
            if not all(holds(before[write.key], write.guards) for write in writes):
                return Conflict(before)
            images = tuple([self._apply(write, before[write.key]) for write in writes])
            if self._buckets > self.max_buckets or self._windows > self.max_buckets:
                self._make_room({write.key for write in writes}, now_ms)
            return Committed(images)

    def exchange(
        self, key: Key, now_ms: int, change: Callable[[Image | None, *Ts], Image | None], *args: *Ts
    ) -> Image | None:
        """Lend out one record: ``change`` gets its image and answers with the next one, or None for no change.

        The new image must not differ in its index attributes.
        """
        with self._lock:
            image = self._items.get(key)
            if image is not None and TTL in image and not is_live(image, now_ms):
                image = None
            new = change(image, *args)
            if new is not None:
                self._items[key] = new
            return new

    async def query(self, query: Query, *, timeout: float | None = None) -> Page:
        """One page of a range."""
        now_ms = self.clock.now_ms()
        with self._lock:
            held = self._partitions if query.gsi is None else self._indexes[query.gsi]
            found = ((key, self._live(key, now_ms)) for key in tuple(held.get(query.pk, ())))
            rows = [(key, image) for key, image in found if image is not None]
        return page_of(rows, query)

    async def close(self) -> None:
        """Nothing is held."""

    def __len__(self) -> int:
        """How many records are held."""
        return len(self._items)

    def _live(self, key: Key, now_ms: int) -> Image | None:
        image = self._items.get(key)
        if image is not None and TTL in image and not is_live(image, now_ms):
            self._drop(key, image)
            return None
        return image

    def _apply(self, write: Write, old: Image | None) -> Image | None:
        if old is None and write.is_check:
            return None
        new = applied(old, write)
        if old is not None and new is not None and not write.remove and _INDEXED.isdisjoint(write.put):
            self._items[write.key] = new
            return new
        if old is not None:
            self._drop(write.key, old)
        if new is not None:
            self._insert(write.key, new)
        return new

    def _insert(self, key: Key, image: Image) -> None:
        self._items[key] = image
        self._partitions.setdefault(key.pk, set()).add(key)
        for name in INDEXES:
            entry = index_entry(name, image)
            if entry is not None:
                self._indexes[name].setdefault(entry[0], set()).add(key)
        if key.sk == STATE:
            self._buckets += 1
        elif key.sk.startswith(USAGE_PREFIX):
            self._windows += 1

    def _drop(self, key: Key, image: Image) -> None:
        del self._items[key]
        _discard(self._partitions, key.pk, key)
        for name in INDEXES:
            entry = index_entry(name, image)
            if entry is not None:
                _discard(self._indexes[name], entry[0], key)
        if key.sk == STATE:
            self._buckets -= 1
        elif key.sk.startswith(USAGE_PREFIX):
            self._windows -= 1

    def _make_room(self, written: Set[Key], now_ms: int) -> None:
        """Forget what is too much, for several inserts at once, so that one scan serves them all.

        What the commit has written stays: it has to be whole before anything goes.
        """
        if self._buckets > self.max_buckets:
            self._evict(written, now_ms)
        if self._windows > self.max_buckets:
            self._drop_usage(written)

    def _evict(self, written: Set[Key], now_ms: int) -> None:
        """Forget buckets, the fullest first."""
        held = ((_full_at(image), key) for key, image in self._items.items() if key.sk == STATE)
        candidates = sorted(entry for entry in held if entry[1] not in written)
        too_many = self._buckets - self.max_buckets
        most = max(too_many, self.max_buckets // 8)
        most_unfull = max(too_many, self.max_buckets // 64)
        for count, (full_at, key) in enumerate(candidates[:most]):
            if full_at > now_ms:
                if count >= most_unfull:
                    break
                self.evicted_unfull += 1
            image = self._items[key]
            self._drop(key, image)
            self._book(key, image, now_ms)

    def _book(self, key: Key, image: Image, now_ms: int) -> None:
        """Keep what a bucket that goes has used; one that cannot be read says nothing of it."""
        with contextlib.suppress(CorruptRecordError):
            if ledger.is_open(bucket.inspect(key, image)):
                for write in ledger.booked(key, image, self.capabilities.usage_retention_days).accruals:
                    self._apply(write, self._live(write.key, now_ms))

    def _drop_usage(self, written: Set[Key]) -> None:
        """Forget usage, the oldest windows first."""
        held = ((image["window_end"], key) for key, image in self._items.items() if key.sk.startswith(USAGE_PREFIX))
        candidates = sorted(entry for entry in held if entry[1] not in written)
        for _, key in candidates[: max(self._windows - self.max_buckets, self.max_buckets // 8)]:
            self.dropped_usage += 1
            self._drop(key, self._items[key])


_INDEXED = frozenset(f"{name}{part}" for name in INDEXES for part in ("PK", "SK"))


def _full_at(image: Image) -> int:
    """When nothing is lost by forgetting a bucket; one that cannot be read goes last, so that it is noticed."""
    try:
        return bucket.full_at(image)
    except (KeyError, TypeError, ZeroDivisionError):
        return 2**62


def _discard(held: dict[str, set[Key]], name: str, key: Key) -> None:
    group = held.get(name)
    if group is not None:
        group.discard(key)
        if not group:
            del held[name]
