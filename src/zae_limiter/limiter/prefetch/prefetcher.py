"""Looking after prefetched tokens: returning what nobody has taken, at the latest when the program ends."""

from __future__ import annotations

import atexit
import contextlib
import threading
import time
import weakref
from functools import partial
from typing import TYPE_CHECKING

from ...core.bucket import FOR_EVER, MILLI
from ...core.errors import ZAELimiterError
from ...forks import after_fork, protect
from ...logs import RETURN_LOST, tell
from ...runtime.blocking import run
from ...runtime.housekeeper import HOUSEKEEPER
from .buckets import PrefetchedBuckets, PrefetchingChain
from .draw_engine import DrawEngine
from .engine import PrefetchingEngine

if TYPE_CHECKING:
    from ...repository.backend import Backend
    from ...runtime.port import Caller
    from ..background import BackgroundStore
    from ..chains import Chains
    from ..engine import Engine
    from .bucket import PrefetchedBucket


_MOST_TRIES, _PAUSE_SECONDS = 200, 0.005
"""How many times a bucket that is being written elsewhere is tried, and the pause between tries, in seconds."""
_SHORTEST_PAUSE_MS = 20
"""Shortest pause between two looks for what is due, in milliseconds."""

_OPEN: weakref.WeakSet[Prefetcher] = weakref.WeakSet()
"""Those of this process. As long as one holds something, the housekeeper keeps it alive."""


class Prefetcher:
    """Prefetches the tokens of one limiter and looks after them."""

    draws: DrawEngine
    """Writes the buckets."""

    def __init__(self, backend: Backend, chains: Chains, background: BackgroundStore, keep_ms: int) -> None:
        self._backend = backend
        self._clock = backend.clock
        self._background = background
        self._lock = threading.RLock()
        protect(self._lock)
        self._due_ms = FOR_EVER
        self._caller: Caller | None = None
        self.buckets = PrefetchedBuckets(backend, keep_ms, self._wake)
        chains.new_chain = partial(PrefetchingChain, buckets=self.buckets)
        after_fork(self._forget)
        _OPEN.add(self)

    def extend(self, engine: Engine) -> PrefetchingEngine:
        """Return an engine like ``engine`` that prefetches, by which this writes from now on."""
        extended = engine.over(self._backend, PrefetchingEngine)
        extended.buckets, extended.draws = self.buckets, engine.over(self._backend, DrawEngine)
        self.draws = extended.draws
        return extended

    async def flush(self, draws: DrawEngine | None = None, due_ms: int | None = None) -> None:
        """Return the tokens that are held and write what was gathered; with ``due_ms`` only what is due by then."""
        draws, everything = draws or self.draws, due_ms is None
        found = [bucket for bucket in self.buckets.active() if due_ms is None or bucket.is_due(due_ms)]
        await draws.run_each([partial(self._write_down, bucket, draws, everything) for bucket in found])

    async def _write_down(self, bucket: PrefetchedBucket, draws: DrawEngine, everything: bool) -> None:
        """Write what was gathered of a bucket; ``everything`` that is held goes back before."""
        bucket.is_drawing = bucket.is_drawing and not everything
        bucket.draws = False
        try:
            for _ in range(_MOST_TRIES):
                if everything:
                    bucket.end_batches()
                await draws.write(bucket)
                if bucket.is_idle or not (bucket.is_writing or (everything and bucket.batches)):
                    break
                await draws.pause(_PAUSE_SECONDS)  # another write is under way, or has been
        finally:
            bucket.draws = True
        for part in bucket.take_corrections():  # of a bucket that is gone, was split or reconfigured
            try:
                await draws.settle_parts(bucket.chain, [part], draws.begin())
            except ZAELimiterError:
                self.buckets.books.count_lost(part.shard.level, part.delta)

    def keep_up(self) -> float | None:
        """Write what is due, in a thread of the housekeeper's. Return the seconds until more is, None for never."""
        now_ms = self._clock.now_ms()
        with self._lock:
            self._due_ms = FOR_EVER
        if self._background.needs_loops:
            if self._caller is None or self._caller.is_gone:
                return None  # no loop can write: the next caller wakes it again
            with contextlib.suppress(TimeoutError):
                self._caller.run(partial(self.flush, None, now_ms), self._backend.timeout)
        else:
            run(self.flush(self._open_draws(), now_ms))
        due_ms = min([bucket.due_ms() for bucket in self.buckets.active()], default=FOR_EVER)
        if due_ms == FOR_EVER or self.buckets.books.is_closed:
            return None
        with self._lock:
            self._due_ms = min(self._due_ms, due_ms)
        return max(_SHORTEST_PAUSE_MS, due_ms - self._clock.now_ms()) / MILLI

    def _open_draws(self) -> DrawEngine:
        """Return an engine that can write in the calling thread."""
        return self.draws.over(self._background.open_backend(), DrawEngine)

    def _wake(self, due_ms: int) -> None:
        """Have `keep_up` called at an instant, or earlier."""
        with self._lock:
            if due_ms >= self._due_ms or self.buckets.books.is_closed:
                return
            self._due_ms = due_ms
        if self._background.needs_loops and (self._caller is None or self._caller.is_gone):
            with contextlib.suppress(RuntimeError):  # not in an event loop: the next caller is
                self._caller = self._backend.runtime.caller()
        HOUSEKEEPER.schedule(self.keep_up, max(0, due_ms - self._clock.now_ms()) / MILLI)

    def _forget(self) -> None:
        """Look after nothing in a child process, which holds nothing yet."""
        self._due_ms, self._caller = FOR_EVER, None

    async def close(self) -> None:
        """Return everything and write everything down; draw nothing any more."""
        self.buckets.books.is_closed = True
        await self._backend.runtime.run_blocking(partial(HOUSEKEEPER.cancel, self.keep_up))
        await self.flush()

    def close_at_exit(self) -> None:
        """Return everything and write everything down, because the program ends without `close`.

        No thread can be started any more: the buckets are written one after the other, and none is begun after the time
        that one call may take. What is left over is lost, as in a crash.
        """
        found = [] if self.buckets.books.is_closed else self.buckets.active()
        if not found or self._background.needs_loops:
            return
        self.buckets.books.is_closed = True
        ends = time.monotonic() + self._backend.timeout
        try:
            draws = self._open_draws()
            for bucket in found:
                if time.monotonic() < ends:
                    run(self._write_down(bucket, draws, everything=True))
            self._background.close()
        except Exception as error:  # there is no caller that could handle it
            message, kind = "tokens that were drawn in advance could not be returned: %s", type(error).__name__
            tell(RETURN_LOST, message, error, **self._backend.log_fields(), zae_error_type=kind)


@atexit.register
def _close_all() -> None:
    """Return what limiters hold that the program has not closed."""
    for prefetcher in tuple(_OPEN):
        prefetcher.close_at_exit()
