"""The engine of a limiter that prefetches: serves acquires from held tokens, and leaves the rest to `Engine`.

Each level of a chain is served on its own: from what is held of it, by a write of its bucket that also draws in
advance, or as part of the exact write of any other acquire. All or nothing holds: what was taken goes back if another
level refuses.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ...core.decide import describe
from ...core.errors import RateLimitExceeded
from ...runtime.retries import tries
from ..amounts import check_known
from ..engine import Engine
from ..grant import NOTHING, new_grant
from ..planning import Outdated
from .corrections import NeedsExactWrite
from .draws import DrawEngine

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...repository.backend import Backend
    from ...runtime.deadline import Deadline
    from ..chain import Chain, LevelShard
    from ..coalescer import Turn
    from ..grant import Grant, GrantFields, TakenTokens
    from ..options import AcquireOptions
    from .bucket import Taken
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

    def take_held(self, chain: Chain, cost: Mapping[str, int], now_ms: int) -> GrantFields | None:
        """Take a cost at every level from what is held; return None, with nothing taken, if it is not all there."""
        found: list[Taken] = []
        for name in cost:
            if name not in chain.names:
                return None
        for level, _ in chain.homes:
            bucket = self.prefetcher.get((level.key.pk, level.priority))
            taken = None
            if bucket is not None and bucket.serves(level):
                taken = bucket.take(cost, now_ms)
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
        chain: Chain,
        cost: Mapping[str, int],
        now_ms: int,
        deadline: Deadline,
        options: AcquireOptions | None = None,
        holder: str | None = None,
        turn: Turn | None = None,
    ) -> Grant:
        """Take ``cost`` as `Engine.take` does, from what is held as far as possible and ``options`` allow it."""
        if chain.joined:
            return await super().take(chain, cost, now_ms, deadline, options, holder, turn)
        exact, counts = options is not None and (options.exact or options.atomic), True
        for _ in tries(chain.homes[0].level.key.pk):
            try:
                if exact:
                    whole = chain.part(tuple(range(len(chain.levels))))
                    return await super().take(whole, cost, now_ms, deadline, options, holder, turn)
                return await self._take_levels(chain, cost, now_ms, deadline, holder, turn, counts)
            except RateLimitExceeded:  # unless others have drawn enough in the meantime
                granted = None if exact else self.take_held(chain, cost, self._clock.now_ms())
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
        """Take a cost level by level from what is held and drawn, and of the other levels by one exact write."""
        served: list[TakenTokens | None] = [None] * len(chain.homes)
        cold: tuple[int, ...] = ()
        try:
            for place, home in enumerate(chain.homes):
                served[place] = await self._take_level(chain, home, cost, now_ms, deadline, counts)
            cold = tuple([place for place, taken in enumerate(served) if taken is None])
            if cold:
                grant = await super().take(chain.part(cold), cost, now_ms, deadline, None, holder, turn)
                whole = chain if grant.chain.whole is None else grant.chain.whole[0]  # with the shards charged
                grant = grant._replace(chain=whole, held=tuple(served) if any(served) else None)
            else:
                grant = new_grant((chain, cost, (), now_ms, NOTHING, None, None, tuple(served)))
        except BaseException as error:
            for taken in served:
                if taken is not None:
                    taken.undo()
            if isinstance(error, RateLimitExceeded) and len(cold) < len(chain.homes):
                raise self._describe(error, chain, cost if holder is None else chain.complete(cost)) from None
            raise
        self.prefetcher.granted += len(served) - len(cold)
        return grant

    def _describe(self, error: RateLimitExceeded, chain: Chain, cost: Mapping[str, int]) -> RateLimitExceeded:
        """Return the refusal by some levels of a chain with the statuses of all of them."""
        now_ms = chain.instant(self._clock.now_ms())
        return type(error)(partial(describe, chain.readings_for(cost, now_ms), cost, now_ms))

    async def _take_level(
        self, chain: Chain, home: LevelShard, cost: Mapping[str, int], now_ms: int, deadline: Deadline, counts: bool
    ) -> TakenTokens | None:
        """Take a cost from what is held of one level, drawing more if need be; None if it needs an exact write."""
        bucket = self.prefetcher.find(home, chain.given)
        if bucket is None:
            return None
        if counts:
            bucket.count(cost, now_ms)
        taken = bucket.take(cost, now_ms)
        if taken is not None:
            self.draws.start_if_low(bucket)
            return taken
        if not (bucket.is_hot or bucket.batches) or not any(cost.get(name) for name in bucket.names):
            return None
        if home.seen.image is None:  # the exact write makes the bucket
            return None
        try:
            grant = await self.draws.take(bucket.chain, cost, now_ms, deadline)
        except NeedsExactWrite:
            return None
        return grant.held[0] if grant.held else None

    async def settle(self, grant: Grant, delta: Mapping[str, int], deadline: Deadline) -> None:
        """Settle a grant: what was taken of held tokens with the next write to their bucket, the rest now."""
        await self.draws.settle(grant, delta, deadline)
