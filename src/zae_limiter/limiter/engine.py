"""The engine: takes tokens from a chain of buckets with one write, and gives them back.

An acquire is decided, committed and learned from. A decision needs no read: what was last seen of each bucket chooses
the form of the write, and the store's guards make it true or answer with the current images. A refusal is only ever
given because the numbers say so: by images that the store has just shown, or by one that is recent enough.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias, TypeVar

from ..core.change import Change
from ..core.decide import refusal
from ..core.errors import CapacityExceeded, RateLimiterUnavailable, ValidationError, ZAELimiterError
from ..core.production import MILLI
from ..logs import RETURN_LOST, log_event
from ..records import charging, ledger, migration
from ..records.algebra import Committed, Conflict, Write
from ..repository.backend import MAX_COMMIT, Backend
from ..runtime.blocking import BlockingRuntime
from ..runtime.deadline import Deadline
from ..runtime.retries import count_loss
from .charge_path import ChargePath
from .charge_paths import ChargePaths
from .coalescer import PendingCharge, Turn, WriteCoalescer
from .committing import EXACT_TRIES, commit_each, commit_marks, commit_transaction
from .deciding import UNKNOWN, CommitPlan, Freshness, Lack, known_refusal, plan_commit, remember_refusal
from .grant import NOTHING, Grant, new_grant
from .observers import Announcer
from .options import AcquireOptions, check_known
from .planning import ShardCharge, StalePath
from .settling import SettlementPart, Settling, settlement_parts
from .waiting import Lines

Charges: TypeAlias = list[PendingCharge[Grant]]

T = TypeVar("T")
E = TypeVar("E", bound="Engine")

_BACK_OFF_MS, _LONGEST_BACK_OFF_MS = 10, 320
"""Longest back-off after losing a race for a slot, from the second loss on, and the most that it grows to."""


class Engine:
    """Charges chains and settles leases."""

    def __init__(
        self,
        backend: Backend,
        chains: ChargePaths,
        refusal_ttl_ms: int,
        announcer: Announcer,
        lines: Lines,
        *,
        merges: bool = True,
    ) -> None:
        self._backend, self._store = backend, backend.store
        self._clock, self._runtime = backend.clock, backend.runtime
        self._chains, self._lines, self._announcer = chains, lines, announcer
        self._refusal_ttl_ms, self._merges = refusal_ttl_ms, merges
        able = backend.store.capabilities
        self.never_suspends = able.instant and able.free_atomic_commit
        blocks = isinstance(backend.runtime, BlockingRuntime)
        self._scope = backend.runtime.scope() if blocks else None
        """The scope of all callers, if it is the same for all."""
        self.runs_through = self.never_suspends or blocks
        """Whether nobody can be cancelled in the middle of a call."""
        self._never_cancels = able.never_cancels
        self._splits, self._atomic = able.partition_writes > 0, able.free_atomic_commit

    def over(self, backend: Backend, kind: type[E]) -> E:
        """Return an engine of a kind over another backend; it is like this one otherwise."""
        return kind(backend, self._chains, self._refusal_ttl_ms, self._announcer, self._lines, merges=self._merges)

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
        """Take ``cost`` at every level of the chain as of ``now_ms``, or raise `RateLimitExceeded`.

        ``options`` say whether it is one transaction. With a ``holder``, also a slot of each concurrency limit that the
        cost does not name. Callers that come while a write of the chain is in flight are decided together.
        """
        charge = PendingCharge[Grant](cost, deadline, options is not None and options.atomic, holder, turn=turn)
        if chain.slot_names:
            if chain.sharded:
                chain = self._chains.use_primary_shards(chain, [level.freed_home(now_ms) for level in chain.levels])
            charge.asked, charge.cost = cost, cost if holder is None else chain.complete(cost)
            chain.check_slots(charge.cost)
        for _, seen in chain.primary_shards:
            if seen.refused:
                self.refuse_again(chain, charge.cost, now_ms)
        if self.never_suspends:
            self._runtime.check_running()
            await self.charge(chain, [charge], now_ms, deadline)
        else:
            scope = self._scope or self._runtime.scope()
            known: WriteCoalescer[Grant] | None = chain.coalescers.get(scope) if self._merges else WriteCoalescer()
            coalescer = known or chain.add_coalescer(scope)
            try:
                if coalescer.lead(charge) is charge or await coalescer.wait_to_lead(charge, self._runtime.new_signal):
                    work = self._charge_batch(coalescer, chain, charge, now_ms)
                    await (work if self.runs_through else self.finish(work))
            except BaseException as error:
                grants = coalescer.withdraw(charge, alone=self.runs_through)
                # Without its event loop it is as after a crash: what was taken is taken.
                if grants and not isinstance(error, GeneratorExit):
                    await self.finish(self._return_orphaned(grants, deadline))
                raise
        if charge.grant is None:
            charge.fail()
        return charge.grant

    def refuse_again(self, chain: ChargePath, cost: Mapping[str, int], now_ms: int) -> None:
        """Raise the refusal that is known without asking the store, if one of the buckets has refused lately."""
        if chain.sharded:
            return
        for level, seen in chain.primary_shards:
            if seen.image is None or seen.limits(level, seen.image, now_ms) is None:
                return
        error = known_refusal(chain, cost, now_ms, self._refusal_ttl_ms)
        if error is not None:
            try:
                raise error
            finally:
                del error  # it holds this frame, which must not hold it as well

    def refuse_without_asking(self, chain: ChargePath, cost: Mapping[str, int], now_ms: int) -> None:
        """Raise what can be said while the store does not answer: a refusal that is known, or that it never fits."""
        self.refuse_again(chain, cost, now_ms)
        now_ms = chain.instant(now_ms)
        error = refusal(chain.readings(now_ms), cost, now_ms)
        if isinstance(error, CapacityExceeded):
            raise error

    async def check(self, chain: ChargePath, cost: Mapping[str, int], now_ms: int, deadline: Deadline) -> None:
        """Raise `RateLimitExceeded` where `take` would, by a look at the buckets; nothing is taken."""
        self.refuse_again(chain, cost, now_ms)
        charge: PendingCharge[Grant] = PendingCharge(cost, deadline)
        chain, pending = await self._follow(await self.look(chain, deadline), [charge], deadline)
        if not all(level.complete for level in chain.levels):
            chain = await self.look(chain, deadline)
        now_ms = chain.instant(self._clock.now_ms())
        if pending and refusal(chain.readings(now_ms), cost, now_ms) is not None:
            await self.refuse(chain, pending, UNKNOWN, now_ms, Freshness.SHOWN, deadline)
        if charge.error is not None:
            raise charge.error

    async def grant_nothing(self, chain: ChargePath, deadline: Deadline) -> Grant:
        """Return a grant of no cost as of now, of buckets that are moved to their limits if these have changed."""
        now_ms = chain.instant(self._clock.now_ms())
        await self.store_limits(chain, now_ms, deadline)
        images = tuple([seen.image for _, seen in chain.primary_shards])
        return new_grant((chain, NOTHING, images, now_ms, NOTHING, None, None, None))

    async def settle(self, grant: Grant, delta: Mapping[str, int], deadline: Deadline) -> None:
        """Add ``delta`` to what a grant has consumed, and wake waiters; to be called under `finish`."""
        try:
            await self.settle_parts(grant.chain, settlement_parts(grant, delta), deadline)
        finally:
            if self._lines.occupied:
                self._lines.stir(grant.chain.roots)

    async def settle_parts(self, chain: ChargePath, parts: Sequence[SettlementPart], deadline: Deadline) -> None:
        """Settle parts of charges of a chain; in parallel if one commit of them all would cost more."""
        settling = Settling(self._backend, self._chains, chain, deadline, self._announcer)
        if parts:
            at_once = self._atomic or len(parts) == 1
            await (settling.settle_together(parts) if at_once else settling.settle_each(parts))

    def finish(self, work: Coroutine[Any, Any, T]) -> Awaitable[T]:
        """Return an awaitable that completes ``work`` even if the caller is cancelled."""
        return work if self.runs_through else self._runtime.finish(work, never_cancels=self._never_cancels)

    async def look(self, chain: ChargePath, deadline: Deadline, marks: Sequence[Write] = ()) -> ChargePath:
        """Read the buckets of the chain; of those that get ``marks`` the writes say what there is."""
        marked = await commit_marks(self._backend, chain, marks, deadline) if marks else ()
        if chain.sharded:
            return await self._chains.read_all_shards(chain, deadline)
        keys = list(dict.fromkeys([level.key for level, _ in chain.shards if level.key not in marked]))
        if keys:
            images = await self._store.read(keys, timeout=deadline.left())
            chain.show(dict(zip(keys, images, strict=True)), self._clock.now_ms())
        return chain

    # Merging: one write in flight per chain; the others queue and go out together.

    async def _charge_batch(
        self, coalescer: WriteCoalescer[Grant], chain: ChargePath, leader: PendingCharge[Grant], now_ms: int
    ) -> None:
        """Decide the leader and all who wait, and give back what was granted to those who have left meanwhile."""
        if leader.decided:  # its caller has left before this began
            return
        now_ms = now_ms if leader.signal is None else self._clock.now_ms()  # it has waited
        leader.batch = batch = coalescer.batch(leader) if coalescer.waiting else [leader]
        failure: Exception | None = None
        try:
            await self.charge(chain, batch, now_ms, leader.deadline)
            with coalescer.lock:
                is_alone = len(batch) == 1 and leader.signal is None and not (coalescer.waiting or leader.abandoned)
                if is_alone and (leader.grant or leader.error) is not None:  # as nearly always
                    leader.decided = True
                    coalescer.end()
        except Exception as error:
            failure = error
        finally:
            orphaned = [] if leader.decided else coalescer.decide(batch, failure)
        if orphaned:
            await self._return_orphaned(orphaned, leader.deadline)

    async def _return_orphaned(self, grants: Sequence[Grant], deadline: Deadline) -> None:
        """Give back what was granted to callers that are gone, within as much time again; log what cannot be."""
        deadline = self._backend.deadline(deadline.seconds)
        for grant in [part for granted in grants for part in granted.split_by_resource()]:
            try:
                await self.settle(grant, {name: -amount for name, amount in grant.cost.items()}, deadline)
            except ZAELimiterError as error:
                level, kind = grant.chain.primary_shards[0].level, type(error).__name__
                whose = {"zae_entity_id": level.entity_id, "zae_resource": level.resource, "zae_error_type": kind}
                lost = {name: -amount // MILLI for name, amount in grant.cost.items() if amount}
                message = "tokens of a cancelled call could not be returned: %s"
                log_event(RETURN_LOST, message, error, **self._backend.log_fields(), **whose, zae_tokens=lost)

    # Deciding, committing, learning.

    _plan_commit = staticmethod(plan_commit)

    async def charge(self, chain: ChargePath, pending: Charges, now_ms: int, deadline: Deadline) -> None:
        """Decide every charge: as many as fit, in order, go into one write; the others are refused."""
        for level, seen in chain.primary_shards:  # as `ChargePath.instant`
            if seen.seen_ms > now_ms and seen.image is not None and not level.slot_limits:
                now_ms = seen.seen_ms
        freshness, lost = Freshness.REMEMBERED, 0
        while pending:
            try:
                chosen = self._plan_commit(chain, pending, now_ms, freshness)
                if isinstance(chosen, CommitPlan) and freshness is Freshness.LOST_RACE:
                    now_ms = chain.instant(self._clock.now_ms())  # it fitted as of the race: only the form was wrong
                    chosen = self._plan_commit(chain, pending, now_ms, freshness)
            except StalePath:
                chain, pending = await self._follow(chain, pending, deadline, charges=True)
                now_ms, freshness = chain.instant(self._clock.now_ms()), Freshness.REMEMBERED
                continue
            if not isinstance(chosen, CommitPlan):
                if await self.refuse(chain, pending, chosen, now_ms, freshness, deadline):
                    return
                lost = count_loss(lost, chain.primary_shards[0].level.key.pk) if freshness is Freshness.SHOWN else lost
                chain, freshness = await self.look(chain, deadline), Freshness.SHOWN
                now_ms = min(now_ms, chain.instant(self._clock.now_ms()))  # the clock may have been set back
                continue
            outcome: Committed | Conflict = Committed(())
            if len(chosen.parts) == 1 or (chosen.parts and self._atomic):
                writes = [part.write for part in chosen.parts]
                for part in chosen.parts:
                    writes += self._announcer.with_events(part) if part.alerts else part.accruals
                left = deadline.ends - deadline.now()  # as `Deadline.left`, without a call
                outcome = await self._store.commit(writes, timeout=left if left > 0 else deadline.left())
            elif chosen.parts:
                outcome = await self._commit_apart(chain, chosen, now_ms, deadline, lost)
            if isinstance(outcome, Conflict):
                lost, freshness = count_loss(lost, chain.primary_shards[0].level.key.pk), Freshness.LOST_RACE
                await self._learn_loss(chain, outcome, chosen, now_ms, lost, deadline)
                continue
            for part in self.learn(chain, chosen, outcome, now_ms):
                await self._announcer.announce_alerts(part.shard.level, part.alerts, deadline)
            chain = await self._chains.spread_load(chain, chosen, now_ms, deadline) if self._splits else chain
            pending = [charge for charge in pending if charge.grant is None]
            lost, freshness = 0, Freshness.REMEMBERED if chain.sharded else Freshness.SHOWN

    async def _commit_apart(
        self, chain: ChargePath, chosen: CommitPlan, now_ms: int, deadline: Deadline, lost: int
    ) -> Committed | Conflict:
        """Apply a plan of several writes where one commit of them costs more; ``lost`` tries came before."""
        if len(chosen.parts) <= MAX_COMMIT and any(charge.atomic for charge in chosen.charges):
            return await commit_transaction(self._backend, chosen.parts, deadline, exact=lost < EXACT_TRIES)
        settle = partial(self.settle_parts, chain, deadline=deadline)
        return await commit_each(self._backend, settle, chosen.parts, now_ms, deadline)

    def learn(self, chain: ChargePath, chosen: CommitPlan, outcome: Committed, now_ms: int) -> list[ShardCharge]:
        """Keep the images after a commit, and give those their grants who were served by it.

        Return the parts that have crossed thresholds.
        """
        charges, cost, parts, uses_other_shards = chosen
        images = outcome.images[: len(parts)]  # behind them those of usage records
        for part, image in zip(parts, images, strict=True):
            level, seen = part.shard
            if seen.lost or seen.contended:
                seen.mark_written(undisturbed=charging.is_undisturbed(level, seen.image, image, part.cost))
            if outcome.undisturbed:
                seen.show(image, now_ms, write=part.write)
            else:
                part.shard.show(image, now_ms)
            if level.token_limits.soft or (level.slot_limits and level.may_overdraw):
                self._announcer.announce_overdraft(level, part.write, now_ms)
            if part.slots and seen.freed:
                seen.forget_freed([(slot.limit_name, slot.number) for slot in part.slots])
        apart = uses_other_shards or chain.slot_names
        grant = new_grant((chain, cost, images, now_ms, NOTHING, tuple(parts) if apart else None, None, None))
        if len(charges) == 1:
            charges[0].grant = grant
        else:
            chosen.share(grant)
        return [part for part in parts if part.alerts]

    async def _learn_loss(
        self, chain: ChargePath, conflict: Conflict, chosen: CommitPlan, now_ms: int, lost: int, deadline: Deadline
    ) -> None:
        """Keep the images of a lost race, and which limits others are writing at this moment. Back off from slots.

        A write that did not know the bucket has lost to nobody: it may have been there for long.
        """
        chain.show(conflict.images, self._clock.now_ms())
        for part in chosen.parts:
            level, seen = part.shard
            if part.write.seen is not None and seen.image is not None and level.key in conflict.images:
                names = chain.cost_at(level, chosen.cost) if chain.multi_resource else chosen.cost
                seen.mark_contended(charging.contended_limits(level, seen.image, names, now_ms))
                if part.slots:
                    seen.raced_ms = now_ms
        if chain.slot_names and lost > 1:  # few can win: those who lost would only meet at the next free slot
            from random import random  # on first use: it brings a lot along

            most_ms = min(_BACK_OFF_MS << (lost - 1), _LONGEST_BACK_OFF_MS)
            await self._runtime.new_signal().wait(min(random() * most_ms / MILLI, deadline.left()))

    async def _follow(
        self, chain: ChargePath, pending: Charges, deadline: Deadline, *, charges: bool = False
    ) -> tuple[ChargePath, Charges]:
        """Go on under newer config if a bucket has met it; a charge for a limit that is gone is an error.

        Raise `StalePath` for a part of a chain, which has to be resolved as a whole.
        """
        if chain.whole is not None:
            raise StalePath
        newer = await self._chains.follow(chain, deadline, charges=charges)
        if newer is chain:
            return chain, pending
        left = []
        for charge in pending:
            asked = charge.cost if charge.asked is None else charge.asked
            try:
                check_known("consume", asked, newer.names)
                charge.asked, charge.cost = asked, asked if charge.holder is None else newer.complete(asked)
                left.append(charge)
            except ValidationError as error:
                charge.error = error
        return newer, left

    async def refuse(
        self, chain: ChargePath, pending: Charges, lack: Lack, now_ms: int, freshness: Freshness, deadline: Deadline
    ) -> bool:
        """Refuse every charge, for what the first one lacks if that is known; False if the store must be asked."""
        told_ms = min(now_ms, self._clock.now_ms())  # they differ where the clock was set back
        is_final = freshness is Freshness.SHOWN or (freshness is Freshness.LOST_RACE and not chain.sharded)
        errors = []
        for cost in [charge.cost for charge in pending]:
            error = lack.refuse(chain, cost, now_ms) if is_final and told_ms == now_ms else None
            if error is None:
                if is_final:
                    as_of = chain.instant_for(cost, told_ms) if told_ms < now_ms else now_ms
                    error = refusal(chain.readings_for(cost, as_of), cost, as_of)
                else:
                    error = known_refusal(chain, cost, told_ms, self._refusal_ttl_ms)
                if error is None:  # also where another thread has meanwhile seen the bucket with more in it
                    return False
                remember_refusal(chain, error, cost, now_ms)
            errors.append(error)
        for charge, error in zip(pending, errors, strict=True):
            charge.error = error
        is_given = chain.given is not None and chain.given.limits is not None
        # Limits that were given with what can never fit leave no trace: there is no moment to count from.
        if not (is_given and all(isinstance(error, CapacityExceeded) for error in errors)):
            with contextlib.suppress(RateLimiterUnavailable):  # the refusal stands without it
                await self.store_limits(chain, now_ms, deadline)
        return True

    async def store_limits(self, chain: ChargePath, now_ms: int, deadline: Deadline) -> None:
        """Move buckets to changed limits even when nothing is granted, which tells other processes of the change."""
        for level, seen in chain.shards:
            image = seen.image
            if image is None or seen.limits(level, image, now_ms) is not None or charging.is_ahead(level, image):
                continue
            change = migration.migrate(level, image, NOTHING, now_ms)
            assert isinstance(change, Change)  # nothing always fits
            moved = ledger.with_usage(level, image, charging.write_of(change, level.key, image), now_ms)
            outcome = await self._backend.commit_changes([moved], deadline)
            shown = {level.key: outcome.images[0]} if isinstance(outcome, Committed) else outcome.images
            chain.show(shown, now_ms)
