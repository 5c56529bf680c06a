"""The engine: takes tokens from a chain of buckets with one write, and gives them back.

A decision needs no read: the last sight of each bucket chooses the form of the write, and the store's guards
make it true or answer with the current images. A refusal is only ever given because the numbers say so: by
images that the store has just shown, or by a sight that is recent enough or has refused as much before.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ..core.decide import fitting, refusal
from ..core.errors import RateLimiterUnavailable, ValidationError, ZAELimiterError
from ..records import bucket, charging
from ..records.algebra import Committed, Conflict, Image, Write
from .amounts import check_known
from .committing import commit_chain
from .lane import Ask, Lane, Place
from .refusing import known_refusal, remember_refusal
from .settling import settle_grant

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping, Sequence

    from ..repository.backend import Backend
    from .chains import Chain, Chains

T = TypeVar("T")

_MAX_TRIES = 200
NOTHING: dict[str, int] = {}


class Grant(NamedTuple):
    """Tokens taken: from which chain, and its buckets right after it as of ``now_ms``."""

    chain: Chain
    cost: Mapping[str, int]
    images: tuple[Image | None, ...]
    now_ms: int
    later: Mapping[str, int]
    """What later requests of the same write took on top."""


new_grant = partial(tuple.__new__, Grant)
"""A `Grant` from all its fields at once."""


class Engine:
    """Charges chains and settles leases."""

    def __init__(self, backend: Backend, chains: Chains, refusal_ttl_ms: int, *, merges: bool = True) -> None:
        self._backend = backend
        self._store = backend.store
        self._clock = backend.clock
        self._runtime = backend.runtime
        self._chains = chains
        self._refusal_ttl_ms = refusal_ttl_ms
        able = backend.store.capabilities
        self.never_suspends = able.instant and able.free_atomic_commit
        self._merges = merges

    def plan(self, chain: Chain, cost: Mapping[str, int], now_ms: int) -> list[Write] | None:
        """The writes that take ``cost`` from every level, by the last sights; None where it does not fit."""
        writes = []
        for level, sight in chain.steps:
            image = sight.image
            if image is None:
                write = charging.first_charge(level, cost, now_ms)
            else:
                write = charging.charge(level, image, cost, now_ms, sight.hot, sight.seen_ms)
            if write is None:
                return None
            writes.append(write)
        return writes

    def landed(self, chain: Chain, cost: Mapping[str, int], outcome: Committed | Conflict, now_ms: int) -> Grant | None:
        """Learn from the outcome of a planned commit; None where the race was lost."""
        if isinstance(outcome, Conflict):
            self._learn(chain, outcome, cost, now_ms)
            return None
        images = outcome.images
        for position, (level, sight) in enumerate(chain.steps):
            image = images[position]
            if sight.hot and charging.undisturbed(level, sight.image, image, cost):
                sight.hot = frozenset()
            sight.show(None if image is None else bucket.inspect(level.key, image), now_ms)
        return new_grant((chain, cost, images, now_ms, NOTHING))

    async def admit(self, chain: Chain, cost: Mapping[str, int], timeout: float | None) -> Grant:
        """Take ``cost`` at every level of the chain, or raise `RateLimitExceeded`."""
        ask = Ask(cost)
        if self.never_suspends:
            await self._charge(chain, [ask], timeout)
        else:
            await self._queue(chain.lane if self._merges else Lane(), chain, ask, timeout)
        if ask.error is not None:
            raise ask.error
        assert ask.grant is not None  # an ask without an error was granted
        return ask.grant

    async def settle(self, grant: Grant, delta: Mapping[str, int], timeout: float | None) -> None:
        """Add ``delta`` to what a grant has consumed; runs to its end also if the caller is cancelled."""
        await self._finish(settle_grant(self._backend, grant, delta, timeout))

    async def give_back(self, grants: Sequence[Grant], timeout: float | None) -> list[ZAELimiterError]:
        """Give grants back whole, all of them even if one fails; returns what went wrong."""
        return await self._finish(self._give_back(grants, timeout))

    async def _give_back(self, grants: Sequence[Grant], timeout: float | None) -> list[ZAELimiterError]:
        errors = []
        for grant in grants:
            try:
                await settle_grant(self._backend, grant, _negated(grant.cost), timeout)
            except ZAELimiterError as error:
                errors.append(error)
        return errors

    async def _finish(self, work: Coroutine[Any, Any, T]) -> T:
        return await (work if self.never_suspends else self._runtime.finish(work))

    async def look(self, chain: Chain, timeout: float | None) -> None:
        """Read the buckets of the chain."""
        images = await self._store.read(chain.keys, timeout=timeout)
        chain.show(dict(zip(chain.keys, images, strict=True)), self._clock.now_ms())

    # Merging: one write in flight per chain; the others queue and go out together.

    async def _queue(self, lane: Lane, chain: Chain, ask: Ask, timeout: float | None) -> None:
        try:
            gate = self._runtime.gate()
            if not lane.enter(ask, gate):
                if not await gate.wait(timeout):
                    raise RateLimiterUnavailable(f"No decision within {timeout:g} s: others were ahead.")
                if not ask.leads:
                    return
            await self._runtime.finish(self._fly(lane, chain, ask, timeout))
        except BaseException:
            place = lane.withdraw(ask)
            if place is Place.LEADING:
                lane.leave()
            elif place is Place.LANDED and ask.grant is not None:
                await self.give_back([ask.grant], timeout)
            raise

    async def _fly(self, lane: Lane, chain: Chain, leader: Ask, timeout: float | None) -> None:
        batch = lane.batch(leader)
        failure: Exception = RateLimiterUnavailable("The write that was to decide was interrupted.")
        try:
            await self._charge(chain, batch, timeout)
        except Exception as error:
            failure = error
        finally:
            for ask in batch:
                if ask.grant is None and ask.error is None:
                    ask.error = failure
            lost = lane.land(batch)
            lane.leave()
        await self._give_back(lost, timeout)

    # Deciding.

    async def _charge(self, chain: Chain, asks: list[Ask], timeout: float | None) -> None:
        """Decide every ask: as many as fit, in order, go into one write; the others are refused."""
        now_ms = chain.instant(self._clock.now_ms())
        pending = asks
        certain = lost = False
        for _ in range(_MAX_TRIES):
            chain, pending = await self._follow(chain, pending, timeout)
            if not pending:
                return
            batch = pending if len(pending) == 1 else _fitting(chain, pending, now_ms)
            writes = self.plan(chain, _total(batch), now_ms) if batch else None
            if writes is None:
                if await self._refuse(chain, pending, now_ms, certain, timeout):
                    return
                await self.look(chain, timeout)
                certain = True
                continue
            if lost:
                # It fits as of the instant of the lost race, so only the form was wrong: again, as of now.
                lost = False
                now_ms = chain.instant(self._clock.now_ms())
                writes = self.plan(chain, _total(batch), now_ms) or writes
            outcome = await commit_chain(self._backend, chain.levels, writes, timeout)
            certain = True
            grant = self.landed(chain, _total(batch), outcome, now_ms)
            if grant is None:
                lost = True
                continue
            _share(grant, batch)
            pending = [ask for ask in pending if ask.grant is None]
        raise RateLimiterUnavailable(f"Lost {_MAX_TRIES} races for {chain.levels[0].key.pk} in a row; try again.")

    async def _follow(self, chain: Chain, pending: list[Ask], timeout: float | None) -> tuple[Chain, list[Ask]]:
        """Go on under newer config if a bucket has met it; an ask for a limit that is gone is an error."""
        newer = await self._chains.follow(chain, timeout)
        if newer is chain:
            return chain, pending
        left = []
        for ask in pending:
            try:
                check_known("consume", ask.cost, newer.names)
                left.append(ask)
            except ValidationError as error:
                ask.error = error
        return newer, left

    async def _refuse(
        self, chain: Chain, pending: list[Ask], now_ms: int, certain: bool, timeout: float | None
    ) -> bool:
        """Refuse every ask; False where the sights are not reason enough and the store must be asked."""
        if certain:
            readings = chain.readings(now_ms)
            errors = [refusal(readings, ask.cost, now_ms) for ask in pending]
        else:
            errors = [known_refusal(chain, ask.cost, now_ms, self._refusal_ttl_ms) for ask in pending]
            if None in errors:
                return False
        for ask, error in zip(pending, errors, strict=True):
            assert error is not None  # what no write can take, the same numbers refuse
            remember_refusal(chain, error, ask.cost)
            ask.error = error
        with contextlib.suppress(RateLimiterUnavailable):  # the refusal stands without it
            await self.write_limits_down(chain, now_ms, timeout)
        return True

    async def write_limits_down(self, chain: Chain, now_ms: int, timeout: float | None) -> None:
        """Move buckets to changed limits even when nothing is granted: the promised moment counts from here."""
        for level, sight in chain.steps:
            if sight.image is not None and charging.needs_reshape(level, sight.image):
                write = charging.reshape(level, sight.image, NOTHING, now_ms)
                assert write is not None  # nothing always fits
                outcome = await self._store.commit([write], timeout=timeout)
                if isinstance(outcome, Committed):
                    chain.show({level.key: outcome.images[0]}, now_ms)
                else:
                    chain.show(outcome.images, now_ms)

    def _learn(self, chain: Chain, conflict: Conflict, cost: Mapping[str, int], now_ms: int) -> None:
        """Keep the images of a lost race, and which limits others are writing at this moment."""
        chain.show(conflict.images, self._clock.now_ms())
        for level, sight in chain.steps:
            if sight.image is not None and level.key in conflict.images:
                sight.hot = charging.crowded(level, sight.image, cost, now_ms)


def _fitting(chain: Chain, pending: list[Ask], now_ms: int) -> list[Ask]:
    answers = fitting(chain.readings(now_ms), [ask.cost for ask in pending], now_ms)
    return [ask for ask, fits in zip(pending, answers, strict=True) if fits]


def _share(grant: Grant, batch: list[Ask]) -> None:
    """Give each ask its part of what was granted to all of them, with what those after it took on top."""
    later: dict[str, int] = {}
    for ask in reversed(batch):
        ask.grant = grant._replace(cost=ask.cost, later=dict(later))
        for name, amount in ask.cost.items():
            later[name] = later.get(name, 0) + amount


def _total(asks: Sequence[Ask]) -> Mapping[str, int]:
    if len(asks) == 1:
        return asks[0].cost
    total: dict[str, int] = {}
    for ask in asks:
        for name, amount in ask.cost.items():
            total[name] = total.get(name, 0) + amount
    return total


def _negated(cost: Mapping[str, int]) -> dict[str, int]:
    """A cost as it is given back."""
    return {name: -amount for name, amount in cost.items()}
