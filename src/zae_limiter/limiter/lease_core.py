"""A lease: tokens that are taken before a block runs and settled when it ends.

The consumption is in the store before the body starts. Corrections are collected and written once, at the end.
An exception gives everything back, unless ``on_error`` says otherwise. A crash leaves the estimate
charged.

`LeaseCore` is all of it, over the five methods of a `Charger`; `Lease` and the blocking `SyncLease` only phrase it.

Beside the context manager there is a surface for code that cannot hold a block open, such as a middleware or a task
queue: `enter`, `exit` and their halves that never wait, `check` and `charge`.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Self

from ..core.errors import LeaseExpiredError, SlotLostError, ValidationError
from ..core.limit import MAX_AMOUNT
from ..core.production import MILLI
from ..forks import protect
from ..logs import RETURN_CUT, log_event
from .charger import Corrections
from .grant import NOTHING, Grant, add_share, add_up, apportion
from .lease_view import LeaseView
from .options import AcquireRequest, check_amounts, check_known, in_tokens, qualify

LOST = "The lease has lost its slot: it was not renewed in time, or somebody has taken it away."
ENTERED_ONCE = "A lease can be entered only once; call acquire() again."
ENDED_MEANWHILE = "() while the lease ended; the correction may be lost."

_CORRECTING = threading.RLock()
"""Held while corrections are collected: `LeaseCore.adjust_nowait` is called from any thread."""
protect(_CORRECTING)


class LeaseCore(LeaseView):
    """One acquire, from the request to the settlement."""

    _correctable = False
    """Whether it has ended and `adjust` still writes."""
    _claimed: Mapping[str, int] = NOTHING
    """The part of ``_delta`` that was written, or is being written."""
    _stated: Mapping[str, int] = NOTHING
    """The usage by limit that `settle` has stated: a failure leaves it as it is."""

    def for_entity(self, entity_id: str) -> Self:
        """Return a new lease like this one for another entity: same resource, cost and options, not entered.

        It skips the checks of `RateLimiter.acquire`, for code that makes many similar leases.
        """
        kind, port, options = type(self), self._port, self._options
        others = [kind(port, entity_id, lease._resource, lease._cost, options) for lease in self._others]
        return kind(port, entity_id, self._resource, self._cost, options, others)

    def resource(self, name: str) -> Self:
        """Return the lease of one of several resources: what it has consumed, `settle`, `adjust` and so on.

        It begins and ends with this one, which is the lease of the first resource. Raise `ValidationError` if ``name``
        is not one of `resources`.
        """
        for lease in self._leases:
            if lease._resource == name:
                return lease
        known = ", ".join(self.resources)
        raise ValidationError("resource", name, f"is not a resource of this lease; there are {known}")

    # Entering.

    def try_enter(self) -> bool:
        """Do what `enter` does if that needs no waiting. Return False, with nothing taken, if `enter` is needed."""
        if self._open or self._granted is not None:
            raise LeaseExpiredError(ENTERED_ONCE)
        take_now = self._port.charger.take_now
        if take_now is not None and not self._others:
            self._granted = take_now(self, self._entity_id, self._resource, self._cost, self._options)
            self._open = self._granted is not None
        return self._open

    async def _enter(self) -> None:
        """Take the tokens, or raise; without a store, as the unavailability policy says."""
        if self._others:
            grant = await self._port.charger.take(self._joint_request())
            grants = [None] * len(self._leases) if grant is None else grant.split_by_resource()
            for lease, each in zip(self._leases, grants, strict=True):
                lease._accept(each)
            return
        request = AcquireRequest(self._entity_id, self._resource, self._cost, self._options)
        grant = await self._port.charger.take(request)
        if grant is None or grant.chain.slot_names or grant.chain.has_quotas:
            self._accept(grant)
        else:
            self._granted, self._open, self.degraded = grant, True, False

    def _accept(self, grant: Grant | None) -> None:
        """Open with a grant; with None if the store is unavailable and the caller goes on without it."""
        self.degraded = grant is None  # a check may have found the store down
        if grant is None:
            self._delta = self._cost
        else:
            self._granted = grant
            self._keep(grant)
        self._open = True

    def _keep(self, grant: Grant) -> None:
        """Note what a grant reserves, and hold its slots until the lease ends, which then has something to write."""
        grant.chain.note_reservation(self, grant.cost)
        if grant.holds_slots:
            self._holder = self._port.charger.hold(self, self._request, grant, self._holder)
            self._delta = self._delta or {}

    def _joint_request(self) -> AcquireRequest:
        """Return what all leases ask for together."""
        cost = {qualify(name, lease._resource): need for lease in self._leases for name, need in lease._cost.items()}
        return AcquireRequest(self._entity_id, self.resources, cost, self._options)

    async def _charge(self, times: int) -> None:
        """Charge the cost ``times`` times, to the end even if the caller is cancelled."""
        charges = []
        for lease in self._leases:
            cost = {name: amount * times for name, amount in lease._cost.items()}
            charges.append(Corrections(lease._request, [(None, cost)], lease._disclaim))
        await self._port.charger.settle(charges)

    async def _consume_more(self, amounts: Mapping[str, int] | None, named: Mapping[str, int]) -> None:
        cost, grant = self._check_tokens("consume", amounts, named, 0), None
        if self._granted is not None:
            grant = await self._port.charger.take(self._request._replace(cost=cost, options=self._options.for_more()))
        if grant is None:
            self.degraded = True
            self._collect(cost)
        else:
            self._extra = (*self._extra, grant)
            self._keep(grant)

    # Correcting, from any thread.

    def adjust_nowait(self, amounts: Mapping[str, int] | None = None, /, **named: int) -> None:
        """Do what `adjust` does from code that cannot await; safe from any thread, as nothing is written before `exit`.

        ``amounts`` and ``named`` are tokens by limit, as for `adjust`. Raises `LeaseExpiredError` if the lease is not
        open, even after an `exit` that was not final: only `adjust` itself can write then.
        """
        if self._correct("adjust_nowait", amounts, named, -MAX_AMOUNT, late=False):
            raise LeaseExpiredError(f"adjust_nowait{ENDED_MEANWHILE}")

    def settle_nowait(self, usage: Mapping[str, int] | None = None, /, **named: int) -> None:
        """Do what `settle` does from code that cannot await; safe from any thread, as nothing is written before `exit`.

        ``usage`` and ``named`` are tokens by limit, as for `settle`. Raises `LeaseExpiredError` if the lease is not
        open, even after an `exit` that was not final: only `settle` itself can write then.
        """
        if self._state("settle_nowait", usage, named, late=False):
            raise LeaseExpiredError(f"settle_nowait{ENDED_MEANWHILE}")

    def _correct(
        self, verb: str, amounts: Mapping[str, int] | None, named: Mapping[str, int], least: int, *, late: bool = True
    ) -> bool:
        """Collect a correction. Return whether the lease has ended, so that it has to be written now."""
        checked = self._check_tokens(verb, amounts, named, least, late)
        self._collect(checked if verb != "release" else {name: -amount for name, amount in checked.items()})
        return not self._open

    def _state(
        self, verb: str, amounts: Mapping[str, int] | None, named: Mapping[str, int], *, late: bool = True
    ) -> bool:
        """Keep what was used for the end, instead of earlier corrections of the same limits. Return as `_correct`."""
        usage = self._check_tokens(verb, amounts, named, 0, late)
        _CORRECTING.acquire()  # costs half of what `with` does
        try:
            before, taken = self._delta, self._taken()
            delta = {**before} if before else {}
            for name, used in usage.items():
                delta[name] = used - taken.get(name, 0)
            self._stated = {**self._stated, **usage} if before else usage
            self._delta = delta
        finally:
            _CORRECTING.release()
        return not self._open

    def _check_tokens(
        self, verb: str, amounts: Mapping[str, int] | None, named: Mapping[str, int], least: int, late: bool = False
    ) -> dict[str, int]:
        """Return amounts in millitokens. Raise `ValidationError` for a limit that is unknown, or one of slots."""
        if not (self._open or (late and self._correctable)):
            raise LeaseExpiredError(f"{verb}() was called outside the block of its lease.")
        checked = check_amounts(verb, named if amounts is None else amounts, least)
        if named and amounts is not None:
            checked |= check_amounts(verb, named, least)
        if self._granted is not None:
            chain = self._granted[0]
            names = chain.names
            for name in checked:
                if name not in names:
                    check_known(verb, checked, names)
            for name in chain.slot_names if chain.slot_names and verb != "consume" else ():
                if checked.get(name) or (name in checked and verb.startswith("settle")):
                    reason = "is a concurrency limit: its slots are held until the lease ends"
                    raise ValidationError(f"{verb}[{name!r}]", checked[name] // MILLI, reason)
        return checked

    def _taken(self) -> Mapping[str, int]:
        """Return what was taken so far, without corrections."""
        if self._granted is None:
            return NOTHING
        first = self._granted[1]
        return add_up([first, *(grant.cost for grant in self._extra)]) if self._extra else first

    def _collect(self, amounts: Mapping[str, int]) -> None:
        """Keep a correction for the end. No more is given back than was taken: the rest is cut off and logged."""
        cut = {}
        with _CORRECTING:
            delta = dict(self._delta or NOTHING)  # a copy: a settlement in another thread may be reading the old one
            taken = self._taken()
            for name, amount in amounts.items():
                wanted = delta.get(name, 0) + amount
                delta[name] = max(wanted, -taken.get(name, 0))
                cut[name] = delta[name] - wanted
            self._delta = delta
        if any(cut.values()) and not self.degraded:
            excess = in_tokens(cut)
            message = "more tokens were returned than taken, the excess %s is ignored"
            log_event(RETURN_CUT, message, excess, **self.log_fields(), zae_tokens=excess)

    # Ending.

    def try_exit(self, *, final: bool = True) -> bool:
        """End the lease if there is nothing to write. Return False, with the lease still open, if `exit` is needed.

        ``final``: as for `exit`. A lease that is not open is left as it is.
        """
        leases = (*self._others, self)  # itself last: should another thread correct meanwhile, the lease is still open
        if any(lease._open and lease._delta is not None for lease in leases):
            return False
        for lease in leases:
            if lease._open:
                lease._open = False  # first: a correction that comes later in another thread sees it
                if lease._delta is not None:
                    lease._open = True
                    return False
                lease._correctable = not final
        return True

    def _end(self, failed: bool, give_back: bool = False, final: bool = True) -> list[Corrections]:
        """Settle a lease that has ended, as far as that needs no waiting. Return what is left to write.

        ``failed`` gives back all but what ``on_error`` and `settle` have said; ``give_back`` all of it.
        """
        charger, granted = self._port.charger, self._granted
        left: list[Corrections] = []
        if not final:
            self._correctable = not failed
        if granted is not None:
            delta: Mapping[str, int] = self._delta or NOTHING
            if failed:
                delta = self._failure_delta(give_back)
            elif not final:
                _, delta = self._claim()
            if charger.is_observed:
                self._notify(self._taken(), {name: delta[name] for name in self._stated} if failed else delta)
            settle_now = charger.settle_now
            if settle_now is None or self._extra or not settle_now(self._entity_id, self._resource, granted, delta):
                left = self._share_out(self._grants, delta)
        for lease in self._others:
            if lease._open:
                lease._open = False
                left += lease._end(failed, give_back, final)
        return left

    def _notify(self, taken: Mapping[str, int], delta: Mapping[str, int]) -> None:
        if delta and not self.degraded:
            self._port.charger.notify(self._entity_id, self._resource, taken, delta)

    def _failure_delta(self, give_back: bool) -> dict[str, int]:
        """Return how a failure corrects what was taken: to what ``on_error`` keeps and `settle` has stated.

        With ``give_back`` to nothing, whatever these say.
        """
        taken, corrected, every = self._taken(), self._delta or NOTHING, {} if give_back else self._options.kept
        kept = None if every is None else every.get(self._resource, NOTHING)
        stated: Collection[str] = () if give_back else self._stated
        return {
            name: corrected.get(name, 0) if kept is None or name in stated else kept.get(name, 0) - taken.get(name, 0)
            for name in {**taken, **corrected}
        }

    def _share_out(self, grants: Sequence[Grant], delta: Mapping[str, int]) -> list[Corrections]:
        """Return what is settled with each grant, if there is anything to write."""
        shares = [(grants[0], delta)] if len(grants) == 1 else list(apportion(grants, delta))
        shares = [each for each in shares if any(each[1].values()) or each[0].holds_slots]
        is_over = not shares and self._holder is None
        return [] if is_over else [Corrections(self._request, shares, self._disclaim, self._holder)]

    async def _write(self, left: Sequence[Corrections], error: BaseException | None) -> None:
        """Write what is left when a block ends with ``error``.

        Raise `SlotLostError` if that is a cancellation because a slot was lost, and for no other reason.
        """
        try:
            await self._port.charger.settle(left, error is not None)
        finally:
            callers = [each.holder.caller for each in left if each.holder is not None]
            answers = [caller.has_cancelled(error) for caller in callers]  # all of them have to undo it
        if any(answers):
            raise SlotLostError(LOST) from error

    async def _write_late(self) -> None:
        """Write the corrections that were collected since the lease has ended."""
        before, change = self._claim()
        # What was settled since counts as taken: it can be given back too.
        grants = [add_share(grant, share) for grant, share in apportion(self._grants, before)]
        if grants and self._port.charger.is_observed:
            self._notify(add_up(grant.cost for grant in grants), change)
        left = self._share_out(grants, change)
        if left:
            await self._port.charger.settle(left)

    def _claim(self) -> tuple[Mapping[str, int], dict[str, int]]:
        """Return the part of the correction that others have written, and the rest, for the caller to write."""
        with _CORRECTING:
            before, self._claimed = self._claimed, self._delta or NOTHING
        return before, {name: amount - before.get(name, 0) for name, amount in self._claimed.items()}

    def _disclaim(self, lost: Mapping[str, int]) -> None:
        """Count a debt that may not have been written as not written: what is corrected later never returns it."""
        with _CORRECTING:
            self._claimed = {name: amount - max(0, lost.get(name, 0)) for name, amount in self._claimed.items()}
