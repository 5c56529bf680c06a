"""The prefetched buckets of one limiter, and their upkeep: unused tokens go back in time."""

from __future__ import annotations

import atexit
import contextlib
import threading
import time
import weakref
from dataclasses import dataclass, field
from functools import partial

from ...core.decide import Reading
from ...core.errors import ZAELimiterError
from ...core.production import FOR_EVER, MILLI
from ...core.reports import PrefetchStats
from ...forks import after_fork, protect
from ...logs import RETURN_LOST, log_event
from ...repository.backend import Backend
from ...runtime.blocking import run
from ...runtime.housekeeper import HOUSEKEEPER
from ...runtime.port import Caller
from ...stores.bounded import BoundedMap
from ..background import BackgroundStore
from ..charge_path import BucketShard, ChargePath
from ..charge_paths import ChargePaths
from ..options import Override
from .batches import Books
from .bucket import PrefetchedBucket
from .draws import DrawEngine

_AT_ONCE = 16
"""How many buckets are written in parallel."""
_MOST_TRIES, _PAUSE_SECONDS = 200, 0.005
"""How many times a bucket that is being written elsewhere is tried, and the pause between tries, in seconds."""
_SHORTEST_PAUSE_MS = 20
"""Shortest pause between two looks for what is due, in milliseconds."""

_OPEN: weakref.WeakSet[Prefetcher] = weakref.WeakSet()
"""Those of this process. As long as one holds something, the housekeeper keeps it alive."""


class Prefetcher(Books):
    """The buckets of which a limiter holds tokens, or has lately asked for some, and their upkeep."""

    draws: DrawEngine
    """Writes the buckets; set by the limiter whenever it has a new engine."""

    def __init__(self, backend: Backend, chains: ChargePaths, background: BackgroundStore, keep_ms: int) -> None:
        super().__init__(backend, keep_ms)
        self._background = background
        most = backend.options.max_cached_keys
        self._buckets: BoundedMap[tuple[str, str | None], PrefetchedBucket] = BoundedMap(most)
        """By record, and by the priority of requests."""
        self.get = self._buckets.get
        self._lock = threading.RLock()
        protect(self._lock)
        self._due_ms = FOR_EVER
        self._caller: Caller | None = None
        chains.new_chain = partial(PrefetchingPath, prefetcher=self)
        backend.prefetching.add(self)
        after_fork(self._forget)
        _OPEN.add(self)

    def find(self, home: BucketShard, given: Override | None) -> PrefetchedBucket | None:
        """Return the bucket of a level; None if none of its tokens are drawn in advance.

        Slots are the store's to count; limits that may be overdrawn keep no caller waiting; of a quota, a process that
        is killed would lose tokens until the window ends.
        """
        level, limits = home.level, home.level.token_limits
        if level.slot_limits or limits.soft or limits.quotas or not limits or self.is_closed:
            return None
        name = (level.key.pk, level.priority)
        found = self.get(name) or self._buckets.get_or_make(name, lambda: PrefetchedBucket(self, home, given))
        return found if found.follow(home, given) else None

    def active(self) -> list[PrefetchedBucket]:
        """Return the buckets that hold something or have something to write."""
        for bucket in tuple(self._active):
            if bucket.is_idle:
                self._active.pop(bucket, None)
        return list(self._active)

    def stats(self) -> PrefetchStats:
        """Return what is held now and was counted so far."""
        now_ms = self.now_ms()
        held = sum(sum(bucket.count_left(now_ms).values()) for bucket in self.active())
        spared = max(0, self.granted - self.writes)
        return PrefetchStats(held // MILLI, self.granted, self.returned // MILLI, spared, self.lost)

    async def flush(self, draws: DrawEngine | None = None, due_ms: int | None = None) -> None:
        """Return held tokens and write what was gathered; with ``due_ms`` only what is due by then."""
        draws, everything = draws or self.draws, due_ms is None
        found = self.active()
        if due_ms is not None:
            for bucket in found:
                bucket.end_batches(due_ms)
            found = [bucket for bucket in found if bucket.due_ms() <= due_ms]
        at_once = 1 if draws.never_suspends else _AT_ONCE
        for first in range(0, len(found), at_once):
            works = [self._write_down(bucket, draws, everything) for bucket in found[first : first + at_once]]
            for outcome in await draws.backend.runtime.run_together(works):
                if outcome is not None:
                    raise outcome

    async def _write_down(self, bucket: PrefetchedBucket, draws: DrawEngine, everything: bool) -> None:
        """Write what was gathered of a bucket, and with ``everything`` return what is held of it."""
        bucket.is_drawing = bucket.is_drawing and not everything
        bucket.draws = False
        try:
            for _ in range(_MOST_TRIES):
                if everything:
                    bucket.end_batches()
                await draws.write(bucket)
                if bucket.is_idle or not (bucket.write or (everything and bucket.batches)):
                    break
                await draws.backend.runtime.new_signal().wait(_PAUSE_SECONDS)  # another write is, or was, under way
        finally:
            bucket.draws = True
        for part in bucket.take_corrections():  # of a bucket that is gone, was split or reconfigured
            try:
                await draws.settle_parts(bucket.chain, [part], draws.backend.deadline())
            except ZAELimiterError:
                self.count_lost(part.shard.level, part.delta)

    def keep_up(self) -> float | None:
        """Write what is due, in a thread of the housekeeper's. Return the seconds until more is, None for never."""
        now_ms = self.now_ms()
        with self._lock:
            self._due_ms = FOR_EVER
        if self._background.needs_loops:
            if self._caller is None or self._caller.is_gone:
                return None  # no loop can write: the next caller wakes it again
            with contextlib.suppress(TimeoutError):
                self._caller.run(partial(self.flush, None, now_ms), self._backend.timeout)
        else:
            run(self.flush(self._open_draws(), now_ms))
        due_ms = min([bucket.due_ms() for bucket in self.active()], default=FOR_EVER)
        if due_ms == FOR_EVER or self.is_closed:
            return None
        with self._lock:
            self._due_ms = min(self._due_ms, due_ms)
        return max(_SHORTEST_PAUSE_MS, due_ms - self.now_ms()) / MILLI

    def _open_draws(self) -> DrawEngine:
        return self.draws.over(self._background.open_backend(), DrawEngine)

    def wake(self, due_ms: int) -> None:
        """Have `keep_up` called at an instant, or earlier."""
        with self._lock:
            if due_ms >= self._due_ms or self.is_closed:
                return
            self._due_ms = due_ms
        if self._background.needs_loops and (self._caller is None or self._caller.is_gone):
            with contextlib.suppress(RuntimeError):  # not in an event loop: the next caller is
                self._caller = self._backend.runtime.caller()
        HOUSEKEEPER.schedule(self.keep_up, max(0, due_ms - self.now_ms()) / MILLI)

    def _forget(self) -> None:
        """Start with nothing in a child process: what is held and what is to be corrected is the parent's."""
        for bucket in tuple(self._active):
            bucket.forget()
        self._buckets.clear()
        self._active.clear()
        self.granted = self.writes = self.returned = self.lost = 0
        self._due_ms, self._caller = FOR_EVER, None

    async def close(self) -> None:
        """Return and write everything, and draw nothing any more."""
        self.is_closed = True
        await self._backend.runtime.run_blocking(partial(HOUSEKEEPER.cancel, self.keep_up))
        await self.flush()

    def close_at_exit(self) -> None:
        """Return and write everything, because the program ends without `close`.

        No thread can be started any more: the buckets are written one after the other, and none is begun after the time
        that one call may take. What is left over is lost, as in a crash.
        """
        found = [] if self.is_closed or self._background.needs_loops else self.active()
        if not found:
            return
        self.is_closed = True
        ends = time.monotonic() + self._backend.timeout
        try:
            draws = self._open_draws()
            for bucket in found:
                if time.monotonic() < ends:
                    run(self._write_down(bucket, draws, everything=True))
            self._background.close()
        except Exception as error:  # there is no caller that could handle it
            message, kind = "tokens that were drawn in advance could not be returned: %s", type(error).__name__
            log_event(RETURN_LOST, message, error, **self._backend.log_fields(), zae_error_type=kind)


@atexit.register
def _close_all() -> None:
    """Return what limiters hold that the program has not closed."""
    for prefetcher in tuple(_OPEN):
        prefetcher.close_at_exit()


@dataclass(slots=True, eq=False)
class PrefetchingPath(ChargePath):
    """A path whose readings include the tokens that this process holds."""

    prefetcher: Prefetcher = field(kw_only=True)

    def present(self, readings: list[Reading], now_ms: int) -> list[Reading]:
        """Return readings of its levels with what is held of each."""
        found = []
        for (level, _), reading in zip(self.primary_shards, readings, strict=True):
            bucket = self.prefetcher.get((level.key.pk, level.priority))
            found.append(reading if bucket is None else bucket.add_to(level, reading, now_ms))
        return found
