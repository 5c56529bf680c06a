"""Settling: adding to or giving back what a lease took, by writes that nothing can refuse."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..core.advance import UnusedAdvance
from ..core.alerts import Alert
from ..core.change import Change
from ..core.credits import SpentLots, sum_up, take_last
from ..core.errors import RateLimiterUnavailable, ResourceDisabled, ValidationError
from ..records import bucket, charging, ledger, migration, settlement, usage
from ..records.algebra import Committed, Image, Write, apply_write, compose
from ..records.ledger import BucketChange
from ..records.level import ANCHOR, HOUR_END, SHARDS, BucketLimits, token_fields
from ..records.settlement import Receipt
from ..records.slots import SeenSlots, TakenSlot, release_slots
from ..records.watching import watch
from ..repository.backend import Backend
from ..runtime.deadline import Deadline
from ..runtime.retries import tries
from ..runtime.serials import serials
from .charge_path import BucketShard, ChargePath
from .charge_paths import ChargePaths
from .grant import Grant, add_up
from .observers import Announcer

_NOTHING: dict[str, int] = {}


class SettlementWrite(NamedTuple):
    """The write that settles a charge, and the alert thresholds that it crosses."""

    write: Write
    alerts: tuple[Alert, ...] = ()


class SettlementPart(NamedTuple):
    """The settlement of one level: how much, and of which charge."""

    shard: BucketShard
    delta: Mapping[str, int]
    receipt: Receipt
    changes: int = 1
    """The number of usage events that it counts for, negative if it undoes grants that were never handed out."""
    lots: SpentLots = ()
    """The part of the give-back that returns to credits."""
    crossed: Sequence[tuple[str, int, int]] = ()
    """Attributes that mark thresholds as announced, before and after a write that is undone: they are set back."""
    slots: tuple[TakenSlot, ...] = ()
    """The slots that it frees."""
    unused: tuple[UnusedAdvance, ...] = ()
    """The part of the give-back that was prefetched and never granted."""

    @property
    def is_split(self) -> bool:
        """Whether the shard has been split since it was charged."""
        image = self.shard.seen.image
        return image is not None and settlement.is_split(self.shard.level, image)

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
        other = BucketShard(sibling, backend.last_seen.of(sibling.key))
        mine = BucketShard(level.at(level.shard, 2 * count), seen)
        receipts, credit = self.receipt.split(), sum_up(self.lots)
        delta = add_up([self.delta, credit])  # credits stay with the old shard
        given = {name: amount - amount // 2 for name, amount in delta.items()}
        kept = {name: amount // 2 - credit.get(name, 0) for name, amount in delta.items()}
        moved = tuple([slot for slot in self.slots if slot.is_in_shard(sibling.shard, 2 * count)])
        stayed = tuple([slot for slot in self.slots if slot not in moved])
        halves = [each._replace(amount=each.amount // 2) for each in self.unused]
        rest = [each._replace(amount=each.amount - each.amount // 2) for each in self.unused]
        given_part = SettlementPart(other, given, receipts[1], self.changes, slots=moved, unused=tuple(halves))
        kept_part = self._replace(shard=mine, delta=kept, receipt=receipts[0], slots=stayed, unused=tuple(rest))
        return kept_part, given_part

    def used(self) -> dict[str, int]:
        """Return what the settlement adds to the usage if there is no bucket to count it."""
        off = self.receipt.returned_overdraft(self.delta)
        beyond = {usage.overdrawn(name): off.get(token_fields(name).overdrawn, 0) for name in self.delta}
        return {**self.delta, **{name: amount for name, amount in beyond.items() if amount}}

    @property
    def owes(self) -> bool:
        """Whether more was used than was taken."""
        return max(self.delta.values(), default=0) > 0

    def settle(self, image: Image, now_ms: int, current: BucketLimits | None = None) -> SettlementWrite:
        """Plan the write that settles the part in its bucket, seen as ``image``.

        ``current`` is the level under the limits in force, if it is known. Debt counts as of now, so a bucket that was
        last charged under other limits is first moved to these, in the same write.
        """
        level, seen = self.shard
        if current is not None and self.owes and seen.limits(current, image, now_ms) is None:
            return self._settle_moved(image, now_ms, current)
        frames, changes = seen.limits(level, image, now_ms), self.changes if self.delta else 0
        lots, unused = self.lots, self.unused
        change = settlement.settle(level, image, self.delta, self.receipt, now_ms, changes, lots, unused, frames)
        if self.slots:
            slots_seen = SeenSlots(image, seen.slots_of(image), now_ms)
            release_slots(level, slots_seen, change, self.slots, self.changes)
        alerts = watch(level, image, change, now_ms) if level.token_limits.watched else ()
        for attr, before, after in self.crossed:
            if image.get(attr) == after:  # else another client has announced something since
                change.equals[attr] = after
                change.put[attr] = before
        return SettlementWrite(charging.write_of(change, level.key, image), alerts)

    def _settle_moved(self, image: Image, now_ms: int, current: BucketLimits) -> SettlementWrite:
        """Plan the write that moves the bucket to the limits in force and settles the part."""
        change = migration.migrate(current, image, _NOTHING, now_ms)
        assert isinstance(change, Change)  # nothing always fits
        moving = charging.write_of(change, current.key, image)
        moved = apply_write(image, moving)
        assert moved is not None  # nothing is deleted
        made = self.settle(moved, now_ms)
        return made._replace(write=compose(moving, made.write))


@dataclass(slots=True)
class Settling:
    """One settlement on its way: every level of a grant, to the end."""

    backend: Backend
    chains: ChargePaths
    chain: ChargePath
    deadline: Deadline
    announcer: Announcer

    async def settle_each(self, parts: Sequence[SettlementPart]) -> None:
        """Settle each in a commit of its own, in parallel."""
        for result in await self.backend.runtime.run_together([self.settle_together([part]) for part in parts]):
            if isinstance(result, BaseException):
                raise result

    async def settle_together(self, parts: Sequence[SettlementPart]) -> None:
        """Settle in one commit."""
        gone = [part.shard for part in parts if part.shard.seen.image is None]
        if gone:
            keys = [shard.level.key for shard in gone]
            images = await self.backend.store.read(keys, timeout=self.deadline.left())
            for shard, image in zip(gone, images, strict=True):
                shard.show(image, self.backend.clock.now_ms())
        for _ in tries(parts[0].shard.level.key.pk):
            seen = [(part, part.shard.seen.image) for part in parts]
            found = [
                (part, image)
                for part, image in seen
                if image is not None and image.get(SHARDS, 1) <= part.shard.level.shard_count
            ]
            if len(found) < len(parts):
                await self._settle_apart(parts)
                return
            owes = any(part.owes for part in parts)
            current = await self._find_levels(stored=True) if owes else {}
            now_ms = self.backend.clock.now_ms()
            planned = [
                (part, image, part.settle(image, now_ms, _level_now(part, image, current) if current else None))
                for part, image in found
            ]
            changes = [self._complete(*each, now_ms) for each in planned]
            outcome = await self.backend.commit_changes(changes, self.deadline)
            if isinstance(outcome, Committed):
                await self._learn(planned, outcome, now_ms, owes=owes)
                return
            for part in parts:
                if part.shard.level.key in outcome.images:
                    part.shard.show(outcome.images[part.shard.level.key], now_ms)
            parts = [part.meet(outcome.images.get(part.shard.level.key)) for part in parts]

    def _complete(self, part: SettlementPart, image: Image, settled: SettlementWrite, now_ms: int) -> BucketChange:
        """Return the change that settles a part, with the usage and the events that belong into its commit."""
        level, (write, alerts) = part.shard.level, settled
        change = BucketChange(write, ())
        if level.usage_days and (write.remove or now_ms >= image.get(HOUR_END, 0)):
            change = ledger.with_usage(level, image, write, now_ms)
        if alerts:
            change = change._replace(accruals=(*change.accruals, *self.announcer.events(level, alerts)))
        return change

    async def _learn(
        self,
        planned: Sequence[tuple[SettlementPart, Image, SettlementWrite]],
        outcome: Committed,
        now_ms: int,
        *,
        owes: bool,
    ) -> None:
        """Keep what was settled, and the images after it.

        Put the expiry off if the debts of several clients together outlive what each of them knew of. The settlement
        stands without that.
        """
        for (part, _, each), image in zip(planned, outcome.images, strict=True):
            level, seen = part.shard
            if outcome.undisturbed:
                seen.show(image, now_ms, write=each.write)
            else:
                part.shard.show(image, now_ms)
            if part.slots:
                for slot in part.slots:
                    slot.ended = True
                seen.keep_freed([(slot.limit_name, slot.number) for slot in part.slots])
            if level.may_overdraw:
                self.announcer.announce_overdraft(level, each.write, now_ms)
            if each.alerts:
                await self.announcer.announce_alerts(level, each.alerts, self.deadline)
            until_ms = bucket.required_expiry(image) if owes and image is not None and part.owes else None
            if image is not None and until_ms is not None:
                # Unless it has moved: one that was migrated knows the debt, and one that was split never expires.
                write = Write(level.key, ((ANCHOR, "=", image[ANCHOR]),), expires_at_ms=until_ms)
                with contextlib.suppress(RateLimiterUnavailable):
                    await self.backend.store.commit([write], timeout=self.deadline.left())

    async def _settle_apart(self, parts: Sequence[SettlementPart]) -> None:
        """Settle parts of which some have lost their bucket, or half of it."""
        # Once, before anything is awaited: others may make, split or reset buckets meanwhile.
        gone = [part for part in parts if part.shard.seen.image is None]
        split = [part for part in parts if part.is_split]
        plain = [part for part in parts if part not in gone and part not in split]
        if plain:
            await self.settle_together(plain)
        for part in gone:
            await self._remake(part)
        for part in split:
            for half in part.split(self.backend):
                await self.settle_together([half])

    async def _remake(self, part: SettlementPart) -> None:
        """Make a bucket that is gone again if something is owed to it; else only count the usage."""
        delta = part.delta
        for slot in part.slots:
            slot.lost = slot.ended = True
        if not delta:
            return
        charged = part.shard.level.at(0, 1)
        level = (await self._find_levels()).get(charged.entity_id) if part.owes else None
        shard = BucketShard(charged, self.backend.last_seen.of(charged.key))
        alerts: tuple[Alert, ...] = ()
        for _ in tries(charged.key.pk):
            now_ms = self.backend.clock.now_ms()
            if level is not None:
                level = level.at(0, 1)
                made = settlement.remake(level, charged, delta, part.receipt, now_ms, next(serials))
                alerts = watch(level, None, made, now_ms) if level.token_limits.watched else ()
                write = charging.write_of(made, level.key, None)
                change = BucketChange(write, self.announcer.events(level, alerts))
            elif charged.usage_days:
                change = ledger.usage_without_bucket(charged, part.used(), part.changes, now_ms)
            else:
                return
            outcome = await self.backend.commit_changes([change], self.deadline)
            if isinstance(outcome, Committed):
                shard.show(outcome.images[0], now_ms)
                if alerts:
                    await self.announcer.announce_alerts(charged, alerts, self.deadline)
                return
            shard.show(outcome.images.get(charged.key), now_ms)
            if shard.seen.image is not None:
                await self.settle_together([part._replace(shard=shard)])
                return

    async def _find_levels(self, *, stored: bool = False) -> dict[str, BucketLimits]:
        """Return by entity the level of the chain under the limits in force; only if these are ``stored``, if asked.

        Nothing if there are none any more, or the resource is switched off. A limiter that was closed reads no limits:
        the chain stays as it was charged.
        """
        chain = self.chain
        first = chain.primary_shards[0].level
        if not self.backend.closed:
            try:
                chain = await self.chains.find((first.entity_id, first.resource, chain.given), self.deadline)
                chain = await self.chains.follow(chain, self.deadline)
            except (ValidationError, ResourceDisabled):
                return {}
        if stored and chain.given is not None and chain.given.limits is not None:
            return {}  # limits that came with a call are in force for that call only
        return {home.level.entity_id: home.level for home in chain.primary_shards}


def _level_now(part: SettlementPart, image: Image, current: Mapping[str, BucketLimits]) -> BucketLimits | None:
    """Return the level of a part under the ``current`` limits by entity; None if its bucket has newer ones."""
    level = current.get(part.shard.level.entity_id)
    if level is None:
        return None
    level = level.at(part.shard.level.shard, image.get(SHARDS, 1))
    return None if charging.is_ahead(level, image) else level


def settlement_parts(grant: Grant, delta: Mapping[str, int]) -> list[SettlementPart]:
    """Return where ``delta`` is added to a grant: each shard gets back what it gave, the last one the rest."""
    parts = []
    left: dict[str, dict[str, int]] = {}
    portions = list(grant.portions())
    last = {shard.level.entity_id: shard for shard, _, _, _ in portions}
    for shard, cost, image, part in portions:
        level, who = shard.level, shard.level.entity_id
        here = left.get(who)
        if here is None:
            here = {name: amount for name, amount in delta.items() if amount and name in level.token_limits}
        if last[who] is not shard:
            mine, here = here, {name: max(amount, -cost.get(name, 0)) for name, amount in here.items()}
            left[who] = {name: amount - here[name] for name, amount in mine.items() if amount != here[name]}
            here = {name: amount for name, amount in here.items() if amount}
        slots = () if part is None else tuple([slot for slot in part.slots if not slot.ended])
        if here or slots:
            receipt = Receipt(grant.now_ms, 0)
            if image is not None:  # else nothing was taken, and there was no bucket
                if image.get(SHARDS, 1) != level.shard_count:
                    level = level.at(level.shard, image.get(SHARDS, 1))
                    shard = BucketShard(level, shard.seen)
                taken, later = cost if part is None else part.allowance_cost, grant.later
                if part is not None and part.lots_later:
                    later = add_up([later, {name: -amount for name, amount in part.lots_later.items()}])
                receipt = Receipt.of(level, image, grant.now_ms, later, taken, grant.settled or _NOTHING)
            settled = SettlementPart(shard, here, receipt, slots=slots)
            if part is not None and part.lots:
                _, back = take_last(part.lots, {name: -amount for name, amount in here.items()})
                settled = settled._replace(lots=back)
            parts.append(settled)
    return parts
