"""The buckets of which a limiter holds tokens, or has lately asked for some, and what they have saved."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...core.bucket import MILLI
from ...core.reports import PrefetchStats
from ...forks import after_fork
from ...stores.bounded import BoundedMap
from ..chain import Chain
from .books import Books
from .bucket import PrefetchedBucket

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...core.decide import Reading
    from ...repository.backend import Backend
    from ..chain import LevelShard, Override


class PrefetchedBuckets:
    """The tokens held of each bucket, for requests of one priority."""

    def __init__(self, backend: Backend, keep_ms: int, wake: Callable[[int], None]) -> None:
        self.books = Books(backend, keep_ms, wake)
        self._buckets: BoundedMap[tuple[str, str | None], PrefetchedBucket] = BoundedMap(backend.max_cached_keys)
        self.get = self._buckets.get
        backend.prefetching.add(self)
        after_fork(self._forget)

    def find(self, home: LevelShard, given: Override | None) -> PrefetchedBucket | None:
        """Return the bucket of a level; None if none of its tokens are drawn in advance.

        Slots are the store's to count; limits that may be overdrawn keep no caller waiting; of a quota, a process that
        is killed would lose tokens until the window ends.
        """
        level, limits = home.level, home.level.token_limits
        if level.slot_limits or limits.soft or limits.quotas or not limits or self.books.is_closed:
            return None
        name = (level.key.pk, level.priority)
        found = self.get(name) or self._buckets.get_or_make(name, lambda: PrefetchedBucket(self.books, home, given))
        return found if found.follow(home, given) else None

    def active(self) -> list[PrefetchedBucket]:
        """Return the buckets that hold something or have something to write."""
        active = self.books.active
        for bucket in tuple(active):
            if bucket.is_idle:
                active.pop(bucket, None)
        return list(active)

    def stats(self) -> PrefetchStats:
        """Return what is held now and was counted so far."""
        now_ms, books = self.books.now_ms(), self.books
        held = sum(sum(bucket.count_left(now_ms).values()) for bucket in self.active())
        spared = max(0, books.granted - books.writes)
        return PrefetchStats(held // MILLI, books.granted, books.returned // MILLI, spared, books.lost)

    def _forget(self) -> None:
        self.books.forget()
        self._buckets.clear()


@dataclass(slots=True, eq=False)
class PrefetchingChain(Chain):
    """A chain whose readings include the tokens that this process holds."""

    buckets: PrefetchedBuckets = field(kw_only=True)

    def present(self, readings: list[Reading], now_ms: int) -> list[Reading]:
        """Return readings of its levels with what is held of each."""
        found = []
        for (level, _), reading in zip(self.homes, readings, strict=True):
            bucket = self.buckets.get((level.key.pk, level.priority))
            found.append(reading if bucket is None else bucket.add_to(level, reading, now_ms))
        return found
