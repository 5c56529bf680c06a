"""A lease: tokens that are taken before a block runs and settled when it ends.

The consumption is in the store before the body starts. Corrections are collected and written once, at the end,
as plain adds. An exception gives everything back, unless ``on_error`` says otherwise. A crash leaves the estimate
charged.

`LeaseCore` is all of it; `Lease` and the blocking `SyncLease` only phrase it.

Beside the context manager there is a surface for code that cannot hold a block open, such as a middleware or a task
queue: `enter`, `exit` and their halves that never wait, `check` and `charge`.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Collection, Coroutine, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

from ..core.errors import (
    AccessDeniedError,
    LeaseExpiredError,
    RateLimiterUnavailable,
    ValidationError,
    ZAELimiterError,
)
from ..core.limit import MAX_AMOUNT
from ..core.production import MILLI
from ..forks import protect
from ..logs import RETURN_CUT, RETURN_LOST, SETTLEMENT_LOST, tell
from ..observer import Decision, Outcome, Settlement
from .amounts import check_amounts, check_known, in_tokens
from .grant import Grant, add_share, apportion, find_overdrawn
from .lease_view import LeaseView
from .observers import classify
from .options import CANCEL
from .planning import add_up

if TYPE_CHECKING:
    from ..runtime.deadline import Deadline
    from ..runtime.port import Caller

    T = TypeVar("T")


LOST = "The lease has lost its slot: it was not renewed in time, or somebody has taken it away."
ENTERED_ONCE = "A lease can be entered only once; call acquire() again."

_CORRECTING = threading.RLock()
"""Held while corrections are collected: `LeaseCore.adjust_nowait` is called from any thread."""
protect(_CORRECTING)


class LeaseCore(LeaseView):
    """One acquire, from the request to the settlement."""

    _correctable = False
    """Whether it has ended and `adjust` still writes."""
    _claimed: Mapping[str, int] = {}
    """The part of ``_delta`` that somebody has written or is writing."""
    _stated: Mapping[str, int] = {}
    """The usage by limit that `settle` has stated: a failure leaves it as it is."""
    _waited = 0.0
    """How many seconds its last acquire has stood in line."""
    _others: Sequence[LeaseCore] = ()
    _caller: Caller | None = None
    """Who has entered it, if it holds slots."""
    _told = False
    """Whether whoever wanted to know was told that a slot is lost."""

    def _find_part(self, resource: str) -> Any:
        """Return the lease of one of the resources. Raise `ValidationError` for any other."""
        for name, part in zip(self.resources, (self, *self._others), strict=True):
            if name == resource:
                return part
        known = ", ".join(self.resources)
        raise ValidationError("resource", resource, f"is not a resource of this lease; there are {known}")

    @property
    def is_forsaken(self) -> bool:
        """Whether nobody can end it any more: its event loop was closed."""
        return self._caller is not None and self._caller.is_gone

    def for_entity(self, entity_id: str) -> Self:
        """Return a new lease like this one for another entity: same resource, cost and options, not entered.

        It spares whoever makes many leases alike the checks of `RateLimiter.acquire`.
        """
        return type(self)(self._limiter, entity_id, self._resource, self._cost, self._options)

    def try_enter(self) -> bool:
        """Do what `enter` does if that needs no waiting. Return False, with nothing taken, if `enter` is needed."""
        if self._open or self._granted is not None:
            raise LeaseExpiredError(ENTERED_ONCE)
        take_now = self._limiter._take_now
        self._granted = granted = None if take_now is None else take_now(self)
        self._open = granted is not None
        return self._open

    def try_exit(self, *, final: bool = True) -> bool:
        """End the lease if there is nothing to write. Return False, with the lease still open, if `exit` is needed.

        ``final``: as for `exit`. A lease that is not open is left as it is.
        """
        if self._open:
            self._open = False  # first: a correction that comes later in another thread sees it
            if self._delta is not None:
                self._open = True
                return False
            self._correctable = not final
        return True

    def _settle_at_once(self, failed: bool) -> bool:
        """Settle a lease that has ended if that needs no waiting. Return False, with nothing done, if it does."""
        settle_now, granted = self._limiter._settle_now, self._granted
        if settle_now is None or granted is None or self._extra or self._others or self._claimed:
            return False
        delta = self._failure_delta() if failed else self._delta or {}
        if not settle_now(self, granted, delta):
            return False
        self._claimed = delta
        if self._limiter._observers.all:
            self._tell_settlement(self._taken(), {name: delta[name] for name in self._stated} if failed else delta)
        return True

    def adjust_nowait(self, amounts: Mapping[str, int] | None = None, /, **named: int) -> None:
        """Do what `adjust` does from code that cannot await; safe from any thread, as nothing is written before `exit`.

        ``amounts`` and ``named`` are tokens by limit, as for `adjust`. Raises `LeaseExpiredError` where the lease is
        not open; also after an `exit` that was not final, where only `adjust` itself can write.
        """
        self._collect(self._check_tokens("adjust_nowait", amounts, named, -MAX_AMOUNT), 1)
        self._check_still_open("adjust_nowait")

    def settle_nowait(self, usage: Mapping[str, int] | None = None, /, **named: int) -> None:
        """Do what `settle` does from code that cannot await; safe from any thread, as nothing is written before `exit`.

        ``usage`` and ``named`` are tokens by limit, as for `settle`. Raises `LeaseExpiredError` if the lease is not
        open, even after an `exit` that was not final: only `settle` itself can write then.
        """
        self._state(self._check_tokens("settle_nowait", usage, named, 0))
        self._check_still_open("settle_nowait")

    def _check_still_open(self, verb: str) -> None:
        if not self._open:  # it has ended meanwhile: nobody knows whether the settlement has seen this
            raise LeaseExpiredError(f"{verb}() while the lease ended; the correction may be lost.")

    def _hold(self, grant: Grant) -> None:
        """Keep the slots of a grant until the lease ends, which then has something to write; note what it reserves."""
        grant.chain.note_reservation(self, grant.cost)
        if grant.holds_slots:
            self._caller = self._caller or self._limiter._backend.runtime.caller()
            self._limiter._holdings.hold(self, grant)
            self._delta = self._delta or {}

    def tell_lost(self) -> None:
        """Do what was asked for, for the case that a slot is lost; once, however many are. From any thread."""
        on_lost, caller, told = self._options.on_lost, self._caller, self._told
        self._told = True
        if told or caller is None:
            return
        if on_lost == CANCEL:
            caller.cancel(lambda: self._open)
        elif callable(on_lost):
            caller.call(partial(self._limiter._observers.call_back, "on_lost", partial(on_lost, self)))

    def _has_cancelled(self, error: BaseException | None) -> bool:
        """Return whether ``error`` is a cancellation because a slot was lost, and for no other reason; undo it."""
        callers = [part._caller for part in (self, *self._others) if part._caller is not None]
        answers = [caller.has_cancelled(error) for caller in callers]  # all of them have to undo it
        return any(answers)

    def _degrade(self, error: RateLimiterUnavailable) -> None:
        """Count against no limit, or raise ``error``, as the unavailability policy says; it covers no denied access."""
        if self._limiter._availability.blocks(self._options.policy) or isinstance(error, AccessDeniedError):
            error.entity_id, error.resource = self._entity_id, self._own_resources[0]
            error.stack_name = getattr(self._limiter._backend.store, "stack_name", None)
            raise error
        self.degraded = True

    async def _enter(self) -> None:
        """Take the tokens, or raise; without a store, as the unavailability policy says."""
        limiter, max_wait_ms = self._limiter, self._options.max_wait_ms
        self.degraded = False  # a check may have found the store down
        taking = limiter._take(self, self._cost, max_wait_ms, self._options.holder)
        try:
            observed = limiter._observers.all
            self._granted = await (self._observe(taking, waits=bool(max_wait_ms)) if observed else taking)
        except RateLimiterUnavailable as error:
            self._degrade(error)
            self._delta = dict(self._cost)
        else:
            if self._granted.chain.slot_names or self._granted.chain.has_quotas:
                self._hold(self._granted)
        self._open = True

    async def _check(self) -> None:
        limiter = self._limiter
        checking = limiter._check(self)
        try:
            await (self._observe(checking) if limiter._observers.all else checking)
        except RateLimiterUnavailable as error:
            self._degrade(error)

    async def _observe(self, deciding: Coroutine[Any, Any, T], *, waits: bool = False) -> T:
        """Await a decision, and tell the observers of it. A check that passes returns None: it decides nothing yet."""
        observers = self._limiter._observers
        started, self._waited = observers.now(), 0.0
        outcome: Outcome | None = None
        overdrawn: tuple[str, ...] = ()
        try:
            result = await deciding
            outcome = None if result is None else "granted"
            overdrawn = find_overdrawn(result) if isinstance(result, Grant) else ()
            return result
        except ZAELimiterError as error:
            outcome = classify(error, blocks=self._limiter._availability.blocks(self._options.policy))
            raise
        finally:
            if outcome is not None:
                seconds = max(0.0, observers.now() - started - self._waited)
                waited = self._waited if waits else None
                for resource in self._own_resources:
                    told = Decision(self._entity_id, resource, outcome, seconds, waited, overdrawn)
                    observers.tell_decision(told)

    def _note_wait(self, seconds: float) -> None:
        self._waited += seconds

    async def _charge(self, times: int) -> None:
        """Charge the cost ``times`` times, to the end also if the caller is cancelled."""
        cost = {name: amount * times for name, amount in self._cost.items()}
        await self._limiter._engine.finish(self._settle_each([(None, cost)]))

    async def _consume_more(self, amounts: Mapping[str, int] | None, named: Mapping[str, int]) -> None:
        cost = self._check_tokens("consume", amounts, named, 0)
        if self._grant is None:
            self._collect(cost, 1)
            return
        limiter = self._limiter
        taking = limiter._take(self, cost, 0, None)
        try:
            grant = await (self._observe(taking) if limiter._observers.all else taking)
            self._extra = (*self._extra, grant)
            self._hold(grant)
        except RateLimiterUnavailable as error:
            self._degrade(error)
            self._collect(cost, 1)

    def _correct(
        self, verb: str, amounts: Mapping[str, int] | None, named: Mapping[str, int], least: int, sign: int = 1
    ) -> bool:
        """Collect a correction. Return whether it has to be written now, as the lease has ended."""
        self._collect(self._check_tokens(verb, amounts, named, least, late=self._correctable), sign)
        return not self._open

    def _settle_usage(self, usage: Mapping[str, int] | None, named: Mapping[str, int]) -> bool:
        """Note what was used. Return whether it has to be written now, as the lease has ended."""
        self._state(self._check_tokens("settle", usage, named, 0, late=self._correctable))
        return not self._open

    async def _write_late(self) -> None:
        """Write the corrections that were collected since the lease has ended."""
        before, change = self._claim()
        # What was settled since counts as taken: it can be given back too.
        grants = tuple(add_share(grant, share) for grant, share in apportion(self._grants(), before))
        await self._settle(grants, change)

    def _claim(self) -> tuple[Mapping[str, int], dict[str, int]]:
        """Return what others have written of the correction, and the rest: whoever asks writes that."""
        with _CORRECTING:
            before, self._claimed = self._claimed, self._delta or {}
        return before, {name: amount - before.get(name, 0) for name, amount in self._claimed.items()}

    def _disclaim(self, lost: Mapping[str, int]) -> None:
        """Count a debt that may not have been written as not written: what is corrected later never returns it."""
        with _CORRECTING:
            self._claimed = {name: amount - max(0, lost.get(name, 0)) for name, amount in self._claimed.items()}

    def _check_tokens(
        self, verb: str, amounts: Mapping[str, int] | None, named: Mapping[str, int], least: int, late: bool = False
    ) -> dict[str, int]:
        if not (self._open or late):
            raise LeaseExpiredError(f"{verb}() was called outside the block of its lease.")
        checked = check_amounts(verb, named if amounts is None else amounts, least)
        if named and amounts is not None:
            checked |= check_amounts(verb, named, least)
        if self._granted is not None:
            chain = self._granted[0]
            check_known(verb, checked, chain.names)
            for name in chain.slot_names if chain.slot_names and verb != "consume" else ():
                if checked.get(name) or (name in checked and verb.startswith("settle")):
                    reason = "is a concurrency limit: its slots are held until the lease ends"
                    raise ValidationError(f"{verb}[{name!r}]", checked[name] // MILLI, reason)
        return checked

    def _taken(self) -> Mapping[str, int]:
        """Return what was taken so far, without corrections."""
        if self._granted is None:
            return {}
        first = self._granted[1]
        return add_up([first, *(grant.cost for grant in self._extra)]) if self._extra else first

    def _state(self, usage: Mapping[str, int]) -> None:
        """Keep what was used for the end, instead of earlier corrections of the same limits."""
        with _CORRECTING:
            taken = self._taken()
            delta = {name: used - taken.get(name, 0) for name, used in usage.items()}
            self._delta = {**self._delta, **delta} if self._delta else delta
            self._stated = {**self._stated, **usage} if self._stated else usage

    def _collect(self, amounts: Mapping[str, int], sign: int) -> None:
        """Keep a correction for the end. Nobody can give back more than was taken: the rest is cut off and logged."""
        cut = {}
        with _CORRECTING:
            delta = dict(self._delta or {})  # a copy: a settlement in another thread may be reading the old one
            taken = self._taken()
            for name, amount in amounts.items():
                wanted = delta.get(name, 0) + sign * amount
                delta[name] = max(wanted, -taken.get(name, 0))
                cut[name] = delta[name] - wanted
            self._delta = delta
        if any(cut.values()) and not self.degraded:
            excess = in_tokens(cut)
            message = "more tokens were returned than taken, the excess %s is ignored"
            tell(RETURN_CUT, message, excess, **self.log_fields(), zae_tokens=excess)

    async def _exit(self, *, failed: bool = False, give_back: bool = False, final: bool = True) -> None:
        """Settle what was collected, what a failure keeps, or give everything back."""
        self._open = False
        self._correctable = not (failed or give_back or final)
        slots = self._slots()
        lost = [slot for slot in slots if slot.lost]
        if slots:
            self._limiter._holdings.let_go(slots)
        try:
            if failed or give_back:
                await self._fail(give_back)
            elif self._delta or slots:
                await self._settle(self._grants(), self._claim()[1])
        finally:
            for slot in slots:
                if slot.lost and slot not in lost:
                    self._limiter._holdings.announce_loss(self, slot)
            if self._limiter._backend.closed:  # what was written may have opened the store again
                await self._limiter._backend.close()

    async def _fail(self, give_back: bool) -> None:
        """Settle a lease that has failed: ``give_back`` everything, or what ``on_error`` does not keep."""
        delta = self._failure_delta(give_back)
        self._tell_settlement(self._taken(), {} if give_back else {name: delta[name] for name in self._stated})
        shares = _share_out(self._grants(), delta)
        if shares:
            await self._finish(self._settle_failure(shares), self._grants())

    def _failure_delta(self, give_back: bool = False) -> dict[str, int]:
        """Return how a failure corrects what was taken: to what ``on_error`` keeps and `settle` has stated.

        With ``give_back`` to nothing, whatever these say.
        """
        taken, corrected, every = self._taken(), self._delta or {}, {} if give_back else self._options.kept
        kept = None if every is None else every.get(self._own_resources[0], {})
        stated: Collection[str] = () if give_back else self._stated
        return {
            name: corrected.get(name, 0) if kept is None or name in stated else kept.get(name, 0) - taken.get(name, 0)
            for name in {**taken, **corrected}
        }

    async def _settle_failure(self, shares: Sequence[tuple[Grant, Mapping[str, int]]]) -> None:
        """Settle what a failed call has left. A failure is only logged: the caller's exception matters more."""
        deadline = self._limiter._backend.deadline(self._options.timeout)
        for grant, delta in shares:
            try:
                await self._settle_grant(grant, delta, deadline)
            except ZAELimiterError as error:
                message = "tokens of a failed call could not be returned: %s"
                tell(RETURN_LOST, message, error, **self.log_fields(error), zae_tokens=in_tokens(delta))

    async def _settle(self, grants: tuple[Grant, ...], delta: Mapping[str, int]) -> None:
        """Settle ``delta`` with these grants, to the end also if the caller is cancelled."""
        if grants:
            self._tell_settlement(add_up(grant.cost for grant in grants), delta)
        await self._finish(self._settle_each(_share_out(grants, delta)), grants)

    def _tell_settlement(self, taken: Mapping[str, int], delta: Mapping[str, int]) -> None:
        observers = self._limiter._observers
        if observers.all and delta and not self.degraded:
            estimated = {name: taken.get(name, 0) // MILLI for name in delta}
            correction = {name: amount // MILLI for name, amount in delta.items()}
            observers.tell("on_settlement", Settlement(self._entity_id, self._own_resources[0], estimated, correction))

    def _finish(self, work: Coroutine[Any, Any, None], grants: Sequence[Grant]) -> Awaitable[None]:
        """Return what runs ``work`` to its end, also if the caller is cancelled; it is as it is if nobody waits."""
        is_held = bool(grants) and all(grant.is_held for grant in grants) and not self._limiter._backend.closed
        return work if is_held else self._limiter._engine.finish(work)

    async def _settle_each(self, shares: Sequence[tuple[Grant | None, Mapping[str, int]]]) -> None:
        """Settle what the lease has used with each grant. The work is done: under ALLOW a failure is only reported."""
        deadline = self._limiter._backend.deadline(self._options.timeout)
        lost: list[RateLimiterUnavailable] = []
        for grant, delta in shares:
            try:
                await self._settle_grant(grant, delta, deadline)
            except RateLimiterUnavailable as error:
                self._disclaim(delta)
                if isinstance(error, AccessDeniedError):
                    raise
                message = "settlement lost, the estimate stays charged: %s"
                tell(SETTLEMENT_LOST, message, error, **self.log_fields(error), zae_tokens=in_tokens(delta))
                lost.append(error)
        if lost and self._limiter._availability.blocks(self._options.policy):
            raise lost.pop(0)

    async def _settle_grant(self, grant: Grant | None, delta: Mapping[str, int], deadline: Deadline) -> None:
        """Settle ``delta`` with one grant, or with none where nothing was taken.

        Where the lease may go on without a store that hangs, this waits for it no more than an acquire does.
        """
        limiter, options = self._limiter, self._options
        if grant is not None and grant.is_held and not limiter._backend.closed:  # nothing is asked of the store
            await limiter._engine.settle(grant, delta, deadline)
            return
        answers = limiter._availability.answers
        limiter._availability.check(options.policy, options.timeout)
        try:
            if grant is None:
                chain = await limiter._chains.find(self._entity_id, self._resource, options.given, deadline)
                grant = await limiter._engine.grant_nothing(chain, deadline)
            await limiter._engine.settle(grant, delta, deadline)
            if grant.held is not None and limiter._backend.closed:  # nothing takes it along any more
                await limiter.flush()
        except RateLimiterUnavailable:
            limiter._availability.report_failure(options.policy, deadline, answers)
            raise
        limiter._availability.report_answer()


def _share_out(grants: tuple[Grant, ...], delta: Mapping[str, int]) -> list[tuple[Grant, dict[str, int]]]:
    """Return what is settled with each grant, for those that have something to write."""
    return [each for each in apportion(grants, delta) if any(each[1].values()) or each[0].holds_slots]
