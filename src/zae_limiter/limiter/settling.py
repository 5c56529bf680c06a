"""Settling: adding to or giving back what a lease took, by writes that nothing can refuse."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..core.errors import RateLimiterUnavailable, ValidationError
from ..records import bucket, ledger, settlement
from ..records.algebra import Committed, Image, Key, Write
from ..records.level import ANCHOR, SHARDS, attribute
from ..records.settlement import Charge
from ..repository.sights import Return
from .booking import commit_turned
from .chain import Step
from .planning import serials

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ..records.level import Level
    from ..records.settlement import Settlement
    from ..repository.backend import Backend
    from ..runtime.deadline import Deadline
    from ..runtime.port import Gate
    from .chain import Chain
    from .chains import Chains
    from .engine import Grant

_MAX_TRIES = 200
_NOTHING: dict[str, int] = {}


class Part(NamedTuple):
    """What is settled at one level: how much, by which charge, and what is given back besides.

    ``more_back`` found no room in another shard of the bucket: it is not taken off the consumption again.
    """

    step: Step
    delta: Mapping[str, int]
    charge: Charge
    more_back: Mapping[str, int] = _NOTHING

    @property
    def gives_back(self) -> bool:
        """Whether something is given back."""
        return bool(self.more_back) or any(amount < 0 for amount in self.delta.values())

    @property
    def is_split(self) -> bool:
        """Whether the shard has been split since it was charged."""
        image = self.step.sight.image
        return image is not None and settlement.is_split(self.step.level, image)

    @property
    def is_gone(self) -> bool:
        """Whether the bucket is not there."""
        return self.step.sight.image is None

    def halves(self, backend: Backend) -> tuple[Part, Part]:
        """The part divided as the balance of its shard was when that was split, the old shard first."""
        level, sight = self.step
        count = level.count
        sibling = level.at(level.shard + count, 2 * count)
        other = Step(sibling, backend.sights.of(sibling.key))
        mine = Step(level.at(level.shard, 2 * count), sight)
        charges = self.charge.halves()
        kept, given = _halved(self.delta)
        more_kept, more_given = _halved(self.more_back)
        return Part(mine, kept, charges[0], more_kept), Part(other, given, charges[1], more_given)

    def settle(self, image: Image, now_ms: int) -> Settlement:
        """Plan the write that settles the part in its bucket, seen as ``image``."""
        made_up = made_up_since(self.step, self.charge, image)
        changes = 1 if self.delta else 0
        return settlement.settle(
            self.step.level, image, self.delta, self.charge, now_ms, changes, self.more_back, made_up
        )


def made_up_since(step: Step, charge: Charge, image: Image) -> dict[str, int]:
    """Return what this process has given back of draws that came after a charge, as far as ``image`` has seen it."""
    shards = image.get(SHARDS, 1)
    return {
        name: step.sight.returned_since(order, charge.made, shards, name, image.get(attribute(name, "cr"), 0))
        for name, order in charge.orders.items()
    }


def keep_returns(step: Step, charge: Charge, credited: Mapping[str, int], image: Image | None) -> None:
    """Remember what a settlement has credited to a bucket that is ``image`` now."""
    if image is None:
        return
    for name, milli in credited.items():
        if milli and name in charge.orders:
            counter = image[attribute(name, "cr")]
            given = Return(charge.made, image.get(SHARDS, 1), name, charge.orders[name], milli, counter)
            step.sight.keep_return(given)


def _halved(amounts: Mapping[str, int]) -> tuple[dict[str, int], dict[str, int]]:
    return {name: amount // 2 for name, amount in amounts.items()}, {
        name: amount - amount // 2 for name, amount in amounts.items()
    }


class OnItsWay:
    """A part that is being settled, for other settlements of this process that have to know what becomes of it."""

    def __init__(self, part: Part, home: object) -> None:
        self.part = part
        self.home = home
        self.ended = False
        self.gates: list[Gate] = []
        sight = part.step.sight
        if sight.returning is None:
            sight.returning = set()
        sight.returning.add(self)

    def end(self) -> None:
        """Let those go on who wait for it."""
        returning = self.part.step.sight.returning
        if returning is not None:
            returning.discard(self)
        self.ended = True
        for gate in self.gates:
            gate.open()

    def follows(self, part: Part, names: Iterable[str], home: object) -> bool:
        """Return whether it settles a later charge of the same bucket, in the same event loop."""
        mine, theirs = self.part.charge, part.charge
        if self.home is not home or mine.made != theirs.made:
            return False
        return any(
            mine.orders[name] > theirs.orders[name] for name in names if name in mine.orders.keys() & theirs.orders
        )


class Settling:
    """One settlement on its way: every level of a grant, to the end."""

    def __init__(self, backend: Backend, chains: Chains, chain: Chain, deadline: Deadline) -> None:
        self._backend = backend
        self._chains = chains
        self._chain = chain
        self._deadline = deadline

    async def settle(self, parts: Sequence[Part]) -> None:
        """Settle all parts; side by side where one commit of them all would cost more."""
        if len(parts) < 2 or self._backend.store.capabilities.free_atomic_commit:
            await self._together(parts)
            return
        for result in await self._backend.runtime.together([self._together([part]) for part in parts]):
            if isinstance(result, BaseException):
                raise result

    async def _together(self, parts: Sequence[Part]) -> dict[str, int]:
        """Settle in one commit; return what of the give-backs found no room."""
        instant = self._backend.store.capabilities.instant  # then no loop is needed, nor running perhaps
        home = None if instant else self._backend.runtime.home()
        under_way = [OnItsWay(part, home) for part in parts if part.gives_back]
        try:
            return await self._settle_once_known(parts, home)
        finally:
            for each in under_way:
                each.end()

    async def _settle_once_known(self, parts: Sequence[Part], home: object) -> dict[str, int]:
        await self._look([part.step for part in parts if part.is_gone])
        for _ in range(_MAX_TRIES):
            images = [part.step.sight.image for part in parts]
            if None in images or any(part.is_split for part in parts):
                return await self._apart(parts)
            now_ms = self._backend.clock.now_ms()
            seen = [(part, image) for part, image in zip(parts, images, strict=True) if image is not None]
            settled = [part.settle(image, now_ms) for part, image in seen]
            if await self._waited(parts, settled, home):
                continue
            changes = [
                ledger.turned(part.step.level, image, each.write, now_ms)
                for (part, image), each in zip(seen, settled, strict=True)
            ]
            outcome = await commit_turned(self._backend.store, changes, self._deadline)
            if isinstance(outcome, Committed):
                for part, each, image in zip(parts, settled, outcome.images, strict=True):
                    part.step.sight.show(image, now_ms)
                    keep_returns(part.step, part.charge, each.credited, image)
                    await self._keep(part.step.level.key, image)
                return _sum([each.uncounted for each in settled])
            for part in parts:
                level, sight = part.step
                if level.key in outcome.images:
                    sight.show(outcome.images[level.key], now_ms)
        raise RateLimiterUnavailable(f"Too much contention on {parts[0].step.level.key.pk}; try again later.")

    async def _waited(self, parts: Sequence[Part], settled: Sequence[Settlement], home: object) -> bool:
        """Wait for a return of a later charge that is on its way, where something would be lost without knowing it.

        Return whether it has ended. Half of the time that is left stays for the write.
        """
        for part, each in zip(parts, settled, strict=True):
            for other in tuple(part.step.sight.returning or ()) if each.uncounted else ():
                if other.follows(part, each.uncounted, home):
                    gate = self._backend.runtime.gate()
                    other.gates.append(gate)
                    return other.ended or await gate.wait(self._deadline.left() / 2)
        return False

    async def _apart(self, parts: Sequence[Part]) -> dict[str, int]:
        """Settle parts of which some have lost their bucket, or half of it."""
        plain = [part for part in parts if not (part.is_split or part.is_gone)]
        uncounted = [await self._together(plain)] if plain else []
        for part in parts:
            if part.is_gone:
                await self._remake(part)
            elif part.is_split:
                uncounted.append(await self._halves(part))
        return _sum(uncounted)

    async def _halves(self, part: Part) -> dict[str, int]:
        """Settle both halves of a shard: what one of them has no room for the other one may have."""
        one, other = part.halves(self._backend)
        left = await self._together([one])
        left = await self._together([other._replace(more_back=_sum([other.more_back, left]))])
        if left and not one.is_gone:
            left = await self._together([one._replace(delta=_NOTHING, more_back=left)])
        return left

    async def _remake(self, part: Part) -> None:
        """Make a bucket that is gone anew where something is owed to it; else only count the usage."""
        delta = part.delta
        if not delta:
            return
        charged = part.step.level.at(0, 1)
        level = await self._in_force(charged)
        sight = self._backend.sights.of(charged.key)
        for _ in range(_MAX_TRIES):
            now_ms = self._backend.clock.now_ms()
            if level is not None and max(delta.values()) > 0:
                write = settlement.remake(level, charged, delta, part.charge, now_ms, next(serials))
                change = ledger.Turned(write, ())
            elif charged.usage_days:
                change = ledger.unhoused(charged, delta, 1, now_ms)
            else:
                return
            outcome = await commit_turned(self._backend.store, [change], self._deadline)
            if isinstance(outcome, Committed):
                sight.show(outcome.images[0], now_ms)
                return
            sight.show(outcome.images.get(charged.key), now_ms)
            if sight.image is not None:
                await self._together([part._replace(step=Step(charged, sight))])
                return
        raise RateLimiterUnavailable(f"Too much contention on {charged.key.pk}; try again later.")

    async def _in_force(self, charged: Level) -> Level | None:
        """The level of an entity under the limits in force now; None where it has none any more."""
        first = self._chain.levels[0]
        name = (first.entity_id, first.resource, self._chain.given)
        try:
            chain = self._chains.known(*name, self._backend.clock.now_ms())
            chain = chain or await self._chains.resolve(*name, self._deadline)
        except ValidationError:  # no limits are stored for it
            return None
        found = next((level for level in chain.levels if level.entity_id == charged.entity_id), None)
        return None if found is None else found.at(0, 1)

    async def _look(self, steps: Sequence[Step]) -> None:
        if steps:
            images = await self._backend.store.read([step.level.key for step in steps], timeout=self._deadline.left())
            for step, image in zip(steps, images, strict=True):
                step.sight.show(image, self._backend.clock.now_ms())

    async def _keep(self, key: Key, image: Image | None) -> None:
        """Put the expiry off where the debts of several clients together outlive what each of them knew of."""
        until_ms = None if image is None else bucket.outlives(image)
        if image is not None and until_ms is not None:
            unmoved = (ANCHOR, "=", image[ANCHOR])  # neither reshaped, which knows the debt, nor split: never expires
            write = Write(key, (unmoved,), expires_at_ms=until_ms)
            await self._backend.store.commit([write], timeout=self._deadline.left())


async def settle_grant(
    backend: Backend, chains: Chains, grant: Grant, delta: Mapping[str, int], deadline: Deadline
) -> None:
    """Add ``delta`` to what every level of a grant has consumed."""
    await Settling(backend, chains, grant.chain, deadline).settle(_parts(grant, delta))


def _parts(grant: Grant, delta: Mapping[str, int]) -> list[Part]:
    """What is settled where: each shard gets back what it gave, the last one the rest."""
    parts = []
    left: dict[str, dict[str, int]] = {}
    portions = list(grant.portions())
    last = {step.level.entity_id: step for step, _, _ in portions}
    for step, cost, image in portions:
        who, slots = step.level.entity_id, step.level.slots
        mine = left.setdefault(who, {name: amount for name, amount in delta.items() if amount and name in slots})
        here = mine if last[who] is step else {name: max(amount, -cost.get(name, 0)) for name, amount in mine.items()}
        left[who] = {name: amount - here[name] for name, amount in mine.items() if amount != here[name]}
        here = {name: amount for name, amount in here.items() if amount}
        if here:
            if image is None:  # nothing was taken, and there was no bucket
                parts.append(Part(step, here, Charge(grant.now_ms, 0, {}, {})))
                continue
            level = step.level.at(step.level.shard, image.get(SHARDS, 1))
            charge = Charge.of(level, image, grant.now_ms, grant.later)
            if grant.settled:
                charge = charge._replace(orders={})
            parts.append(Part(Step(level, step.sight), here, charge))
    return parts


def _sum(several: Sequence[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for amounts in several:
        for name, amount in amounts.items():
            total[name] = total.get(name, 0) + amount
    return total
