"""The memory store: records in a dictionary, a commit under a lock.

Bounded: at most ``max_buckets`` buckets. When there are more, full ones go first, which loses nothing; when
none is full, those that are full again soonest go and are counted in ``evicted_unfull``. So a flood of new keys cannot
wash out the empty bucket of whoever sends it, unless it is under limits that refill more slowly. What they had used
is kept, in at most as many usage records as there may be buckets: the oldest windows go and are counted in
``dropped_usage``. Expired records are dropped when met.

Nothing that an acquire does depends on how many buckets there are, but for the heap that says which goes first. A few
buckets go at a time, at most one in a thousand. Where that takes long (everybody has been here again since), a commit
leaves the rest to the next one, and for that moment there are a few buckets more, at most one in a thousand.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Sequence, Set
from dataclasses import replace

from ..clock import Clock, SystemClock
from ..core.errors import RateLimiterUnavailable
from ..core.limit import MAX_AMOUNT, whole
from ..core.values import BackendCapabilities
from ..forks import protect
from ..records.algebra import TTL, Committed, Conflict, Image, Key, Page, Query, Write, apply_write, holds, is_live
from ..records.keys import USAGE_PREFIX
from ..records.usage import USAGE_RETENTION_DAYS
from .eviction import EvictionQueue, Unbooked, full_at
from .ranges import INDEXES, page_of
from .table import Name, Table, is_bucket, key_of, name_of, with_indexes

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
        self, clock: Clock | None = None, max_buckets: int = 100_000, usage_retention_days: int = USAGE_RETENTION_DAYS
    ) -> None:
        days = whole("usage_retention_days", usage_retention_days, 0, 36_500, "days")
        self.capabilities = replace(CAPABILITIES, usage_retention_days=days)
        self.clock: Clock = clock or SystemClock()
        self.max_buckets = whole("max_buckets", max_buckets, 1, MAX_AMOUNT, "buckets")
        self._spare = min(self.max_buckets // 1_000, 100)
        """How many buckets more than need be are forgotten at a time: one by one takes longer."""
        self.evicted_unfull = 0
        self.dropped_usage = 0
        self.lock = threading.RLock()
        self.is_inside: Callable[[], bool] = self.lock._is_owned  # type: ignore[attr-defined]  # as Condition does
        self._table = Table()
        self.images = self._table.images
        self._queue = EvictionQueue(self._table.get)
        self.returned: Set[str] = self._queue.returned
        self._unbooked = Unbooked(usage_retention_days, self._table.packer)
        self._windows: list[tuple[str, str]] = []
        """Usage records by the end of their window, as a heap; some of them are gone."""
        protect(self.lock)

    def _enter(self) -> threading.RLock:
        """Return the lock to hold during a call.

        Raise `RateLimiterUnavailable` where the thread holds it already: the garbage collector or a signal may run code
        at any moment, also in the middle of a change, and that code cannot wait for it to be finished.
        """
        if self.is_inside():
            raise RateLimiterUnavailable(
                "The memory store cannot be used by a finalizer or a signal handler inside of a call."
            )
        return self.lock

    async def read(self, keys: Sequence[Key], *, timeout: float | None = None) -> list[Image | None]:
        """Return the current images, in the order of the keys."""
        now_ms = self.clock.now_ms()
        with self._enter():
            if self._unbooked.windows:
                self._book_usage(keys, now_ms)
            return [self._live(name_of(key), now_ms) for key in keys]

    async def commit(self, writes: Sequence[Write], *, timeout: float | None = None) -> Committed | Conflict:
        """Apply all writes if all guards hold, else none."""
        now_ms = self.clock.now_ms()
        with self._enter():
            if self._unbooked.windows:
                self._book_usage([write.key for write in writes], now_ms)
            before = {write.key: self._live(name_of(write.key), now_ms) for write in writes}
            if not all(holds(before[write.key], write.guards) for write in writes):
                return Conflict(before)
            after = [apply_write(before[write.key], write) for write in writes]  # all of them, as it may raise
            images = tuple([self._put(write, before[write.key], new) for write, new in zip(writes, after, strict=True)])
            if max(self._table.buckets, self._table.windows + self._unbooked.windows) > self.max_buckets:
                self._make_room({name_of(write.key) for write in writes}, now_ms)
            undisturbed = all(write.seen is not None and before[write.key] is write.seen for write in writes)
            return Committed(images, undisturbed)

    def has_records(self, pk: str) -> bool:
        """Return whether the partition of an entity holds anything; to be called with or without the lock."""
        return pk in self._table.partitions

    def find_bucket(self, key: Key, now_ms: int) -> Image | None:
        """Return a bucket that lives at ``now_ms``, from then on one of `images`; to be called under the lock."""
        image = self._table.use(key.pk)
        if image is not None and not is_live(image, now_ms):
            self._table.drop(key.pk, image)
            return None
        return image

    def insert_bucket(self, key: Key, image: Image, now_ms: int, full_ms: int) -> None:
        """Add a bucket that is not there, and that is full from ``full_ms`` on; to be called under the lock."""
        table, name = self._table, key.pk
        table.insert(name, image)
        self._queue.note(name, full_ms, table.buckets)
        if table.buckets > self.max_buckets:
            self._make_room((name,), now_ms)

    def note_return(self, key: Key) -> None:
        """Note that tokens came back to a bucket; to be called under the lock."""
        self._queue.note_return(key.pk, self._table.buckets)

    async def query(self, query: Query, *, timeout: float | None = None) -> Page:
        """Return one page of a range."""
        now_ms = self.clock.now_ms()
        with self._enter():
            for entity in (query.pk,) if query.gsi is None else self._unbooked.entities():
                self._book(entity, now_ms)
            found = ((name, self._live(name, now_ms)) for name in self._table.find(query))
            rows = [(key_of(name), with_indexes(name, image)) for name, image in found if image is not None]
        return page_of(rows, query)

    async def close(self) -> None:
        """Do nothing: there is nothing to release."""

    def __len__(self) -> int:
        """Return how many records are held, those of usage included that are made when somebody asks."""
        return len(self._table) + self._unbooked.windows

    def _live(self, name: Name, now_ms: int) -> Image | None:
        image = self._table.images.get(name)
        if image is None and type(name) is str:  # it may be packed
            image = self._table.get(name)
        if image is not None and TTL in image and not is_live(image, now_ms):
            self._table.drop(name, image)
            return None
        return image

    def _put(self, write: Write, old: Image | None, new: Image | None) -> Image | None:
        if old is None and write.is_check:
            return None
        name = name_of(write.key)
        if old is None:
            if new is not None:
                self._insert(name, new)
        elif new is not None and _INDEXED.isdisjoint(write.put) and _INDEXED.isdisjoint(write.remove):
            self._table.replace(name, new)
            if is_bucket(name) and name not in self.returned and full_at(new) < full_at(old):
                self._queue.note_return(name, self._table.buckets)  # else what is noted is still a lower bound
        else:
            self._table.drop(name, old)
            if new is not None:
                self._insert(name, new)
        return new

    def _insert(self, name: Name, image: Image) -> None:
        self._table.insert(name, image)
        if not isinstance(name, str):
            return
        if is_bucket(name):
            self._queue.note(name, full_at(image), self._table.buckets)
        else:
            heapq.heappush(self._windows, (str(image.get("window_end", "")), name))
            if len(self._windows) > 2 * self._table.windows + _SPARE:
                self._windows = [entry for entry in set(self._windows) if entry[1] in self._table]
                heapq.heapify(self._windows)

    def _make_room(self, written: Set[Name] | tuple[Name, ...], now_ms: int) -> None:
        """Forget what is too much, the fullest buckets first; what the commit has written stays, whole."""
        if self._table.buckets > self.max_buckets:
            too_many = self._table.buckets - self.max_buckets + self._spare
            for name, (full_ms, image) in self._queue.choose(too_many, written, now_ms).items():
                if full_ms > now_ms:
                    self.evicted_unfull += 1
                self._unbooked.add(name, image, self._table.drop(name, image))
        if self._table.windows + self._unbooked.windows > self.max_buckets:
            self._drop_usage(written)

    def _book_usage(self, keys: Sequence[Key], now_ms: int) -> None:
        for key in keys:
            if key.sk.startswith(USAGE_PREFIX):
                self._book(key.pk, now_ms)

    def _book(self, entity: str, now_ms: int) -> None:
        for write in self._unbooked.book(entity):
            old = self._live(name_of(write.key), now_ms)
            self._put(write, old, apply_write(old, write))

    def _drop_usage(self, written: Set[Name] | tuple[Name, ...]) -> None:
        passed = []
        while self._table.windows + self._unbooked.windows > self.max_buckets:
            if self._unbooked.windows and (not self._windows or self._windows[0][0] > self._unbooked.oldest_end()):
                self.dropped_usage += self._unbooked.drop_oldest()
                continue
            if not self._windows:
                break
            entry = heapq.heappop(self._windows)
            image = self._table.get(entry[1])
            if image is not None and entry[1] in written:
                passed.append(entry)
            elif image is not None:
                self._table.drop(entry[1], image)
                self.dropped_usage += 1
        for entry in passed:
            heapq.heappush(self._windows, entry)


_SPARE = 1_000
"""How many entries of usage records that are gone are of no account."""
_INDEXED = frozenset(f"{name}{part}" for name in INDEXES for part in ("PK", "SK"))
