"""Charging requests to any store: taking, checking and settling, with the unavailability policy and the slots.

`Charger` is what a lease uses: five methods, and two shortcuts that never wait; `ObservedCharger` is observed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias, TypeVar

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
from .availability import StoreAvailability
from .charge_path import ChargePath
from .charge_paths import ChargePaths
from .coalescer import Turn
from .engine import Engine
from .grant import Grant, GrantFields, find_overdrawn
from .observers import Observers
from .options import AcquireOptions, AcquireRequest, check_known, in_tokens
from .slot_leases import SlotHolder, SlotLeases
from .standing import Standing
from .waiting import Lines

T = TypeVar("T")
TakeNow: TypeAlias = Callable[[Reserving, str, str, dict[str, int], AcquireOptions], GrantFields | None]
SettleNow: TypeAlias = Callable[[str, str, GrantFields, Mapping[str, int]], bool]


class Corrections(NamedTuple):
    """What a lease still has to write when it ends."""

    request: AcquireRequest
    shares: Sequence[tuple[Grant | None, Mapping[str, int]]]
    """By grant, or None if nothing was taken before: its correction, in millitokens by limit."""
    disclaim: Callable[[Mapping[str, int]], None]
    """Called with a correction that may not have been written."""
    holder: SlotHolder | None = None


@dataclass(eq=False)
class Charger:
    """Charges the requests of one limiter's leases."""

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
    """Take from one resource. None, with nothing taken, if that has to wait for something."""
    settle_now: SettleNow | None = None
    """Settle one grant. False, with nothing done, if that has to wait for something."""
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
            if chain is None or (self.chains.resolving and self.chains.is_resolving(name)):
                deadline = await self.chains.begin(name, deadline)
                chain = await self.chains.resolve(name, deadline)
                now_ms = self.backend.clock.now_ms()
            if options.kept or tuple(cost) not in chain.checked:
                self.chains.check_cost(chain, cost, options.kept)
            if options.max_wait_ms or self.lines.waiting or self.looks_first:
                grant = await self._take_in_turn(request, chain, deadline, note_wait)
            else:
                grant = await self.engine.take(chain, cost, now_ms, deadline, options, options.holder)
        except (RateLimiterUnavailable, ConfigurationError) as error:
            self._go_without(request, error, deadline, answers)
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

    def _go_without(
        self,
        request: AcquireRequest,
        error: RateLimiterUnavailable | ConfigurationError,
        deadline: Deadline,
        answers: int,
    ) -> None:
        """Return if the policy is to go on without the store, which covers no denied access; else raise ``error``."""
        self.availability.report_outage(error, request.options.policy, deadline, answers)
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
            """Try under the limits in force by now, which may have changed during the wait."""
            renewed = deadline.renew(deadline.seconds + options.max_wait_ms / 1000)
            known = await self.chains.find(request.name, renewed)
            check_known("consume", cost, known.names)
            now_ms = self.backend.clock.now_ms()
            return await self.engine.take(known, cost, now_ms, renewed, options, options.holder, turn)

        async def look(marks: Sequence[Write]) -> ChargePath:
            self.backend.check_usable()
            renewed = self.backend.deadline(deadline.seconds)
            return await self.engine.look(await self.chains.find(request.name, renewed), renewed, marks)

        wait_ms = options.max_wait_ms
        return await Standing(self.lines, self.backend, chain, whole, wait_ms, attempt, look, note_wait).wait()

    async def check(self, request: AcquireRequest) -> bool:
        """Raise as `take` would, but take nothing. Return False if the caller goes on without the store."""
        options, availability, cost = request.options, self.availability, request.cost
        deadline, answers = self.backend.deadline(options.timeout), availability.answers
        known = self.chains.known(request.name) if availability.is_open else None
        if availability.is_open and self._goes_unasked(request, known):
            return False
        try:
            deadline = await self.chains.begin(request.name, deadline)
            chain = await self.chains.find(request.name, deadline)
            check_known("consume", cost, chain.names)
            await self.engine.check(chain, chain.complete(cost), self.backend.clock.now_ms(), deadline)
        except (RateLimiterUnavailable, ConfigurationError) as error:
            self._go_without(request, error, deadline, answers)
            return False
        availability.report_answer()
        return True

    def hold(self, lease: Reserving, request: AcquireRequest, grant: Grant, holder: SlotHolder | None) -> SlotHolder:
        """Renew the slots of a grant until they are settled. Return the holder of all slots of the lease."""
        holder = holder or SlotHolder(lease, request, self.backend.runtime.caller(), self.backend.clock)
        self.slot_leases.hold(holder, grant)
        return holder

    # Settling.

    def notify(self, entity_id: str, resource: str, taken: Mapping[str, int], delta: Mapping[str, int]) -> None:
        """Notify the observers of a correction, by ``delta``, of what a lease has ``taken``."""
        estimated = {name: taken.get(name, 0) // MILLI for name in delta}
        correction = {name: amount // MILLI for name, amount in delta.items()}
        self.observers.notify("on_settlement", Settlement(entity_id, resource, estimated, correction))

    async def settle(self, corrections: Sequence[Corrections], failed: bool = False) -> None:
        """Write corrections, all of them even if one fails or the caller is cancelled; then raise the first failure.

        What ``failed`` calls give back is only logged if it fails: the exception of the caller matters more.
        """
        work, grants = (
            self._settle_all(corrections, failed),
            [grant for each in corrections for grant, _ in each.shares],
        )
        # What waits for the next write waits for nothing here: it cannot be cancelled.
        is_plain = self.engine.runs_through or (
            not self.backend.closed and all(grant is not None and grant.is_prefetched for grant in grants)
        )
        await (work if is_plain else self.engine.finish(work))

    async def _settle_all(self, corrections: Sequence[Corrections], failed: bool) -> None:
        """Settle the shares of each lease, each with a deadline of its own."""
        failures: list[ZAELimiterError] = []
        for each in corrections:
            deadline = self.backend.deadline(each.request.options.timeout)
            kept = [] if each.holder is None else [slot for slot in each.holder.slots if not slot.lost]
            if each.holder is not None:
                self.slot_leases.let_go(each.holder.slots)
            for grant, delta in each.shares:
                try:
                    await self._settle(each.request, grant, delta, deadline)
                except ZAELimiterError as error:
                    if self._log_loss(each, delta, error, failed=failed):
                        failures.append(error)
            if each.holder is not None:
                self.slot_leases.announce_losses(each.holder, [slot for slot in kept if slot.lost])
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
        if availability.is_open and not availability.may_ask(options.policy, options.timeout):
            raise RateLimiterUnavailable("The store has not answered lately; it was not asked.")
        try:
            if grant is None:
                chain = await self.chains.find(request.name, deadline)
                grant = await self.engine.grant_nothing(chain, deadline)
            await self.engine.settle(grant, delta, deadline)
        except RateLimiterUnavailable:
            availability.report_failure(options.policy, deadline, answers)
            raise
        availability.report_answer()


@dataclass(eq=False)
class ObservedCharger(Charger):
    """A charger that notifies observers of its decisions, and of updates of a store inside the process."""

    is_observed: bool = True

    def __post_init__(self) -> None:
        self._take_now, self._settle_now = self.take_now, self.settle_now
        self._notifies_updates = self._settle_now is not None and bool(self.observers.of["on_store_call"])
        if self._take_now is not None:
            self.take_now, self.settle_now = self._take_observed, self._settle_observed

    async def take(self, request: AcquireRequest, note_wait: Callable[[float], None] | None = None) -> Grant | None:
        """Take tokens as any charger does."""
        waits = list[float]()
        return await self._observe(
            request, super().take(request, waits.append), waits if request.options.max_wait_ms else None
        )

    async def check(self, request: AcquireRequest) -> bool:
        """Check a request as any charger does. One that passes decides nothing yet."""
        return await self._observe(request, super().check(request))

    async def _observe(self, request: AcquireRequest, work: Awaitable[T], waits: Sequence[float] | None = None) -> T:
        started, notify = self.observers.now(), self.observers.notify_decision
        try:
            result = await work
        except ZAELimiterError as error:
            notify(request.entity_id, request.resources, error, started, waits)
            raise
        if not result:
            notify(request.entity_id, request.resources, "unavailable_allowed", started, waits)
        elif isinstance(result, Grant):
            notify(request.entity_id, request.resources, "granted", started, waits, find_overdrawn(result))
        return result

    def _take_observed(
        self, lease: Reserving, entity_id: str, resource: str, cost: dict[str, int], options: AcquireOptions
    ) -> GrantFields | None:
        assert self._take_now is not None  # else this is not called
        started, notify = self.observers.now(), self.observers.notify_decision
        try:
            granted = self._take_now(lease, entity_id, resource, cost, options)
        except ZAELimiterError as error:
            if self._notifies_updates and isinstance(error, RateLimitExceeded):
                self.observers.notify_call("update", started, "conflict")
            elif self._notifies_updates:
                self.observers.notify_call("update", started, "failed", error)
            notify(entity_id, (resource,), error, started)
            raise
        if granted is not None:
            if self._notifies_updates:
                self.observers.notify_call("update", started, "done")
            notify(entity_id, (resource,), "granted", started, None, find_overdrawn(granted))
        return granted

    def _settle_observed(self, entity_id: str, resource: str, granted: GrantFields, delta: Mapping[str, int]) -> bool:
        started = self.observers.now()
        is_settled = self._settle_now is not None and self._settle_now(entity_id, resource, granted, delta)
        if is_settled and self._notifies_updates and any(delta.values()):
            self.observers.notify_call("update", started, "done")
        return is_settled


@dataclass(slots=True)
class LeasePort:
    """How leases reach what charges them: the limiter replaces it when observers come or go."""

    charger: Charger = field(init=False)
