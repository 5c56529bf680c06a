"""The engine: takes tokens from a chain of buckets with one write, and gives them back.

A decision needs no read: the last sight of each bucket chooses the form of the write, and the store's guards
make it true or answer with the current images. A refusal is only ever given because the numbers say so: by
images that the store has just shown, or by a sight that is recent enough.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ..core.decide import fitting, refusal
from ..core.errors import CapacityExceeded, RateLimiterUnavailable, ValidationError, ZAELimiterError
from ..records import bucket, charging, ledger
from ..records.algebra import Committed, Conflict, Image
from ..stores.port import Swapper
from .amounts import check_known
from .booking import commit_turned
from .committing import commit_parts
from .lane import Ask, Lane, Place
from .planning import Part, plan, plan_widely
from .refusing import known_refusal, remember_refusal, repeated_refusal
from .settling import settle_grant
from .shards import fuller, looks_around, relieve

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator, Mapping, Sequence

    from ..core.decide import Reading
    from ..repository.backend import Backend
    from ..runtime.deadline import Deadline
    from .chain import Chain, Step
    from .chains import Chains

T = TypeVar("T")

_MAX_TRIES = 200
_RECENT_MS = 100
"""How long a look at all shards says which of them has something left."""
NOTHING: dict[str, int] = {}


class Grant(NamedTuple):
    """Tokens taken: from which chain, and its buckets right after it as of ``now_ms``."""

    chain: Chain
    cost: Mapping[str, int]
    images: tuple[Image | None, ...]
    now_ms: int
    later: Mapping[str, int]
    """What others may have taken on top before the images were seen."""
    parts: tuple[Part, ...] | None
    """What was taken from which shards, where it was not all taken from the home shards."""
    settled: bool = False
    """Whether a part of it was settled before: then its place among other charges is not known any more."""

    def portions(self) -> Iterator[tuple[Step, Mapping[str, int], Image | None]]:
        """What was taken where, and the bucket right after it."""
        for position, image in enumerate(self.images):
            if self.parts is None:
                yield self.chain.steps[position], self.cost, image
            else:
                yield self.parts[position].step, self.parts[position].cost, image


new_grant = partial(tuple.__new__, Grant)
"""A `Grant` from all its fields at once."""


def seen_grant(chain: Chain, cost: Mapping[str, int], image: Image, now_ms: int) -> Grant:
    """The grant that has left a chain of one level with ``image``."""
    chain.steps[0].sight.show(image, now_ms)
    return new_grant((chain, cost, (image,), now_ms, NOTHING, None, False))


class Draft(NamedTuple):
    """Who is to be served by one commit, and what it writes; ``wide`` if not by the home shards alone."""

    asks: list[Ask]
    parts: list[Part]
    wide: bool


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
        self._splits = able.partition_writes > 0
        self._swapper = backend.store if isinstance(backend.store, Swapper) else None
        self._merges = merges

    def landed(
        self,
        chain: Chain,
        parts: Sequence[Part],
        cost: Mapping[str, int],
        outcome: Committed | Conflict,
        now_ms: int,
        *,
        wide: bool = False,
    ) -> Grant | None:
        """Learn from the outcome of a planned commit; None where the race was lost."""
        if isinstance(outcome, Conflict):
            self._learn(chain, outcome, cost, now_ms)
            return None
        for (step, taken, *_), image in zip(parts, outcome.images, strict=True):
            level, sight = step
            if sight.hot and charging.undisturbed(level, sight.image, image, taken):
                sight.hot = frozenset()
            sight.lost = 0
            sight.show(None if image is None else bucket.inspect(level.key, image), now_ms)
        return new_grant((chain, cost, outcome.images, now_ms, NOTHING, tuple(parts) if wide else None, False))

    async def admit(self, chain: Chain, cost: Mapping[str, int], deadline: Deadline, atomic: bool = False) -> Grant:
        """Take ``cost`` at every level of the chain, or raise `RateLimitExceeded`."""
        self.refuse_again(chain, cost)
        ask = Ask(cost, deadline, atomic)
        if self.never_suspends:
            await self._charge(chain, [ask], deadline)
        else:
            await self._queue(chain.lanes.of(self._runtime.home()) if self._merges else Lane(), chain, ask)
        error, ask.error = ask.error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # it holds this frame, which must not hold it as well
        assert ask.grant is not None  # an ask without an error was granted
        return ask.grant

    def refuse_again(self, chain: Chain, cost: Mapping[str, int]) -> None:
        """Raise the refusal that is known without asking the store, if there is one."""
        repeated = repeated_refusal(chain, cost, chain.instant(self._clock.now_ms()), self._refusal_ttl_ms)
        if repeated is not None:
            try:
                raise repeated
            finally:
                del repeated  # it holds this frame, which must not hold it as well

    def refuse_unasked(self, chain: Chain, cost: Mapping[str, int]) -> None:
        """Raise what can be said while the store does not answer: a refusal that is known, or that it never fits."""
        self.refuse_again(chain, cost)
        now_ms = chain.instant(self._clock.now_ms())
        error = refusal(chain.readings(now_ms), cost, now_ms)
        if isinstance(error, CapacityExceeded):
            raise error

    async def check(self, chain: Chain, cost: Mapping[str, int], deadline: Deadline) -> None:
        """Raise `RateLimitExceeded` where `admit` would, by a look at the buckets; nothing is taken."""
        self.refuse_again(chain, cost)
        ask = Ask(cost, deadline)
        chain, pending = await self._follow(await self.look(chain, deadline), [ask], deadline)
        if not all(rung.complete for rung in chain.rungs):
            chain = await self.look(chain, deadline)
        now_ms = chain.instant(self._clock.now_ms())
        if pending and refusal(chain.readings(now_ms), cost, now_ms) is not None:
            await self._refuse(chain, pending, now_ms, True, deadline)
        if ask.error is not None:
            raise ask.error

    async def grant_nothing(self, chain: Chain, deadline: Deadline) -> Grant:
        """A grant of no cost as of now, of buckets that are moved to their limits if these have changed."""
        now_ms = chain.instant(self._clock.now_ms())
        await self.write_limits_down(chain, now_ms, deadline)
        return new_grant((chain, NOTHING, tuple(sight.image for _, sight in chain.steps), now_ms, NOTHING, None, False))

    async def swap(self, chain: Chain, cost: Mapping[str, int], deadline: Deadline) -> Grant | None:
        """Take ``cost`` from a single bucket that nobody else has written since it was last seen; else None."""
        if self._swapper is None or len(chain.steps) != 1:
            return None
        level = chain.levels[0]
        now_ms = chain.instant(self._clock.now_ms())
        found = await self._swapper.swap(level.key, now_ms, deadline.left(), charging.spend, level, cost, now_ms)
        if isinstance(found, Conflict):
            chain.show(found.images, self._clock.now_ms())
            return None
        return None if found is None else seen_grant(chain, cost, found, now_ms)

    async def settle(self, grant: Grant, delta: Mapping[str, int], deadline: Deadline) -> None:
        """Add ``delta`` to what a grant has consumed; to be called under `finish`."""
        await settle_grant(self._backend, self._chains, grant, delta, deadline)

    async def give_back(self, grants: Sequence[Grant], deadline: Deadline) -> list[ZAELimiterError]:
        """Give grants back whole, all of them even if one fails; returns what went wrong."""
        return await self.finish(self._give_back(grants, deadline))

    async def _give_back(self, grants: Sequence[Grant], deadline: Deadline) -> list[ZAELimiterError]:
        errors = []
        for grant in grants:
            try:
                await settle_grant(self._backend, self._chains, grant, _negated(grant.cost), deadline)
            except ZAELimiterError as error:
                errors.append(error)
        return errors

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` to its end, also if the caller is cancelled."""
        return await (work if self.never_suspends else self._runtime.finish(work))

    async def look(self, chain: Chain, deadline: Deadline) -> Chain:
        """Read the buckets of the chain."""
        if chain.sharded:
            return await self._chains.in_full(chain, deadline)
        keys = [level.key for level, _ in chain.shards()]
        images = await self._store.read(keys, timeout=deadline.left())
        chain.show(dict(zip(keys, images, strict=True)), self._clock.now_ms())
        return chain

    # Merging: one write in flight per chain; the others queue and go out together.

    async def _queue(self, lane: Lane, chain: Chain, ask: Ask) -> None:
        try:
            gate = lane.enter(ask, self._runtime.gate)
            if gate is not None:
                await gate.wait(ask.deadline.left())
                if ask.landed:
                    return
                if not ask.leads:
                    raise RateLimiterUnavailable(
                        f"No decision within {ask.deadline.seconds:.3g} s: other calls were queued before it."
                    )
            await self._runtime.finish(self._fly(lane, chain, ask))
        except BaseException as error:
            place = lane.withdraw(ask)
            dead = isinstance(error, GeneratorExit)  # the event loop is gone: as after a crash, what was taken is taken
            if place is Place.LEADING:
                lane.leave()
            elif place is Place.LANDED and ask.grant is not None and not dead:
                await self.give_back([ask.grant], self._backend.deadline(ask.deadline.seconds))
            raise

    async def _fly(self, lane: Lane, chain: Chain, leader: Ask) -> None:
        batch = lane.batch(leader)
        deadline = leader.deadline
        failure: Exception | None = None
        try:
            await self._charge(chain, batch, deadline)
        except Exception as error:
            failure = error
        finally:
            for ask in batch:
                if ask.grant is None and ask.error is None:
                    ask.error = failure or RateLimiterUnavailable(
                        "The write that was to make the decision was interrupted."
                    )
            lost = lane.land(batch)
            lane.leave()
        if lost:
            await self._give_back(lost, deadline)

    # Deciding.

    async def _charge(self, chain: Chain, asks: list[Ask], deadline: Deadline) -> None:
        """Decide every ask: as many as fit, in order, go into one write; the others are refused."""
        if len(asks) == 1:
            asks[0].grant = await self.swap(chain, asks[0].cost, deadline)
            if asks[0].grant is not None:
                return
        now_ms = chain.instant(self._clock.now_ms())
        pending = asks
        certain = lost = False
        tries = 0
        while tries < _MAX_TRIES:
            before, (chain, pending) = chain, await self._follow(chain, pending, deadline)
            if not pending:
                return
            certain = certain and chain is before
            wide = certain or not (lost or (chain.sharded and self._stale(chain, now_ms)))
            draft = _draft(chain, pending, now_ms, wide=wide)
            if draft is None:
                if await self._refuse(chain, pending, now_ms, certain, deadline):
                    return
                chain = await self.look(chain, deadline)
                certain = True
                tries += 1
                continue
            if lost:
                # It fits as of the instant of the lost race, so only the form was wrong: again, as of now.
                now_ms = chain.instant(self._clock.now_ms())
                draft = _draft(chain, pending, now_ms, wide=wide) or draft
            atomic = any(ask.atomic for ask in draft.asks)
            outcome = await commit_parts(self._backend, draft.parts, now_ms, deadline, atomic=atomic, lost=tries)
            certain = not chain.sharded
            grant = self.landed(chain, draft.parts, _total(draft.asks), outcome, now_ms, wide=draft.wide)
            lost = grant is None
            tries = tries + 1 if lost else 0
            if grant is not None:
                _share(grant, draft.asks)
                pending = [ask for ask in pending if ask.grant is None]
                if self._splits:
                    await self._relieve(chain, draft, now_ms, deadline)
                    chain = await self._rehomed(chain, draft, now_ms, deadline)
                elif not pending:
                    return
        raise RateLimiterUnavailable(f"Too much contention on {chain.levels[0].key.pk}; try again later.")

    async def _rehomed(self, chain: Chain, draft: Draft, now_ms: int, deadline: Deadline) -> Chain:
        """The chain with the homes for the next time: where there was enough, or where there seems to be more."""
        if not chain.sharded:
            return chain
        if draft.wide:
            homes = [part.step for part in draft.parts]
        else:
            with contextlib.suppress(RateLimiterUnavailable):  # the grant stands without it
                chain = await self.look(chain, deadline) if looks_around(chain, now_ms) else chain
            homes = [fuller(rung, now_ms) for rung in chain.rungs]
        return self._chains.rehome(chain, homes) if len(homes) == len(chain.rungs) else chain

    def _stale(self, chain: Chain, now_ms: int) -> bool:
        """Whether there are shards that were not seen for long."""
        return any(now_ms - rung.seen_ms > _RECENT_MS for rung in chain.rungs)

    async def _relieve(self, chain: Chain, draft: Draft, now_ms: int, deadline: Deadline) -> None:
        with contextlib.suppress(RateLimiterUnavailable):  # the grant stands without it
            await relieve(self._backend, chain, draft.asks[0].cost, now_ms, deadline)

    async def _follow(self, chain: Chain, pending: list[Ask], deadline: Deadline) -> tuple[Chain, list[Ask]]:
        """Go on under newer config if a bucket has met it; an ask for a limit that is gone is an error."""
        newer = await self._chains.follow(chain, deadline)
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

    async def _refuse(self, chain: Chain, pending: list[Ask], now_ms: int, certain: bool, deadline: Deadline) -> bool:
        """Refuse every ask; False where the sights are not reason enough and the store must be asked."""
        if certain:
            errors = [refusal(chain.offers(ask.cost, now_ms), ask.cost, now_ms) for ask in pending]
        else:
            errors = [known_refusal(chain, ask.cost, now_ms, self._refusal_ttl_ms) for ask in pending]
            if None in errors:
                return False
        for ask, error in zip(pending, errors, strict=True):
            assert error is not None  # what no write can take, the same numbers refuse
            remember_refusal(chain, error)
            ask.error = error
        if chain.given is None or not all(isinstance(error, CapacityExceeded) for error in errors):
            # Limits that were given with what can never fit leave no trace: there is no moment to count from.
            with contextlib.suppress(RateLimiterUnavailable):  # the refusal stands without it
                await self.write_limits_down(chain, now_ms, deadline)
        return True

    async def write_limits_down(self, chain: Chain, now_ms: int, deadline: Deadline) -> None:
        """Move buckets to changed limits even when nothing is granted: the promised moment counts from here."""
        for level, sight in chain.shards():
            if sight.image is not None and charging.needs_reshape(level, sight.image):
                write = charging.reshape(level, sight.image, NOTHING, now_ms)
                assert write is not None  # nothing always fits
                moved = ledger.turned(level, sight.image, write, now_ms)
                outcome = await commit_turned(self._store, [moved], deadline)
                if isinstance(outcome, Committed):
                    chain.show({level.key: outcome.images[0]}, now_ms)
                else:
                    chain.show(outcome.images, now_ms)

    def _learn(self, chain: Chain, conflict: Conflict, cost: Mapping[str, int], now_ms: int) -> None:
        """Keep the images of a lost race, and which limits others are writing at this moment."""
        chain.show(conflict.images, self._clock.now_ms())
        for level, sight in chain.shards():
            if sight.image is not None and level.key in conflict.images:
                sight.lost += 1
                sight.hot = charging.crowded(level, sight.image, cost, now_ms)


def _draft(chain: Chain, pending: list[Ask], now_ms: int, *, wide: bool) -> Draft | None:
    """What to write for whom: as many as the home shards can take, else one from whatever shards have it."""
    asks = pending if len(pending) == 1 else _fitting(chain.home_readings(now_ms), pending, now_ms)
    parts = plan(chain, _total(asks), now_ms, [ask.cost for ask in asks]) if asks else None
    if parts is not None:
        return Draft(asks, parts, wide=False)
    if wide and chain.sharded:
        different = {tuple(ask.cost.items()): ask for ask in reversed(pending)}
        for ask in reversed(different.values()):
            parts = plan_widely(chain, ask.cost, now_ms)
            if parts is not None:
                return Draft([ask], parts, wide=True)
    return None


def _fitting(readings: list[Reading], pending: list[Ask], now_ms: int) -> list[Ask]:
    answers = fitting(readings, [ask.cost for ask in pending], now_ms)
    return [ask for ask, fits in zip(pending, answers, strict=True) if fits]


def _share(grant: Grant, asks: list[Ask]) -> None:
    """Give each ask its part of what was granted to all of them, with what those after it took on top."""
    if len(asks) == 1:
        asks[0].grant = grant
        return
    later: dict[str, int] = {}
    for ask in reversed(asks):
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
