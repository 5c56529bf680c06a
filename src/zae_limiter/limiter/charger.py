"""Charging requests to any store: taking, checking and settling, with the unavailability policy and the slots."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..core.errors import (
    AccessDeniedError,
    ConfigurationError,
    RateLimiterUnavailable,
    RateLimitExceeded,
    ZAELimiterError,
)
from ..core.production import MILLI
from ..logs import RETURN_LOST, SETTLEMENT_LOST, log_event
from ..observer import Settlement
from ..records.algebra import Write
from ..repository.backend import Backend
from ..repository.last_seen import Reserving
from ..runtime.deadline import Deadline
from .amounts import check_known, in_tokens
from .availability import StoreAvailability
from .chain import ChargePath
from .chains import ChargePaths
from .coalescer import Turn
from .engine import Engine
from .grant import Grant
from .lease_port import Corrections, SettleNow, TakeNow
from .observers import Observers
from .options import AcquireRequest
from .slot_leases import SlotHolder, SlotLeases
from .standing import Request, Standing
from .waiting import Lines


@dataclass(eq=False)
class Charger:
    """Charges the requests of one limiter: the `Charges` of its leases."""

    backend: Backend
    chains: ChargePaths
    engine: Engine
    lines: Lines
    availability: StoreAvailability
    slot_leases: SlotLeases
    observers: Observers
    looks_first: bool
    """Whether every acquire reads the buckets before it is decided."""
    take_now: TakeNow | None = None
    settle_now: SettleNow | None = None
    is_observed: bool = False

    # Taking.

    async def take(self, request: AcquireRequest, note_wait: Callable[[float], None] = lambda _: None) -> Grant | None:
        """Take the cost of a request: at once, or after waiting in line. ``note_wait`` gets the seconds of each pause.

        Return None if the store is unavailable and the caller goes on without it; else raise why nothing is taken.
        """
        options, cost, availability = request.options, request.cost, self.availability
        name, cache = (request.entity_id, request.resource, options.given), self.backend.cache
        timeout, stopwatch, answers = options.timeout, self.backend.stopwatch, availability.answers
        deadline, now_ms = Deadline(stopwatch() + timeout, timeout, stopwatch, timeout), self.backend.clock.now_ms()
        try:  # as `ChargePaths.known`
            chain = self.chains.get(name)
            if chain and (chain.generation != cache.generation or not chain.since_ms <= now_ms < chain.valid_until_ms):
                chain = None
        except TypeError:  # not hashable: no name, as `ChargePaths.resolve` will say
            chain = None
        cache.hits += chain is not None
        if availability.is_open and self._goes_unasked(request, chain):
            return None
        try:
            if chain is None or (self.chains.resolving and self.chains.is_resolving(*name)):
                chain, deadline = await self.chains.resolve_for(name, deadline)
                now_ms = self.backend.clock.now_ms()
            if options.kept or tuple(cost) not in chain.checked:
                self.chains.check_cost(chain, cost, options.kept)
            if options.max_wait_ms or self.lines.waiting or self.looks_first:
                grant = await self._take_in_turn(request, chain, deadline, note_wait)
            else:
                grant = await self.engine.take(chain, cost, now_ms, deadline, options, options.holder)
        except (RateLimiterUnavailable, ConfigurationError) as error:
            availability.report_outage(error, options.policy, deadline, answers)
            self._go_without(request, error)
            return None
        except RateLimitExceeded:
            if chain is not None and any(seen.seen_ms >= now_ms for _, seen in chain.primary_shards):
                availability.report_answer()
            raise
        if grant.prefetched is None or grant.images:  # else the store was not asked
            availability.answers += 1
            if availability.is_open or not availability.is_up:
                availability.report_answer()
        return grant

    def _go_without(self, request: AcquireRequest, error: Exception) -> None:
        """Return if the policy is to go on without the store, which covers no denied access; else raise ``error``."""
        if isinstance(error, RateLimiterUnavailable):
            if not (isinstance(error, AccessDeniedError) or self.availability.blocks(request.options.policy)):
                return
            error.entity_id, error.resource = request.entity_id, request.resources[0]
            error.stack_name = getattr(self.backend.store, "stack_name", None)
        raise error

    def _goes_unasked(self, request: AcquireRequest, chain: ChargePath | None) -> bool:
        """Return whether to go on without asking a store that hangs. Raise a refusal that is known without asking."""
        policy = request.options.policy
        if chain is not None and not self.availability.blocks(policy):
            check_known("consume", request.cost, chain.names)
            self.engine.refuse_without_asking(chain, chain.complete(request.cost), self.backend.clock.now_ms())
        return not self.availability.may_ask(policy, request.options.timeout)

    async def _take_in_turn(
        self, request: AcquireRequest, chain: ChargePath, deadline: Deadline, note_wait: Callable[[float], None]
    ) -> Grant:
        """Take the cost after those who wait in line, or stand in line for at most ``max_wait``."""
        options, cost = request.options, request.cost
        if self.looks_first:
            chain = await self.engine.look(chain, deadline)
        whole = cost if options.holder is None else chain.complete(cost)
        self.lines.check(chain, whole, options.max_wait_ms)
        if not options.max_wait_ms:
            return await self.engine.take(chain, cost, self.backend.clock.now_ms(), deadline, options, options.holder)

        async def attempt(turn: Turn) -> Grant:
            """Try under the limits in force by now, which may have changed while somebody waited."""
            renewed = deadline.renew(deadline.seconds + options.max_wait_ms / 1000)
            known = await self.chains.find(*request.name, renewed)
            check_known("consume", cost, known.names)
            now_ms = self.backend.clock.now_ms()
            return await self.engine.take(known, cost, now_ms, renewed, options, options.holder, turn)

        async def look(marks: Sequence[Write]) -> ChargePath:
            self.backend.check_usable()
            renewed = self.backend.deadline(deadline.seconds)
            return await self.engine.look(await self.chains.find(*request.name, renewed), renewed, marks)

        waiting = Request(chain, whole, options.max_wait_ms, attempt, look, note_wait)
        return await Standing(self.lines, self.backend, waiting).wait()

    async def check(self, request: AcquireRequest) -> bool:
        """Raise as `take` would, but take nothing. Return False if the caller goes on without the store."""
        options, availability, cost = request.options, self.availability, request.cost
        deadline, answers = self.backend.deadline(options.timeout), availability.answers
        if availability.is_open:
            known = self.chains.known(*request.name, self.backend.clock.now_ms())
            if self._goes_unasked(request, known):
                return False
        try:
            deadline = await self.chains.begin(request.entity_id, request.resource, deadline)
            chain = await self.chains.find(*request.name, deadline)
            check_known("consume", cost, chain.names)
            await self.engine.check(chain, chain.complete(cost), self.backend.clock.now_ms(), deadline)
        except (RateLimiterUnavailable, ConfigurationError) as error:
            availability.report_outage(error, options.policy, deadline, answers)
            self._go_without(request, error)
            return False
        availability.report_answer()
        return True

    def hold(
        self, lease: Reserving, request: AcquireRequest, grant: Grant, holder: SlotHolder | None = None
    ) -> SlotHolder:
        """Renew the slots of a grant until they are settled. Return the holder of all slots of the lease."""
        holder = holder or SlotHolder(lease, request, self.backend.runtime.caller(), self.backend.clock)
        self.slot_leases.hold(holder, grant)
        return holder

    # Settling.

    def notify(self, entity_id: str, resource: str, taken: Mapping[str, int], delta: Mapping[str, int]) -> None:
        """Tell the observers how a lease that has ``taken`` so much is corrected."""
        estimated = {name: taken.get(name, 0) // MILLI for name in delta}
        correction = {name: amount // MILLI for name, amount in delta.items()}
        self.observers.notify("on_settlement", Settlement(entity_id, resource, estimated, correction))

    async def settle(self, corrections: Sequence[Corrections], failed: bool = False) -> None:
        """Write corrections, all of them even if one fails or the caller is cancelled; then raise the first failure.

        What ``failed`` calls give back is only logged if it fails: the exception of the caller matters more.
        """
        work = self._settle_all(corrections, failed)
        is_prefetched = all(
            grant is not None and grant.is_prefetched for each in corrections for grant, _ in each.shares
        )
        # What waits for the next write waits for nothing here: it cannot be cancelled.
        await (work if is_prefetched and not self.backend.closed else self.engine.finish(work))

    async def _settle_all(self, corrections: Sequence[Corrections], failed: bool) -> None:
        """Settle the shares of each lease, each with a deadline of its own."""
        failures: list[ZAELimiterError] = []
        for each in corrections:
            deadline = self.backend.deadline(each.request.options.timeout)
            slots = () if each.holder is None else each.holder.slots
            lost = [slot for slot in slots if slot.lost]
            self.slot_leases.let_go(slots)
            for grant, delta in each.shares:
                try:
                    await self._settle(each.request, grant, delta, deadline)
                except ZAELimiterError as error:
                    if self._log_loss(each, delta, error, failed=failed):
                        failures.append(error)
            if each.holder is not None:
                self.slot_leases.announce_losses(
                    each.holder, [slot for slot in slots if slot.lost and slot not in lost]
                )
        if self.backend.closed:  # what was written may have opened the store again
            await self.backend.close()
        if failures:
            raise failures.pop(0)

    def _log_loss(self, each: Corrections, delta: Mapping[str, int], error: ZAELimiterError, *, failed: bool) -> bool:
        """Note that a correction was not written, as far as is known. Return whether the caller has to know of it.

        The work is done: if the policy is to go on without the store, the loss is only logged.
        """
        fields = {**self.backend.log_fields(), **each.request.log_fields(error), "zae_tokens": in_tokens(delta)}
        if failed:
            log_event(RETURN_LOST, "tokens of a failed call could not be returned: %s", error, **fields)
            return False
        if isinstance(error, RateLimiterUnavailable):
            each.disclaim(delta)
            if not isinstance(error, AccessDeniedError):
                log_event(SETTLEMENT_LOST, "settlement lost, the estimate stays charged: %s", error, **fields)
                return self.availability.blocks(each.request.options.policy)
        return True

    async def _settle(
        self, request: AcquireRequest, grant: Grant | None, delta: Mapping[str, int], deadline: Deadline
    ) -> None:
        """Settle ``delta`` with one grant, or with none if nothing was taken.

        If the caller may go on without a store that hangs, this waits for it no longer than an acquire does.
        """
        backend, availability, options = self.backend, self.availability, request.options
        if grant is not None and grant.is_prefetched and not backend.closed:  # nothing is asked of the store
            await self.engine.settle(grant, delta, deadline)
            return
        answers = availability.answers
        if not availability.may_ask(options.policy, options.timeout):
            raise RateLimiterUnavailable("The store has not answered lately; it was not asked.")
        try:
            if grant is None:
                chain = await self.chains.find(*request.name, deadline)
                grant = await self.engine.grant_nothing(chain, deadline)
            await self.engine.settle(grant, delta, deadline)
        except RateLimiterUnavailable:
            availability.report_failure(options.policy, deadline, answers)
            raise
        availability.report_answer()
