"""The engine of a limiter that prefetches: serves acquires from held tokens, and leaves the rest to `Engine`.

Each level of a chain is served on its own: from what is held of it, by a write of its bucket that also draws in
advance, or as part of the exact write of any other acquire. All or nothing holds: what was taken goes back if another
level refuses.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from ...core.decide import describe
from ...core.errors import RateLimitExceeded
from ...repository.backend import Backend
from ...repository.last_seen import Reserving
from ...runtime.deadline import Deadline
from ...runtime.retries import tries
from ..charge_path import ChargePath
from ..coalescer import Turn
from ..engine import Engine
from ..grant import NOTHING, Grant, GrantFields, TakenTokens, new_grant
from ..options import AcquireOptions, check_known
from ..planning import StalePath
from .batches import NeedsExactWrite
from .bucket import PrefetchedBucket, Taken
from .draws import DrawEngine
from .prefetcher import Prefetcher


def extend(engine: Engine, backend: Backend, prefetcher: Prefetcher) -> PrefetchingEngine:
    """Return an engine like another one that prefetches."""
    extended = engine.over(backend, PrefetchingEngine)
    extended.prefetcher = prefetcher
    extended.draws = prefetcher.draws = engine.over(backend, DrawEngine)
    return extended


class PrefetchingEngine(Engine):
    """Charges chains and settles leases, as far as possible without asking the store."""

    prefetcher: Prefetcher
    draws: DrawEngine

    def take_now(
        self, lease: Reserving, entity_id: str, resource: str, cost: dict[str, int], options: AcquireOptions
    ) -> GrantFields | None:
        """Take the cost of a lease from what is held; return None, with nothing taken, if it is not all there."""
        if not options.plain or options.exact or self._lines.waiting:
            return None
        now_ms, cache = self._clock.now_ms(), self._backend.cache
        try:  # as `ChargePaths.known`
            chain = self._chains.get((entity_id, resource, options.given))
        except TypeError:
            return None
        if chain is None or chain.generation != cache.generation or not chain.since_ms <= now_ms < chain.valid_until_ms:
            return None
        granted = self.take_held(chain, cost, now_ms)
        cache.hits += granted is not None
        return granted

    def take_held(self, chain: ChargePath, cost: Mapping[str, int], now_ms: int) -> GrantFields | None:
        """Take a cost at every level from what is held; return None, with nothing taken, if it is not all there."""
        found: list[Taken] = []
        for name in cost:
            if name not in chain.names:
                return None
        for level, _ in chain.primary_shards:
            bucket = self.prefetcher.get((level.key.pk, level.priority))
            taken = bucket.take(cost, now_ms) if bucket is not None and bucket.serves(level) else None
            if taken is None:
                for each in found:
                    each.undo()
                return None
            found.append(taken)
        for taken in found:
            self.prefetcher.granted += 1
            taken.bucket.count(cost, now_ms)
            self.draws.start_if_low(taken.bucket)
        return chain, cost, (), now_ms, NOTHING, None, None, tuple(found)

    async def take(
        self,
        chain: ChargePath,
        cost: Mapping[str, int],
        now_ms: int,
        deadline: Deadline,
        options: AcquireOptions | None = None,
        holder: str | None = None,
        turn: Turn | None = None,
    ) -> Grant:
        """Take ``cost`` as `Engine.take` does, from held tokens as far as ``options`` allow it."""
        if chain.multi_resource:
            return await super().take(chain, cost, now_ms, deadline, options, holder, turn)
        exact, counts = options is not None and (options.exact or options.atomic), True
        for _ in tries(chain.primary_shards[0].level.key.pk):
            served: list[TakenTokens | None] = [None] * len(chain.primary_shards)
            cold: tuple[int, ...] = ()
            try:
                for place, home in enumerate(() if exact else chain.primary_shards):
                    bucket = self.prefetcher.find(home, chain.given)
                    served[place] = await self._take_level(bucket, cost, now_ms, deadline, counts)
                cold = tuple([place for place, taken in enumerate(served) if taken is None])
                grant = new_grant((chain, cost, (), now_ms, NOTHING, None, None, tuple(served)))
                if cold:
                    grant = await super().take(chain.part(cold), cost, now_ms, deadline, options, holder, turn)
                    whole = chain if grant.chain.whole is None else grant.chain.whole[0]  # with the shards charged
                    grant = grant._replace(chain=whole, prefetched=tuple(served) if any(served) else None)
                self.prefetcher.granted += len(served) - len(cold)
                return grant
            except BaseException as error:
                for taken in filter(None, served):
                    taken.undo()
                if isinstance(error, RateLimitExceeded) and not exact:
                    cost = cost if holder is None else chain.complete(cost)
                    return self._take_after_all(chain, cost, error, len(cold) == len(served))
                if not isinstance(error, StalePath):
                    raise
            chain = await self._chains.follow(chain, deadline, charges=True)
            check_known("consume", cost, chain.names)
            now_ms, counts = self._clock.now_ms(), False
        raise AssertionError  # pragma: no cover  # tries() ends by raising

    def _take_after_all(
        self, chain: ChargePath, cost: Mapping[str, int], error: RateLimitExceeded, is_whole: bool
    ) -> Grant:
        """Take what is held by now, if others have drawn enough; else raise a refusal with the statuses of all levels.

        ``error`` has them already if all levels were asked together.
        """
        now_ms = self._clock.now_ms()
        granted = self.take_held(chain, cost, now_ms)
        if granted is not None:
            return new_grant(granted)
        if is_whole:
            raise error
        now_ms = chain.instant(now_ms)
        raise type(error)(partial(describe, chain.readings_for(cost, now_ms), cost, now_ms)) from None

    async def _take_level(
        self, bucket: PrefetchedBucket | None, cost: Mapping[str, int], now_ms: int, deadline: Deadline, counts: bool
    ) -> TakenTokens | None:
        """Take a cost from what is held of one level, drawing more if need be; None if it needs an exact write."""
        if bucket is None:
            return None
        if counts:
            bucket.count(cost, now_ms)
        taken = bucket.take(cost, now_ms)
        if taken is not None:
            self.draws.start_if_low(bucket)
            return taken
        draws = bucket.home.seen.image is not None and (bucket.is_hot or bucket.batches)  # an exact write makes it
        if not draws or not any(cost.get(name) for name in bucket.names):
            return None
        try:
            grant = await self.draws.take(bucket.chain, cost, now_ms, deadline)
        except NeedsExactWrite:
            return None
        return grant.prefetched[0] if grant.prefetched else None

    async def settle(self, grant: Grant, delta: Mapping[str, int], deadline: Deadline) -> None:
        """Settle a grant: what was taken of held tokens with the next write to their bucket, the rest now."""
        await self.draws.settle(grant, delta, deadline)
        if grant.prefetched is not None and self._backend.closed:  # no other write takes it along
            await self.prefetcher.flush()
