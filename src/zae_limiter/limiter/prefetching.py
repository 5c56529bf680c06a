"""Prefetching: taking from tokens that this process holds, and drawing them before they are asked for.

Each level of a chain is served on its own: from what is held of it, by a write that also draws in advance where it is
asked for often, or by the exact write of any other acquire. All or nothing holds: what was taken goes back if another
level refuses. ``docs/adr/0020-prefetch.md``.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
import time
import weakref
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ..core.bucket import FOR_EVER, MILLI
from ..core.decide import describe
from ..core.errors import RateLimitExceeded, ZAELimiterError
from ..forks import after_fork, protect
from ..logs import RETURN_LOST, tell
from ..runtime.blocking import run
from ..runtime.housekeeper import HOUSEKEEPER
from ..runtime.retries import tries
from .amounts import check_known
from .engine import Engine
from .grant import NOTHING, new_grant
from .held_buckets import HeldBuckets
from .planning import Elsewhere, Outdated

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..repository.backend import Backend
    from ..repository.outlook import Reserving
    from ..runtime.deadline import Deadline
    from ..runtime.port import Caller
    from .background import BackgroundStore
    from .chain import Chain, LevelShard
    from .chains import Chains
    from .coalescer import Turn
    from .grant import Grant, GrantFields, TakenTokens
    from .held_bucket import HeldBucket, Taken
    from .options import AcquireOptions
    from .waiting import Lines


_MOST_TRIES, _PAUSE_SECONDS = 200, 0.005
"""How often, and how long after each other, it is tried to write down a bucket that somebody else is writing."""


_LEAST_PAUSE_MS = 20
"""How long it is waited at least before it is looked again whether something is due."""


@dataclass(frozen=True)
class Upkeep:
    """A chore: writing what is due of the tokens held by one limiter."""

    prefetcher: Prefetcher

    def __call__(self) -> float | None:
        """Write what is due. Return the seconds until more is; None if nothing is held."""
        return self.prefetcher.keep_up()


_OPEN: weakref.WeakSet[Prefetcher] = weakref.WeakSet()
"""Those of this process. As long as one holds something, the housekeeper keeps it alive."""


class Prefetcher:
    """Takes for the leases of one limiter, and draws in advance what they are going to ask for."""

    def __init__(
        self,
        backend: Backend,
        chains: Chains,
        lines: Lines,
        background: BackgroundStore,
        keep_ms: int,
    ) -> None:
        self.engine: Engine
        """Set by the limiter, whenever it has a new one."""
        self._backend = backend
        self._clock = backend.clock
        self._cache = backend.cache
        self._chains = chains
        self._lines = lines
        self._background = background
        self._lock = threading.RLock()
        protect(self._lock)
        self._due_ms = FOR_EVER
        self._caller: Caller | None = None
        self.held = HeldBuckets(backend, keep_ms, self._wake)
        chains.held = self.held
        after_fork(self._forget)
        _OPEN.add(self)

    # Taking.

    def take_now(
        self, lease: Reserving, entity_id: str, resource: str, cost: dict[str, int], options: AcquireOptions
    ) -> GrantFields | None:
        """Take the cost of a lease from what is held; return None, with nothing taken, where it is not all there."""
        if not options.plain or options.exact or self._lines.waiting:
            return None
        now_ms = self._clock.now_ms()
        try:  # as `Chains.known`
            chain = self._chains.get((entity_id, resource, options.given))
        except TypeError:
            return None
        if (
            chain is None
            or chain.generation != self._cache.generation
            or not chain.since_ms <= now_ms < chain.valid_until_ms
        ):
            return None
        if chain.has_quotas:
            chain.note_reservation(lease, cost)  # should it be refused, the lease is not open
        granted = self._take_held(chain, cost, now_ms)
        self._cache.hits += granted is not None
        return granted

    def _take_held(self, chain: Chain, cost: Mapping[str, int], now_ms: int) -> GrantFields | None:
        """Take a cost at every level from what is held, and count it as asked for; else return None."""
        found: list[Taken] = []
        for name in cost:
            if name not in chain.names:
                return None
        for level, _ in chain.homes:
            bucket = self.held.get((level.key.pk, level.priority))
            taken = None
            if bucket is not None and bucket.serves(level):
                taken = bucket.take(cost, now_ms)
            if taken is None:
                for each in found:
                    each.undo()
                return None
            found.append(taken)
        for taken in found:
            self._count(taken.bucket, cost, now_ms)
        return chain, cost, (), now_ms, NOTHING, None, None, tuple(found)

    def _count(self, bucket: HeldBucket, cost: Mapping[str, int], now_ms: int) -> None:
        """Count a grant from what is held, and draw more before it runs out."""
        self.held.counters.granted += 1
        bucket.count(cost, now_ms)
        self._refill_if_low(bucket)

    async def take(
        self,
        chain: Chain,
        cost: Mapping[str, int],
        now_ms: int,
        deadline: Deadline,
        options: AcquireOptions,
        holder: str | None = None,
        turn: Turn | None = None,
    ) -> Grant:
        """Take ``cost`` as `Engine.take` does, from what is held where that is possible and ``options`` allow it."""
        counts, is_exact = True, options.exact or options.atomic or bool(chain.joined)
        for _ in tries(chain.homes[0].level.key.pk):
            try:
                if chain.joined:
                    return await self.engine.take(chain, cost, now_ms, deadline, options.atomic, holder, turn)
                if is_exact:
                    whole = chain.part(tuple(range(len(chain.levels))))
                    return await self.engine.take(whole, cost, now_ms, deadline, options.atomic, holder, turn)
                return await self._take_levels(chain, cost, now_ms, deadline, holder, turn, counts)
            except RateLimitExceeded:  # unless others have drawn enough in the meantime
                granted = None if is_exact else self._take_held(chain, cost, self._clock.now_ms())
                if granted is None:
                    raise
                return new_grant(granted)
            except Outdated:
                chain = await self._chains.follow(chain, deadline, charges=True)
                check_known("consume", cost, chain.names)
                now_ms, counts = self._clock.now_ms(), False
        raise AssertionError  # pragma: no cover  # tries() ends by raising

    async def _take_levels(
        self,
        chain: Chain,
        cost: Mapping[str, int],
        now_ms: int,
        deadline: Deadline,
        holder: str | None,
        turn: Turn | None,
        counts: bool,
    ) -> Grant:
        served: list[TakenTokens | None] = [None] * len(chain.homes)
        cold: tuple[int, ...] = ()
        try:
            for place, home in enumerate(chain.homes):
                served[place] = await self._take_level(chain, home, cost, now_ms, deadline, counts)
            cold = tuple([place for place, taken in enumerate(served) if taken is None])
            if not cold:
                self.held.counters.granted += len(served)
                return new_grant((chain, cost, (), now_ms, NOTHING, None, None, tuple(served)))
            grant = await self.engine.take(chain.part(cold), cost, now_ms, deadline, False, holder, turn)
        except BaseException as error:
            for taken in served:
                if taken is not None:
                    taken.undo()
            if isinstance(error, RateLimitExceeded) and len(cold) < len(served):
                raise self._describe(error, chain, cost if holder is None else chain.complete(cost)) from None
            raise
        self.held.counters.granted += len(served) - len(cold)
        whole = chain if grant.chain.whole is None else grant.chain.whole[0]  # with the shards that were charged
        return grant._replace(chain=whole, held=tuple(served) if any(served) else None)

    def _describe(self, error: RateLimitExceeded, chain: Chain, cost: Mapping[str, int]) -> RateLimitExceeded:
        """Return the refusal by some levels of a chain with the statuses of all of them."""
        now_ms = chain.instant(self._clock.now_ms())
        return type(error)(partial(describe, chain.readings_for(cost, now_ms), cost, now_ms))

    async def _take_level(
        self, chain: Chain, home: LevelShard, cost: Mapping[str, int], now_ms: int, deadline: Deadline, counts: bool
    ) -> TakenTokens | None:
        """Take a cost from what is held of one level, drawing more if need be; None if it is not held at all."""
        bucket = self.held.find(home, chain.given, now_ms)
        if bucket is None:
            return None
        if counts:
            bucket.count(cost, now_ms)
        taken = bucket.take(cost, now_ms)
        if taken is not None:
            self._refill_if_low(bucket)
            return taken
        if not (bucket.is_hot or bucket.lots) or not any(cost.get(name) for name in bucket.names):
            return None
        if home.seen.image is None:  # the exact write makes the bucket
            return None
        try:
            grant = await self.engine.take(bucket.chain, cost, now_ms, deadline)
        except Elsewhere:
            return None
        assert grant.held is not None  # as in any grant of such a chain
        return grant.held[0]

    # Drawing and returning in the background.

    def _refill_if_low(self, bucket: HeldBucket) -> None:
        """Draw more tokens in the background before those that are held run out, unless that is under way."""
        if not bucket.is_low or bucket.is_refilling:
            return
        bucket.is_refilling = True
        try:
            self._backend.runtime.start(partial(self._refill, bucket, self.engine))
        except RuntimeError:  # no event loop is running here: the next caller has one
            bucket.is_refilling = False

    async def _refill(self, bucket: HeldBucket, engine: Engine) -> None:
        """Draw more tokens, unless they were returned since that was begun. What fails is left to callers to see."""
        try:
            if bucket.is_refilling:
                await self._write(bucket, engine)
        finally:
            bucket.is_refilling = False

    async def _write(self, bucket: HeldBucket, engine: Engine) -> None:
        """Write what there is to write of a bucket, and draw in advance if it does."""
        with contextlib.suppress(ZAELimiterError, Elsewhere, Outdated):
            await engine.take(bucket.chain, NOTHING, self._clock.now_ms(), engine.begin())

    async def flush(self, engine: Engine | None = None, due_ms: int | None = None) -> None:
        """Return the tokens that are held and write what was gathered; with ``due_ms`` only what is due by then."""
        engine, everything = engine or self.engine, due_ms is None
        found = [bucket for bucket in self.held.active() if due_ms is None or bucket.is_due(due_ms)]
        await engine.run_each([partial(self._write_down, bucket, engine, everything) for bucket in found])

    async def _write_down(self, bucket: HeldBucket, engine: Engine, everything: bool) -> None:
        """Write what was gathered of a bucket; ``everything`` that is held goes back before."""
        bucket.is_refilling = bucket.is_refilling and not everything
        bucket.draws = False
        try:
            for _ in range(_MOST_TRIES):
                if everything:
                    bucket.end_lots()
                await self._write(bucket, engine)
                if bucket.is_idle or not (bucket.is_writing or (everything and bucket.lots)):
                    break
                await engine.pause(_PAUSE_SECONDS)  # somebody else is writing, or has been
        finally:
            bucket.draws = True
        for correction, part in bucket.take_corrections():  # of a bucket that is gone, was split or configured anew
            try:
                await engine.settle_parts(bucket.chain, [part], engine.begin())
            except ZAELimiterError:
                correction.lost = True
                self.held.count_lost(part.shard.level, part.delta)

    def keep_up(self) -> float | None:
        """Write what is due, in a thread of the housekeeper's. Return the seconds until more is, None for never."""
        now_ms = self._clock.now_ms()
        with self._lock:
            self._due_ms = FOR_EVER
        if self._background.needs_loops:
            if self._caller is None or self._caller.is_gone:
                return None  # nobody can write: the next caller wakes it again
            with contextlib.suppress(TimeoutError):
                self._caller.run(partial(self.flush, None, now_ms), self._backend.timeout)
        else:
            engine = self.engine.over(self._background.open_backend())
            run(self.flush(engine, now_ms))
        due_ms = min([bucket.due_ms() for bucket in self.held.active()], default=FOR_EVER)
        if due_ms == FOR_EVER or self.held.is_closed:
            return None
        with self._lock:
            self._due_ms = min(self._due_ms, due_ms)
        return max(_LEAST_PAUSE_MS, due_ms - self._clock.now_ms()) / MILLI

    def _wake(self, due_ms: int) -> None:
        """Have `keep_up` called at an instant, or earlier."""
        with self._lock:
            if due_ms >= self._due_ms or self.held.is_closed:
                return
            self._due_ms = due_ms
        if self._background.needs_loops and (self._caller is None or self._caller.is_gone):
            with contextlib.suppress(RuntimeError):  # not in an event loop: the next caller is
                self._caller = self._backend.runtime.caller()
        HOUSEKEEPER.schedule(Upkeep(self), max(0, due_ms - self._clock.now_ms()) / MILLI)

    def _forget(self) -> None:
        """Start anew in a child process, where nobody looks after anything yet."""
        self._due_ms, self._caller = FOR_EVER, None

    async def close(self) -> None:
        """Return everything and write everything down; draw nothing any more."""
        self.held.is_closed = True
        await self._backend.runtime.run_blocking(partial(HOUSEKEEPER.cancel, Upkeep(self)))
        await self.flush()

    def close_at_exit(self) -> None:
        """Return everything and write everything down, because the program ends without `close`.

        No thread can be started any more: the buckets are written one after the other, and none is begun after the time
        that one call may take. What is left over is lost, as in a crash.
        """
        found = [] if self.held.is_closed else self.held.active()
        if not found or self._background.needs_loops:
            return
        self.held.is_closed = True
        ends = time.monotonic() + self._backend.timeout
        try:
            engine = self.engine.over(self._background.open_backend())
            for bucket in found:
                if time.monotonic() < ends:
                    run(self._write_down(bucket, engine, everything=True))
            self._background.close()
        except Exception as error:  # there is no caller that could handle it
            message, kind = "tokens that were drawn in advance could not be returned: %s", type(error).__name__
            tell(RETURN_LOST, message, error, **self._backend.log_fields(), zae_error_type=kind)


@atexit.register
def _close_all() -> None:
    """Return what limiters hold that the program has not closed."""
    for prefetcher in tuple(_OPEN):
        prefetcher.close_at_exit()
