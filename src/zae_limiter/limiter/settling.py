"""Settling: adding to or giving back what a lease took, by writes that nothing can refuse."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ..core.credit import sum_up, take_last
from ..core.errors import RateLimiterUnavailable, ValidationError
from ..records import bucket, ledger, settlement, usage
from ..records.algebra import Committed, Write
from ..records.level import ANCHOR, SHARDS, attribute
from ..records.settlement import Charge
from ..records.slots import with_freed
from ..records.watching import watch
from ..repository.last_seen import Return
from ..runtime.retries import tries
from .chain import LevelShard
from .planning import add_up, serials

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ..core.alerts import Alert
    from ..core.credit import SpentLots
    from ..records.algebra import Image
    from ..records.ledger import BucketChange
    from ..records.level import Level
    from ..records.settlement import SettlementWrite
    from ..records.slots import TakenSlot
    from ..repository.backend import Backend
    from ..runtime.deadline import Deadline
    from ..runtime.port import Signal
    from .announcing import Announcer
    from .chain import Chain
    from .chains import Chains
    from .grant import Grant

_NOTHING: dict[str, int] = {}
LONGEST_WAIT = 0.5
"""For how many seconds a give-back waits at most for others that it would be worth more after."""


class SettlementPart(NamedTuple):
    """The settlement of one level: how much, of which charge, and what is given back besides.

    ``more_back`` found no room in another shard of the bucket: it is not taken off the consumption again.
    ``changes`` is what the settlement counts for in the usage: below 0 where grants are undone that nobody was given.
    ``lots`` is the part of what is given back that goes to credits. ``crossed`` are attributes that say which
    thresholds were announced, with the values before and after a write that is undone: they become what they were.
    ``slots`` are those that it frees.
    """

    shard: LevelShard
    delta: Mapping[str, int]
    charge: Charge
    more_back: Mapping[str, int] = _NOTHING
    changes: int = 1
    lots: SpentLots = ()
    crossed: Sequence[tuple[str, int, int]] = ()
    slots: tuple[TakenSlot, ...] = ()

    @property
    def is_split(self) -> bool:
        """Whether the shard has been split since it was charged."""
        image = self.shard.seen.image
        return image is not None and settlement.is_split(self.shard.level, image)

    @property
    def is_gone(self) -> bool:
        """Whether the bucket is not there."""
        return self.shard.seen.image is None

    def meet(self, image: Image | None) -> SettlementPart:
        """Return the part without the slots that are not its own any more in a bucket as the store has just shown it.

        Of one that is gone or was split nothing is known here.
        """
        if image is None or settlement.is_split(self.shard.level, image):
            return self
        mine = tuple([slot for slot in self.slots if slot.is_ours(image)])
        for slot in self.slots:
            if slot not in mine:
                slot.lost = slot.ended = True
        return self._replace(slots=mine)

    def split(self, backend: Backend) -> tuple[SettlementPart, SettlementPart]:
        """Return the part divided as the balance of its shard was when that was split, the old shard first."""
        level, seen = self.shard
        count = level.shard_count
        sibling = level.at(level.shard + count, 2 * count)
        other = LevelShard(sibling, backend.last_seen.of(sibling.key))
        mine = LevelShard(level.at(level.shard, 2 * count), seen)
        charges, credit = self.charge.split(), sum_up(self.lots)
        delta = add_up([self.delta, credit])  # credits stay with the old shard
        kept, more_kept = ({name: amount // 2 for name, amount in each.items()} for each in (delta, self.more_back))
        given, more_given = (
            {name: amount - amount // 2 for name, amount in each.items()} for each in (delta, self.more_back)
        )
        kept = {name: amount - credit.get(name, 0) for name, amount in kept.items()}
        moved = tuple([slot for slot in self.slots if slot.is_in_shard(sibling.shard, 2 * count)])
        stayed = tuple([slot for slot in self.slots if slot not in moved])
        given_part = SettlementPart(other, given, charges[1], more_given, self.changes, slots=moved)
        kept_part = self._replace(shard=mine, delta=kept, charge=charges[0], more_back=more_kept, slots=stayed)
        return kept_part, given_part

    def used(self) -> dict[str, int]:
        """Return what the settlement adds to the usage where there is no bucket to count it."""
        off = self.charge.returned_overdraft(self.delta)
        beyond = {usage.overdrawn(name): off.get(attribute(name, "ov"), 0) for name in self.delta}
        return {**self.delta, **{name: amount for name, amount in beyond.items() if amount}}

    def settle(self, image: Image, now_ms: int) -> SettlementWrite:
        """Plan the write that settles the part in its bucket, seen as ``image``."""
        (level, seen), charge, shards = self.shard, self.charge, image.get(SHARDS, 1)
        # What this process has given back of draws that came after the charge, as far as the image has seen it.
        made_up = {
            name: seen.returned_since(order, charge.made, shards, name, image.get(attribute(name, "cr"), 0))
            for name, order in charge.orders.items()
        }
        changes = self.changes if self.delta else 0
        made = settlement.settle(level, image, self.delta, charge, now_ms, changes, self.more_back, made_up, self.lots)
        if self.slots:
            made = made._replace(write=with_freed(level, image, made.write, self.slots, now_ms, self.changes))
        if not level.token_limits.watched:
            return made
        write, alerts = watch(level, image, made.write, now_ms)
        for attr, before, after in self.crossed:
            if image.get(attr) == after:  # else somebody else has announced something since
                write = write._replace(guards=(*write.guards, (attr, "=", after)), put={**write.put, attr: before})
        return made._replace(write=write, alerts=alerts)

    def end_slots(self) -> None:
        """Note that the slots were freed."""
        for slot in self.slots:
            slot.ended = True
        self.shard.seen.keep_freed([(slot.limit_name, slot.number) for slot in self.slots])

    def keep_returns(self, credited: Mapping[str, int], image: Image) -> None:
        """Remember what the settlement has credited to the bucket, which is ``image`` now."""
        made, orders = self.charge.made, self.charge.orders
        for name, milli in credited.items():
            if milli and name in orders:
                counter = image[attribute(name, "cr")]
                self.shard.seen.keep_return(Return(made, image.get(SHARDS, 1), name, orders[name], milli, counter))


Planned: TypeAlias = "tuple[SettlementPart, Image, SettlementWrite]"
"""A part, the image by which its settlement is planned, and the plan."""


class SettlementInFlight:
    """A part that is being settled, for other settlements of this process that have to know what becomes of it."""

    def __init__(self, part: SettlementPart, scope: object) -> None:
        self.part = part
        self.scope = scope
        self.ended = False
        self.signals: list[Signal] = []
        part.shard.seen.begin_return(self)

    def end(self) -> None:
        """Let those go on who wait for it."""
        (self.part.shard.seen.returning or set()).discard(self)
        self.ended = True
        for signal in self.signals:
            signal.set()

    def follows(self, part: SettlementPart, names: Iterable[str], scope: object) -> bool:
        """Return whether it settles a later charge of the same bucket, in the same event loop."""
        mine, theirs = self.part.charge, part.charge
        if self.scope is not scope or mine.made != theirs.made:
            return False
        shared = mine.orders.keys() & theirs.orders & set(names)
        return any(mine.orders[name] > theirs.orders[name] for name in shared)


class Settling:
    """One settlement on its way: every level of a grant, to the end."""

    def __init__(
        self, backend: Backend, chains: Chains, chain: Chain, deadline: Deadline, announcer: Announcer
    ) -> None:
        self._backend = backend
        self._chains = chains
        self._chain = chain
        self._deadline = deadline
        self._announcer = announcer

    async def settle(self, parts: Sequence[SettlementPart]) -> None:
        """Settle all parts; side by side where one commit of them all would cost more."""
        if not parts:
            return
        if len(parts) == 1 or self._backend.store.capabilities.free_atomic_commit:
            await self._settle_together(parts)
            return
        for result in await self._backend.runtime.run_together([self._settle_together([part]) for part in parts]):
            if isinstance(result, BaseException):
                raise result

    async def _settle_together(self, parts: Sequence[SettlementPart]) -> dict[str, int]:
        """Settle in one commit; return what of the give-backs found no room."""
        instant = (
            self._backend.store.capabilities.instant
        )  # then no loop is needed, and nobody waits for another thread
        scope = threading.get_ident() if instant else self._backend.runtime.scope()
        giving_back = [part for part in parts if part.more_back or min(part.delta.values(), default=0) < 0]
        under_way = [SettlementInFlight(part, scope) for part in giving_back]
        try:
            gone = [part.shard for part in parts if part.is_gone]
            if gone:
                keys = [shard.level.key for shard in gone]
                images = await self._backend.store.read(keys, timeout=self._deadline.left())
                for shard, image in zip(gone, images, strict=True):
                    shard.show(image, self._backend.clock.now_ms())
            return await self._settle_known(parts, scope)
        finally:
            for each in under_way:
                each.end()

    async def _settle_known(self, parts: Sequence[SettlementPart], scope: object) -> dict[str, int]:
        """Settle parts of which it is known whether there is a bucket."""
        for _ in tries(parts[0].shard.level.key.pk):
            seen = [(part, part.shard.seen.image) for part in parts]
            found = [(part, image) for part, image in seen if image is not None]
            if len(found) < len(parts) or any(part.is_split for part in parts):
                return await self._settle_apart(parts)
            now_ms = self._backend.clock.now_ms()
            planned = [(part, image, part.settle(image, now_ms)) for part, image in found]
            if await self._wait_for_later(planned, scope):
                continue
            changes = [self._complete(*each, now_ms) for each in planned]
            outcome = await self._backend.commit_changes(changes, self._deadline)
            if isinstance(outcome, Committed):
                await self._learn(planned, outcome, now_ms)
                break
            for part in parts:
                if part.shard.level.key in outcome.images:
                    part.shard.show(outcome.images[part.shard.level.key], now_ms)
            parts = [part.meet(outcome.images.get(part.shard.level.key)) for part in parts]
        return add_up([each.uncounted for _, _, each in planned])

    def _complete(self, part: SettlementPart, image: Image, settled: SettlementWrite, now_ms: int) -> BucketChange:
        """Return the change that settles a part, with the usage and the events that belong into its commit."""
        level = part.shard.level
        change = ledger.with_usage(level, image, settled.write, now_ms)
        return change._replace(accruals=(*change.accruals, *self._announcer.events(level, settled.alerts)))

    async def announce(self, level: Level, alerts: Sequence[Alert]) -> None:
        """Announce the thresholds that a write to the bucket of a level has crossed."""
        if alerts:
            await self._announcer.announce_alerts(level, alerts, self._deadline)

    async def _learn(self, planned: Sequence[Planned], outcome: Committed, now_ms: int) -> None:
        """Keep what was settled, and the images after it.

        Put the expiry off where the debts of several clients together outlive what each of them knew of. The settlement
        stands without that.
        """
        for (part, _, each), image in zip(planned, outcome.images, strict=True):
            part.shard.show(image, now_ms)
            if part.slots:
                part.end_slots()
            if part.shard.level.may_overdraw:
                self._announcer.announce_overdraft(part.shard.level, each.write, now_ms)
            await self.announce(part.shard.level, each.alerts)
            if image is None:
                continue
            part.keep_returns(each.credited, image)
            until_ms = bucket.required_expiry(image)
            if until_ms is not None:
                # Unless it has moved: one that was reshaped knows the debt, and one that was split never expires.
                unmoved = (ANCHOR, "=", image[ANCHOR])
                write = Write(part.shard.level.key, (unmoved,), expires_at_ms=until_ms)
                with contextlib.suppress(RateLimiterUnavailable):
                    await self._backend.store.commit([write], timeout=self._deadline.left())

    async def _wait_for_later(self, planned: Sequence[Planned], scope: object) -> bool:
        """Wait for a return of a later charge that is on its way, where something would be lost without knowing it.

        Return whether it has ended. Where they come all the time it is not waited for all of them, and half of the
        time is left for the write.
        """
        patience = min(LONGEST_WAIT, self._deadline.seconds / 2) - self._deadline.elapsed
        for part, _, each in planned if patience > 0 else ():
            for other in tuple(part.shard.seen.returning or ()) if each.uncounted else ():
                if other.follows(part, each.uncounted, scope):
                    signal = self._backend.runtime.new_signal()
                    other.signals.append(signal)
                    return other.ended or await signal.wait(patience)
        return False

    async def _settle_apart(self, parts: Sequence[SettlementPart]) -> dict[str, int]:
        """Settle parts of which some have lost their bucket, or half of it."""
        # Once, before anything is awaited: others may make, split or reset buckets meanwhile.
        gone = [part for part in parts if part.is_gone]
        split = [part for part in parts if part.is_split]
        plain = [part for part in parts if part not in gone and part not in split]
        uncounted = [await self._settle_together(plain)] if plain else []
        for part in gone:
            await self._remake(part)
        uncounted += [await self._settle_halves(part) for part in split]
        return add_up(uncounted)

    async def _settle_halves(self, part: SettlementPart) -> dict[str, int]:
        """Settle both halves of a shard: what one of them has no room for the other one may have."""
        one, other = part.split(self._backend)
        left = await self._settle_together([one])
        left = await self._settle_together([other._replace(more_back=add_up([other.more_back, left]))])
        if left and not one.is_gone:
            left = await self._settle_together([one._replace(delta=_NOTHING, more_back=left)])
        return left

    async def _remake(self, part: SettlementPart) -> None:
        """Make a bucket that is gone anew where something is owed to it; else only count the usage."""
        delta = part.delta
        for slot in part.slots:
            slot.lost = slot.ended = True
        if not delta:
            return
        charged = part.shard.level.at(0, 1)
        level = await self._find_level(charged) if max(delta.values()) > 0 else None
        shard = LevelShard(charged, self._backend.last_seen.of(charged.key))
        alerts: tuple[Alert, ...] = ()
        for _ in tries(charged.key.pk):
            now_ms = self._backend.clock.now_ms()
            if level is not None:
                write = settlement.remake(level, charged, delta, part.charge, now_ms, next(serials))
                write, alerts = watch(level, None, write, now_ms) if level.token_limits.watched else (write, ())
                change = ledger.BucketChange(write, self._announcer.events(level, alerts))
            elif charged.usage_days:
                change = ledger.usage_without_bucket(charged, part.used(), part.changes, now_ms)
            else:
                return
            outcome = await self._backend.commit_changes([change], self._deadline)
            if isinstance(outcome, Committed):
                shard.show(outcome.images[0], now_ms)
                await self.announce(charged, alerts)
                return
            shard.show(outcome.images.get(charged.key), now_ms)
            if shard.seen.image is not None:
                await self._settle_together([part._replace(shard=shard)])
                return

    async def _find_level(self, charged: Level) -> Level | None:
        """Return the level of an entity under the limits in force now, or None if it has none any more."""
        first = self._chain.homes[0].level
        try:
            chain = await self._chains.find(first.entity_id, first.resource, self._chain.given, self._deadline)
        except ValidationError:  # no limits are stored for it
            return None
        found = next((home.level for home in chain.homes if home.level.entity_id == charged.entity_id), None)
        return None if found is None else found.at(0, 1)


def settlement_parts(grant: Grant, delta: Mapping[str, int]) -> list[SettlementPart]:
    """Return where ``delta`` is added to a grant: each shard gets back what it gave, the last one the rest."""
    parts = []
    left: dict[str, dict[str, int]] = {}
    portions = list(grant.portions())
    last = {shard.level.entity_id: shard for shard, _, _, _ in portions}
    for shard, cost, image, part in portions:
        who, entries = shard.level.entity_id, shard.level.token_limits
        mine = left.setdefault(who, {name: amount for name, amount in delta.items() if amount and name in entries})
        here = mine if last[who] is shard else {name: max(amount, -cost.get(name, 0)) for name, amount in mine.items()}
        left[who] = {name: amount - here[name] for name, amount in mine.items() if amount != here[name]}
        here = {name: amount for name, amount in here.items() if amount}
        slots = () if part is None else tuple([slot for slot in part.slots if not slot.ended])
        if here or slots:
            level, charge = shard.level, Charge(grant.now_ms, 0, {}, {})
            if image is not None:  # else nothing was taken, and there was no bucket
                level = level.at(level.shard, image.get(SHARDS, 1))
                later = grant.later
                if part is not None and part.lots_later:
                    later = add_up([later, {name: -amount for name, amount in part.lots_later.items()}])
                charge = Charge.of(level, image, grant.now_ms, later)
                charge = charge._replace(orders={}) if grant.settled is not None else charge
                charge = charge.with_overdrawn(
                    level, cost if part is None else part.allowance_cost, grant.settled or _NOTHING
                )
            settled = SettlementPart(LevelShard(level, shard.seen), here, charge, slots=slots)
            if part is not None and part.lots:
                _, back = take_last(part.lots, {name: -amount for name, amount in here.items()})
                settled = settled._replace(lots=back)
            parts.append(settled)
    return parts
