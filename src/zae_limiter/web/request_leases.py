"""The leases of one request. They are settled once, when the response is done or the client has gone.

What is taken after that, by a background task, is settled when the app has returned.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, MutableMapping, Sequence
from typing import Any, TypeAlias, TypeVar

from ..core.errors import (
    AccessDeniedError,
    RateLimiterUnavailable,
    RateLimitExceeded,
    ResourceDisabled,
    ValidationError,
    ZAELimiterError,
)
from ..limiter.lease_core import LeaseCore
from ..logs import WEB_SETTLEMENT_FAILED, log_event
from .keys import SeveralKeysError
from .paths import PathTooLong
from .request import Request
from .rules import AnyLease, BoundRule

Pending: TypeAlias = Coroutine[Any, Any, None] | None
"""The rest of something that is still to be awaited; None if it is done."""

T = TypeVar("T")

LEASES = "zae_limiter.leases"
"""The key of a request's `RequestLeases`, in an ASGI scope or a WSGI environment."""
REFUSALS = (RateLimitExceeded, ResourceDisabled, RateLimiterUnavailable, PathTooLong, SeveralKeysError)
"""The errors that the middleware answers by itself, except `AccessDeniedError`: that is for the operator."""


def is_refusal(error: BaseException) -> bool:
    """Return whether the middleware answers an error by itself."""
    return isinstance(error, REFUSALS) and not isinstance(error, AccessDeniedError)


class RequestLeases:
    """The leases of one request, and those that are charged only if it fails."""

    _refundable: tuple[tuple[AnyLease, BoundRule], ...] = ()
    _watched: tuple[tuple[AnyLease, BoundRule], ...] = ()
    _free: Collection[AnyLease] = ()
    _settled = False
    is_over = False
    """Whether the app has returned: what is taken from here on is settled at once."""
    _guesses = 0
    """How many API keys were looked up, at least one, if the request is refused as it carries several."""
    refusal: SeveralKeysError | None = None
    """The error to raise once the request has been charged for carrying several API keys."""
    failed: Sequence[AnyLease] = ()
    """The leases for which the answer turned out to be a failure, as long as that is not charged."""

    def __init__(self, middleware: Any = None, outer: RequestLeases | None = None) -> None:
        self.middleware = middleware
        """The `Middleware` that the request has come through."""
        self.outer = outer
        """The leases of a middleware around this one."""
        self.leases: list[AnyLease] = []

    @property
    def is_empty(self) -> bool:
        """Whether nothing was taken and nothing is charged if the request fails."""
        return not (self.leases or self._watched)

    @property
    def hold_slots(self) -> bool:
        """Whether one of them holds slots of concurrency limits."""
        return any(lease.holds_slots for lease in self.leases)

    def take_for(self, rule: BoundRule, request: Request) -> Pending:
        """Take what a rule asks of a request; if it counts failures, only check whether that is there.

        Raises as an acquire does. A request with several API keys is charged to the client's address and then refused
        with `SeveralKeysError`.
        """
        if rule.rule.exempt:
            return None
        made: AnyLease | Awaitable[AnyLease]
        try:
            made = rule.make_lease(request)
        except SeveralKeysError as error:
            self._refuse(error)
            made = rule.make_lease_for(None, request)
        if isinstance(made, LeaseCore) and not rule.counts_failures:
            return self.take(made, rule)
        return self._take_later(made, rule, request)

    async def _take_later(self, made: AnyLease | Awaitable[AnyLease], rule: BoundRule, request: Request) -> None:
        try:
            lease = made if isinstance(made, LeaseCore) else await made
        except SeveralKeysError as error:
            self._refuse(error)
            lease = await rule.make_lease_for(None, request)
        if not rule.counts_failures:
            await finish(self.take(lease, rule))
            return
        await finish(lease.check())
        if not lease.degraded:
            self._watched = (*self._watched, (lease, rule))

    def take(self, lease: AnyLease, rule: BoundRule | None = None, *, entered: bool = False) -> Pending:
        """Enter a lease unless it was ``entered``, and hold it as long as the response lasts. Raises as an acquire."""
        if not entered and not lease.try_enter():
            return self._take_waiting(lease, rule)
        self.leases.append(lease)
        if rule is not None and rule.rule.refund:
            self._refundable = (*self._refundable, (lease, rule))
        refusal = self.refusal
        if refusal is not None:
            slots = {status.limit_name for status in lease.statuses if status.limit.is_concurrency}
            times = max(1, refusal.looked_up)  # as much for each key that was looked up
            lease.settle_nowait({name: used * times for name, used in lease.consumed.items() if name not in slots})
            raise refusal
        # The response is done: from here on every change of the lease is a write of its own.
        if self._settled and not lease.try_exit(final=False):
            if self.is_over:
                return lease.exit(final=False)
            self._settled = False  # it holds slots: they are freed when the app has returned
        return None

    async def _take_waiting(self, lease: AnyLease, rule: BoundRule | None) -> None:
        await finish(lease.enter())
        await finish(self.take(lease, rule, entered=True))

    def _refuse(self, error: SeveralKeysError) -> None:
        """Raise the error as soon as a lease is taken. It is a failure, here and for the middlewares around this one.

        Each key that was looked up costs as much as a request, or a failure: into debt if need be.
        """
        self.refusal = error
        leases: RequestLeases | None = self
        while leases is not None:
            leases._guesses = max(1, error.looked_up)
            leases = leases.outer

    def note_status(self, status: int) -> None:
        """Note the status of the answer: with some statuses some leases cost nothing, and some are failures."""
        if self._refundable:
            self._free = [lease for lease, rule in self._refundable if rule.refunds(status)]
        if self._watched:
            self.failed = [lease for lease, rule in self._watched if self._guesses or rule.is_failure(status)]

    async def charge_failure(self) -> None:
        """Charge the failure that the answer is, once; errors are only logged."""
        failed, self.failed, self._watched = self.failed, (), ()
        times = max(1, self._guesses)
        await _finish_all(failed, lambda lease: lease.charge(times=times), "failure not counted: %s")

    def try_settle(self) -> bool:
        """Settle every lease if there is nothing to write; return whether they are settled, now or before."""
        if not self._settled:
            if self._free or self.failed:
                return False
            for lease in self.leases:
                if not lease.try_exit(final=False):
                    return False
            self._settled = True
        return True

    async def settle_error(self, error: Exception, *, untouched: bool) -> None:
        """Settle a request whose app has raised; ``untouched``: nothing was answered, and the client is there.

        A refusal gives everything back, unless it is for several API keys: those are charged, and they are a failure
        even if the address has nothing left. Any other exception is charged like an answer with the status 500.
        """
        refused = is_refusal(error)
        if untouched and self._guesses:
            self.failed = [lease for lease, _ in self._watched]
        elif untouched and not refused:
            self.note_status(500)
        await self.settle(refused=untouched and refused and not isinstance(error, SeveralKeysError))

    async def settle(self, *, refused: bool = False) -> None:
        """Settle every lease, once; ``refused`` gives everything back. The answer is out: errors are only logged.

        A lease can still be settled afterwards, with a write of its own: a handler cannot see when the response is
        done. A background task comes after it, a generator whose client has gone is ended by the event loop at some
        time, and a WSGI server closes a body after its last chunk.
        """
        if self._settled:
            return
        self._settled = True

        def end(lease: AnyLease) -> Pending:
            return lease.exit(give_back=refused or lease in self._free, final=False)

        try:
            await _finish_all(self.leases[::-1], end, "settlement failed: %s")
        finally:
            await self.charge_failure()


async def finish(pending: Awaitable[T] | None) -> None:
    """Await the rest of something. A method of a blocking lease leaves none."""
    if pending is not None:
        await pending


async def _finish_all(leases: Iterable[AnyLease], step: Callable[[AnyLease], Pending], message: str) -> None:
    """Take a step with every lease and log a ``message`` if it fails; raise a cancellation when all are taken."""
    interrupted: BaseException | None = None
    for lease in leases:
        try:
            await finish(step(lease))
        except ZAELimiterError as error:
            log_event(WEB_SETTLEMENT_FAILED, message, error, **lease.log_fields(error))
        except BaseException as cancelled:  # raised when this step was taken; the others are, too
            interrupted = cancelled
    if interrupted is not None:
        raise interrupted


def find_leases(request: Any) -> RequestLeases:
    """Return the leases that the middleware has left in an ASGI scope, a WSGI environment or a request object.

    Raises `ValidationError` if the request has not come through the middleware.
    """
    raw: MutableMapping[str, Any] | None = request if isinstance(request, dict) else None
    for name in ("scope", "environ", "META", "raw"):
        raw = raw if raw is not None else getattr(request, name, None)
    found = None if raw is None else raw.get(LEASES)
    if not isinstance(found, RequestLeases):
        reason = "did not pass through RateLimitMiddleware; add it to the app"
        raise ValidationError("request", type(request).__name__, reason)
    return found


def lease_of(request: Any) -> Any:
    """Return the lease of a request, to settle: a `Lease` on ASGI, a `SyncLease` on WSGI.

    ``request`` is an ASGI scope, a WSGI environment, or the request object of a framework. Where several leases were
    taken it is the last one. Raises `ValidationError` if none was taken.
    """
    leases: RequestLeases | None = find_leases(request)
    while leases is not None:
        if leases.leases:
            return leases.leases[-1]
        leases = leases.outer
    raise ValidationError("request", type(request).__name__, "is not limited: no rule matches, or it is exempt")
