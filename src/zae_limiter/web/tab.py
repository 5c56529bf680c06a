"""A tab: what one request has taken. It is settled once, when the response is done or the client has gone."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from ..core.errors import ValidationError, ZAELimiterError

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from ..core.values import LimitStatus
    from ..limiter.lease import LeaseCore
    from .answers import Answer
    from .charges import Charge
    from .guard import Guard

TAB = "zae_limiter.tab"
"""Where the tab of a request is, in an ASGI scope or a WSGI environment."""

_LOG = logging.getLogger("zae_limiter")


class Tab:
    """The leases of one request."""

    __slots__ = ("_charges", "_free", "_settled", "guard", "leases", "outer")

    def __init__(self, guard: Guard, outer: Tab | None = None) -> None:
        self.guard = guard
        self.outer = outer
        """The tab of a middleware around this one."""
        self.leases: list[LeaseCore] = []
        self._charges: list[Charge | None] = []
        self._free: list[LeaseCore] = []
        self._settled = False

    async def take(self, lease: LeaseCore, charge: Charge | None = None) -> None:
        """Enter a lease that lasts as long as the response; may raise as an acquire does."""
        await self.guard.mode.enter(lease)
        self.leases.append(lease)
        self._charges.append(charge)

    def statuses(self) -> list[tuple[LimitStatus, ...]]:
        """Lease by lease, every limit that was charged, as the deciding write has left it."""
        return [lease.statuses for lease in self.leases]

    def answered(self, status: int) -> None:
        """The app has answered: with some statuses some leases cost nothing."""
        every = zip(self.leases, self._charges, strict=True)
        self._free = [lease for lease, charge in every if charge is not None and charge.refunds(status)]

    async def settle(self, error: BaseException | None = None) -> None:
        """Settle every lease, once; an ``error`` gives everything back. The answer is out: failures are only told."""
        if self._settled:
            return
        self._settled = True
        interrupted: BaseException | None = None
        for lease in reversed(self.leases):
            try:
                await self.guard.mode.leave(lease, _FREE if error is None and lease in self._free else error)
            except ZAELimiterError as failure:
                _LOG.warning("settlement failed: %s", failure)
            except BaseException as cancelled:  # raised when this lease had been settled; the others are, too
                interrupted = cancelled
        if interrupted is not None:
            raise interrupted


_FREE = RuntimeError("an answer that costs nothing")


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
