"""A tab: what one request has taken. It is settled once, when the response is done or the client has gone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from ..core.errors import ValidationError, ZAELimiterError
from ..logs import WEB_SETTLEMENT_FAILED, tell
from .credentials import SeveralKeysError
from .guard import REFUSALS

if TYPE_CHECKING:
    from collections.abc import Collection, Coroutine, MutableMapping, Sequence

    from ..limiter.lease import LeaseCore
    from .answers import Answer
    from .charges import Charge
    from .guard import Guard

    Pending: TypeAlias = Coroutine[Any, Any, None] | None
    """What is still to be awaited for something to be done; None where it is done."""

TAB = "zae_limiter.tab"
"""Where the tab of a request is, in an ASGI scope or a WSGI environment."""
_UNANSWERED = 500
"""The status with which a server answers for an app that has raised."""


class Tab:
    """The leases of one request, and those that are charged only if it fails."""

    _refundable: tuple[tuple[LeaseCore, Charge], ...] = ()
    _watched: tuple[tuple[LeaseCore, Charge], ...] = ()
    _free: Collection[LeaseCore] = ()
    _settled = False
    _guesses = 0
    """How many API keys were looked up, at least one, where the request is refused as it carries several."""
    refusal: SeveralKeysError | None = None
    """What is raised when the request has been charged for carrying several API keys."""

    def __init__(self, guard: Guard, outer: Tab | None = None) -> None:
        self.guard = guard
        self.outer = outer
        """The tab of a middleware around this one."""
        self.leases: list[LeaseCore] = []
        self.failed: Sequence[LeaseCore] = ()
        """What the answer has turned out to be a failure for, as long as that is not charged."""

    def take(self, lease: LeaseCore, charge: Charge | None = None) -> Pending:
        """Enter a lease that lasts as long as the response; may raise as an acquire does."""
        if not lease._enter_at_once():
            return self._wait_for(lease, charge)
        self._hold(lease, charge)
        return None

    async def _wait_for(self, lease: LeaseCore, charge: Charge | None) -> None:
        await lease._enter()
        self._hold(lease, charge)

    def _hold(self, lease: LeaseCore, charge: Charge | None) -> None:
        if self._settled:  # the response is done: from here on every change of it is a write of its own
            lease._leave_at_once()
        self.leases.append(lease)
        if charge is not None and charge.rule.refund:
            self._refundable = (*self._refundable, (lease, charge))
        if self.refusal is not None:
            charge_look_ups(lease, self.refusal)
            raise self.refusal

    def refuse(self, error: SeveralKeysError) -> None:
        """Raise the error as soon as a lease is taken. It is a failure, here and for the middlewares around this one.

        Each key that was looked up costs as much as a request, or a failure: into debt where need be.
        """
        self.refusal = error
        tab: Tab | None = self
        while tab is not None:
            tab._guesses = max(1, error.looked_up)
            tab = tab.outer

    async def watch(self, lease: LeaseCore, charge: Charge) -> None:
        """Raise as an acquire of the lease would, but take nothing; its cost is charged if the request fails."""
        await lease._look()
        if not lease.degraded:
            self._watched = (*self._watched, (lease, charge))

    def answered(self, status: int) -> None:
        """The app has answered: with some statuses some leases cost nothing, and some are failures."""
        if self._refundable:
            self._free = [lease for lease, charge in self._refundable if charge.refunds(status)]
        if self._watched:
            self.failed = [lease for lease, charge in self._watched if self._guesses or charge.is_failure(status)]

    async def charge_failure(self) -> None:
        """Charge what the answer was a failure for, once; that the store cannot be asked is only logged.

        A cancellation is raised when everything has been charged.
        """
        failed, self.failed, self._watched = self.failed, (), ()
        interrupted: BaseException | None = None
        for lease in failed:
            try:
                await lease._owe(max(1, self._guesses))
            except ZAELimiterError as error:
                tell(WEB_SETTLEMENT_FAILED, "failure not counted: %s", error, **lease._about(error))
            except BaseException as cancelled:
                interrupted = cancelled
        if interrupted is not None:
            raise interrupted

    def settle_at_once(self) -> bool:
        """Settle every lease where there is nothing to write; whether it is settled now."""
        if not self._settled:
            if self._free or self.failed:
                return False
            for lease in self.leases:
                if not lease._leave_at_once():
                    return False
            self._settled = True
        return True

    async def settle_failed(self, error: Exception, *, untouched: bool) -> None:
        """Settle a request whose app has raised; ``untouched``: nothing was answered, and nobody has hung up.

        A refusal gives everything back, unless it is for several API keys: those are charged, and they are a failure
        even where the address has nothing left. Any other exception is charged like an answer with the status 500.
        """
        refused = isinstance(error, REFUSALS)
        if untouched and self._guesses:
            self.failed = [lease for lease, _ in self._watched]
        elif untouched and not refused:
            self.answered(_UNANSWERED)
        await self.settle(refused=untouched and refused and not isinstance(error, SeveralKeysError))

    async def settle(self, *, refused: bool = False) -> None:
        """Settle every lease, once; a refusal gives everything back. The answer is out: failures are only logged."""
        if self._settled:
            return
        self._settled = True
        interrupted: BaseException | None = None
        for lease in reversed(self.leases):
            try:
                await lease._exit(failed=refused or lease in self._free)
            except ZAELimiterError as failure:
                tell(WEB_SETTLEMENT_FAILED, "settlement failed: %s", failure, **lease._about(failure))
            except BaseException as cancelled:  # raised when this lease had been settled; the others are, too
                interrupted = cancelled
        await self.charge_failure()
        if interrupted is not None:
            raise interrupted


def charge_look_ups(lease: LeaseCore, refusal: SeveralKeysError) -> None:
    """Charge as much again as the lease has taken for each key that was looked up, but the first."""
    if refusal.looked_up > 1:
        lease._collect({name: amount * (refusal.looked_up - 1) for name, amount in lease._cost.items()}, 1)


def tab_of(request: Any) -> Tab:
    """The tab of a request: of an ASGI scope, a WSGI environment, or an object of a framework that holds one."""
    raw: MutableMapping[str, Any] | None = request if isinstance(request, dict) else None
    for name in ("scope", "environ", "META", "raw"):
        raw = raw if raw is not None else getattr(request, name, None)
    tab = None if raw is None else raw.get(TAB)
    if not isinstance(tab, Tab):
        raise ValidationError(
            "request", type(request).__name__, "has not come through RateLimitMiddleware; add it to the app"
        )
    return tab


def lease_of(request: Any) -> Any:
    """The lease of a request, to adjust: a `Lease` on ASGI, a `SyncLease` on WSGI.

    ``request`` is an ASGI scope, a WSGI environment, or the request object of a framework. Where several leases were
    taken it is the last one.
    """
    tab: Tab | None = tab_of(request)
    while tab is not None:
        if tab.leases:
            return tab.leases[-1]
        tab = tab.outer
    raise ValidationError("request", type(request).__name__, "was not limited: no rule matched, or it is exempt")


def answer_of(request: Any, error: Exception) -> Answer:
    """What the middleware would answer to a refusal, for frameworks that catch exceptions before it sees them."""
    return tab_of(request).guard.answer(error)
