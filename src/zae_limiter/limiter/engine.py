"""The engine: takes tokens from a chain of buckets with one write, and gives them back.

A decision needs no read: the last sight of each bucket chooses the form of the write, and the store's guards
make it true or answer with the current images. A refusal is only ever given because the numbers say so: by
images that the store has just shown, or by a sight that is recent enough or has refused as much before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..core.decide import Reading, fitting, refusal
from ..core.errors import CapacityExceeded, RateLimiterUnavailable, RateLimitExceeded
from ..records import bucket
from ..records.algebra import Committed, Conflict, Image, Key, Write
from .lane import Ask, Place
from .sights import Sight

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ..records.bucket import Level
    from ..repository.backend import Backend
    from .chains import Chain, Chains
    from .sights import Sights

_MAX_TRIES = 200


class Grant(NamedTuple):
    """Tokens taken: from which levels, and the buckets right after it as of ``now_ms``."""

    levels: tuple[Level, ...]
    cost: Mapping[str, int]
    images: tuple[Image | None, ...]
    now_ms: int
    later: Mapping[str, int]
    """What later requests of the same write took on top."""


class Engine:
    """Charges chains and settles leases."""

    def __init__(self, backend: Backend, chains: Chains, sights: Sights, refusal_ttl_ms: int) -> None:
        self._backend = backend
        self._store = backend.store
        self._clock = backend.clock
        self._runtime = backend.runtime
        self._chains = chains
        self._sights = sights
        self._refusal_ttl_ms = refusal_ttl_ms
        self._instant = backend.store.capabilities.instant
        self._atomic = backend.store.capabilities.free_atomic_commit

    async def admit(self, chain: Chain, cost: Mapping[str, int], timeout: float | None) -> Grant:
        """Take ``cost`` at every level of the chain, or raise `RateLimitExceeded`."""
        ask = Ask(cost)
        if self._instant:
            await self._charge(chain, [ask], timeout)
        else:
            await self._queue(chain, ask, timeout)
        if ask.error is not None:
            raise ask.error
        assert ask.grant is not None  # an ask without an error was granted
        return ask.grant

    async def settle(self, levels: Sequence[Level], delta: Mapping[str, int], timeout: float | None) -> None:
        """Add ``delta`` to what the levels have consumed; runs to its end also if the caller is cancelled."""
        if self._instant:
            await self._settle(levels, delta, timeout)
        else:
            await self._runtime.finish(self._settle(levels, delta, timeout))

    def readings(self, chain: Chain, now_ms: int) -> list[Reading]:
        """The chain as last seen."""
        known = self._sights.known
        sights = ((level, known.get(level.key)) for level in chain.levels)
        return [bucket.reading(level, sight.image if sight else None, now_ms) for level, sight in sights]

    async def look(self, chain: Chain, timeout: float | None) -> None:
        """Read the buckets of the chain."""
        keys = [level.key for level in chain.levels]
        images = await self._store.read(keys, timeout=timeout)
        self._witness(zip(keys, images, strict=True))

    # Merging: one write in flight per chain, the others queue and go out together.

    async def _queue(self, chain: Chain, ask: Ask, timeout: float | None) -> None:
        lane = chain.lane
        try:
            gate = self._runtime.gate()
            if not lane.enter(ask, gate):
                await gate.wait()
                if not ask.leads:
                    return
            await self._runtime.finish(self._fly(chain, ask, timeout))
        except BaseException:
            place = lane.withdraw(ask)
            if place is Place.LEADING:
                lane.leave()
            elif place is Place.LANDED and ask.grant is not None:
                await self.settle(ask.grant.levels, _negated(ask.cost), timeout)
            raise

    async def _fly(self, chain: Chain, leader: Ask, timeout: float | None) -> None:
        lane = chain.lane
        batch = lane.batch(leader)
        try:
            await self._charge(chain, batch, timeout)
        except Exception as error:
            for ask in batch:
                if ask.grant is None and ask.error is None:
                    ask.error = error
        finally:
            lost = lane.land(batch)
            lane.leave()
        for ask in lost:
            assert ask.grant is not None  # land returns granted ones
            await self._settle(ask.grant.levels, _negated(ask.cost), timeout)

    # Deciding.

    async def _charge(self, chain: Chain, asks: list[Ask], timeout: float | None) -> None:
        """Decide every ask: as many as fit, in order, go into one write; the others are refused."""
        now_ms = self._clock.now_ms()
        pending = asks
        certain = lost = False
        for _ in range(_MAX_TRIES):
            batch = pending if len(pending) == 1 else self._fitting(chain, pending, now_ms)
            writes = self._plan(chain.levels, _total(batch), now_ms) if batch else None
            if writes is None:
                if not certain and not self._may_refuse(chain, pending, now_ms):
                    await self.look(chain, timeout)
                    certain = True
                    chain = await self._follow(chain)
                    continue
                await self._refuse(chain, pending, now_ms, timeout)
                return
            if lost:
                # It fits as of the instant of the lost race, so only the form was wrong: again, as of now.
                lost = False
                now_ms = self._clock.now_ms()
                writes = self._plan(chain.levels, _total(batch), now_ms) or writes
            outcome = await self._commit(chain.levels, writes, timeout)
            if isinstance(outcome, Committed):
                self._grant(chain, batch, outcome.images, now_ms)
                if len(batch) == len(pending):
                    return
                pending = [ask for ask in pending if ask.grant is None]
            else:
                self._learn(chain, outcome, _total(batch), now_ms)
                chain = await self._follow(chain)
                lost = True
            certain = True
        raise RateLimiterUnavailable(f"Lost {_MAX_TRIES} races for {chain.levels[0].key.pk} in a row; try again.")

    def _plan(self, levels: Sequence[Level], cost: Mapping[str, int], now_ms: int) -> list[Write] | None:
        """The writes that take ``cost`` from every level, by the last sights; None where it does not fit."""
        writes = []
        known = self._sights.known
        for level in levels:
            sight = known.get(level.key)
            write: Write | None
            if sight is None or sight.image is None:
                slots = level.slots
                if any(name in slots and need > slots[name].rule.capacity for name, need in cost.items()):
                    return None
                write = bucket.create(level, cost, now_ms)
            else:
                write = bucket.charge(level, sight.image, cost, now_ms, sight.hot)
                if write is None:
                    return None
            writes.append(write)
        return writes

    def _fitting(self, chain: Chain, pending: list[Ask], now_ms: int) -> list[Ask]:
        answers = fitting(self.readings(chain, now_ms), [ask.cost for ask in pending], now_ms)
        return [ask for ask, fits in zip(pending, answers, strict=True) if fits]

    async def _commit(
        self, levels: Sequence[Level], writes: list[Write], timeout: float | None
    ) -> Committed | Conflict:
        if self._atomic or len(writes) == 1:
            return await self._store.commit(writes, timeout=timeout)
        return await self._commit_each(levels, writes, timeout)

    async def _commit_each(
        self, levels: Sequence[Level], writes: list[Write], timeout: float | None
    ) -> Committed | Conflict:
        """One round of independent writes; what was committed goes back when another level was not."""
        results = await self._runtime.together([self._store.commit([write], timeout=timeout) for write in writes])
        images: list[Image | None] = []
        current: dict[Key, Image | None] = {}
        failure: BaseException | None = None
        for level, result in zip(levels, results, strict=True):
            if isinstance(result, Committed):
                images.append(result.images[0])
                current[level.key] = result.images[0]
            elif isinstance(result, Conflict):
                current |= result.images
            else:
                failure = result
        if len(images) == len(writes):
            return Committed(tuple(images))
        for level, write, result in zip(levels, writes, results, strict=True):
            if isinstance(result, Committed):
                taken = {name: _taken(write, slot.tc) for name, slot in level.slots.items()}
                current[level.key] = await self._give_back(level, taken, timeout)
        if failure is not None:
            raise failure
        return Conflict(current)

    async def _give_back(self, level: Level, taken: Mapping[str, int], timeout: float | None) -> Image | None:
        write = bucket.settle(level, None, _negated(taken), self._clock.now_ms())
        outcome = await self._store.commit([write], timeout=timeout)
        return outcome.images[0] if isinstance(outcome, Committed) else None

    def _grant(self, chain: Chain, batch: list[Ask], images: tuple[Image | None, ...], now_ms: int) -> None:
        known = self._sights.known
        for level, image in zip(chain.levels, images, strict=True):
            before = known.get(level.key)
            self._sights.remember(level.key, Sight(image, now_ms, None, before.hot if before else frozenset()))
        if len(batch) == 1:
            batch[0].grant = Grant(chain.levels, batch[0].cost, images, now_ms, {})
            return
        later: dict[str, int] = {}
        for ask in reversed(batch):
            ask.grant = Grant(chain.levels, ask.cost, images, now_ms, dict(later))
            for name, amount in ask.cost.items():
                later[name] = later.get(name, 0) + amount

    def _may_refuse(self, chain: Chain, pending: list[Ask], now_ms: int) -> bool:
        """Whether the last sights are reason enough to refuse every ask without asking the store."""
        readings = self.readings(chain, now_ms)
        return all(self._known_refusal(chain, readings, ask.cost, now_ms) for ask in pending)

    def _known_refusal(self, chain: Chain, readings: list[Reading], cost: Mapping[str, int], now_ms: int) -> bool:
        error = refusal(readings, cost, now_ms)
        if error is None:
            return False
        if isinstance(error, CapacityExceeded):
            return True
        if not self._refusal_ttl_ms:
            return False
        violated = {(status.entity_id, status.limit_name) for status in error.violations}
        for level in chain.levels:
            sight = self._sights.known.get(level.key)
            mine = [name for entity_id, name in violated if entity_id == level.entity_id]
            if sight is None or not mine:
                continue
            if 0 <= now_ms - sight.seen_ms <= self._refusal_ttl_ms:
                return True
            refused = sight.refused or {}
            if any(name in refused and cost[name] >= refused[name] for name in mine):
                return True
        return False

    async def _refuse(self, chain: Chain, pending: list[Ask], now_ms: int, timeout: float | None) -> None:
        readings = self.readings(chain, now_ms)
        for ask in pending:
            ask.error = error = refusal(readings, ask.cost, now_ms)
            assert error is not None  # what no write can take, the same numbers refuse
            if not isinstance(error, CapacityExceeded):
                self._remember_refusal(chain, error, ask.cost)
        await self._reshape(chain, now_ms, timeout)

    def _remember_refusal(self, chain: Chain, error: RateLimitExceeded, cost: Mapping[str, int]) -> None:
        for level in chain.levels:
            sight = self._sights.known.get(level.key)
            violated = {s.limit_name: cost[s.limit_name] for s in error.violations if s.entity_id == level.entity_id}
            if sight is None or not violated:
                continue
            before = sight.refused or {}
            refused = {
                **before,
                **{name: min(need, before.get(name, need)) for name, need in violated.items()},
            }
            self._sights.remember(level.key, sight._replace(refused=refused))

    async def _reshape(self, chain: Chain, now_ms: int, timeout: float | None) -> None:
        """Write changed limits down even when nothing is granted: the promised moment counts from here."""
        for level in chain.levels:
            sight = self._sights.known.get(level.key)
            if sight is not None and sight.image is not None and bucket.needs_reshape(level, sight.image):
                write = bucket.reshape(level, sight.image, {}, now_ms)
                if write is not None:
                    outcome = await self._store.commit([write], timeout=timeout)
                    if isinstance(outcome, Committed):
                        self._witness([(level.key, outcome.images[0])])
                    else:
                        self._witness(outcome.images.items())

    def _learn(self, chain: Chain, conflict: Conflict, cost: Mapping[str, int], now_ms: int) -> None:
        """Keep the images of a lost race, and which limits others are writing at this moment."""
        for level in chain.levels:
            if level.key in conflict.images:
                image = conflict.images[level.key]
                hot: frozenset[str] = frozenset()
                if image is not None:
                    bucket.inspect(level.key, image)
                    hot = bucket.crowded(level, image, cost, now_ms)
                self._sights.remember(level.key, Sight(image, self._clock.now_ms(), None, hot))

    def _witness(self, found: Iterable[tuple[Key, Image | None]]) -> None:
        now_ms = self._clock.now_ms()
        for key, image in found:
            self._sights.remember(key, Sight(None if image is None else bucket.inspect(key, image), now_ms))

    async def _follow(self, chain: Chain) -> Chain:
        """The chain under the newest config that its buckets have been charged under."""
        newer: dict[Key, int] = {}
        for level in chain.levels:
            sight = self._sights.known.get(level.key)
            if level.version is not None and sight is not None and sight.image is not None:
                stamped = sight.image[bucket.CONFIG_VERSION]
                if stamped > level.version:
                    newer[level.key] = stamped
        return await self._chains.follow(chain, newer) if newer else chain

    # Settling.

    async def _settle(self, levels: Sequence[Level], delta: Mapping[str, int], timeout: float | None) -> None:
        now_ms = self._clock.now_ms()
        known = self._sights.known
        writes = []
        for level in levels:
            mine = {name: amount for name, amount in delta.items() if amount and name in level.slots}
            if mine:
                sight = known.get(level.key)
                writes.append((level, mine, bucket.settle(level, sight.image if sight else None, mine, now_ms)))
        if self._atomic:
            await self._settle_together(writes, now_ms, timeout)
        else:
            each = [self._settle_together([write], now_ms, timeout) for write in writes]
            for result in await self._runtime.together(each):
                if isinstance(result, BaseException):
                    raise result

    async def _settle_together(
        self, writes: list[tuple[Level, dict[str, int], Write]], now_ms: int, timeout: float | None
    ) -> None:
        """Adds need no guard but that the bucket exists; one that has expired was full."""
        while writes:
            outcome = await self._store.commit([write for _, _, write in writes], timeout=timeout)
            if isinstance(outcome, Committed):
                self._witness((level.key, image) for (level, _, _), image in zip(writes, outcome.images, strict=True))
                return
            again = []
            for level, mine, _ in writes:
                if level.key in outcome.images and outcome.images[level.key] is None:
                    self._sights.forget(level.key)
                    if any(amount > 0 for amount in mine.values()):
                        owed = {name: max(0, amount) for name, amount in mine.items()}
                        again.append((level, mine, bucket.create(level, owed, now_ms)))
                else:
                    again.append((level, mine, bucket.settle(level, None, mine, now_ms)))
            writes = again


def _total(asks: Sequence[Ask]) -> Mapping[str, int]:
    if len(asks) == 1:
        return asks[0].cost
    total: dict[str, int] = {}
    for ask in asks:
        for name, amount in ask.cost.items():
            total[name] = total.get(name, 0) + amount
    return total


def _taken(write: Write, counter: str) -> int:
    return int(write.add.get(counter, 0) or write.put.get(counter, 0))


def _negated(cost: Mapping[str, int]) -> dict[str, int]:
    return {name: -amount for name, amount in cost.items()}
