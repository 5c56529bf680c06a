"""A lease: tokens that are taken before a block runs and settled when it ends.

The consumption is in the store before the body starts. Adjustments are collected and written once, at the end,
as plain adds. An exception gives everything back. A crash leaves the estimate charged.

`LeaseCore` is all of it; `Lease` and the blocking `SyncLease` only phrase it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..core.bucket import MILLI
from ..core.errors import LeaseExpiredError, RateLimiterUnavailable
from ..core.limit import MAX_AMOUNT
from ..core.values import LimitStatus, OnUnavailable
from ..logs import RETURN_CUT, RETURN_LOST, SETTLEMENT_LOST, tell
from .amounts import check_amounts, check_known

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType
    from typing import Self

    from ..core.limit import Limit
    from ..records.level import Level
    from ..runtime.deadline import Deadline
    from .grant import Grant
    from .limiter import RateLimiter


class AcquireOptions(NamedTuple):
    """What an acquire asks for besides tokens."""

    given: tuple[Limit, ...] | None
    policy: OnUnavailable | None
    max_wait_ms: int
    timeout: float
    atomic: bool
    plain: bool
    """Whether it may be served at once: no waiting, no deadline and no transaction of its own."""


class LeaseCore:
    """One acquire, from the request to the settlement."""

    degraded: bool = False
    _open = False
    _grant: Grant | None = None
    _extra: tuple[Grant, ...] = ()
    _delta: dict[str, int] | None = None
    _asked_at: float | None = None
    """When the limiter was first asked, if it is measured and could not answer at once."""

    def __init__(
        self, limiter: RateLimiter, entity_id: str, resource: str, cost: dict[str, int], options: AcquireOptions
    ) -> None:
        self._limiter = limiter
        self._entity_id = entity_id
        self._resource = resource
        self._cost = cost
        self._options = options

    @property
    def consumed(self) -> dict[str, int]:
        """What the caller has asked for so far, adjustments included; once, not once per level."""
        total: dict[str, int] = {}
        for amounts in (*(grant.cost for grant in self._grants()), self._delta or {}):
            for name, amount in amounts.items():
                total[name] = total.get(name, 0) + amount
        return {name: amount // MILLI for name, amount in total.items()}

    @property
    def statuses(self) -> tuple[LimitStatus, ...]:
        """Every limit of every level right after this acquire, by the write that granted it."""
        grant = self._grant
        if grant is None:
            return ()
        statuses = []
        for level, limit, left in self.left():
            asked = grant.cost.get(limit.name, 0) // MILLI
            statuses.append(LimitStatus(level.entity_id, level.resource, limit.name, limit, left, asked, False, 0.0))
        return tuple(statuses)

    def left(self) -> list[tuple[Level, Limit, int]]:
        """Return what was left of every limit of every level right after this acquire, in whole tokens."""
        return [] if self._grant is None else self._grant.left()

    @property
    def available(self) -> dict[str, int]:
        """What was left right after this acquire: the least over all levels."""
        left: dict[str, int] = {}
        for status in self.statuses:
            left[status.limit_name] = min(status.available, left.get(status.limit_name, status.available))
        return left

    @property
    def limits(self) -> tuple[Limit, ...]:
        """The limits of the entity itself that were charged."""
        return () if self._grant is None else self._grant.chain.homes[0].level.limits

    def _grants(self) -> tuple[Grant, ...]:
        return () if self._grant is None else (self._grant, *self._extra)

    def _enter_at_once(self) -> bool:
        """Take the tokens where that needs no wait at all."""
        if self._open or self._grant is not None:
            raise LeaseExpiredError("A lease can be entered only once; call acquire() again.")
        self._grant = grant = self._limiter._take_now(self, self._cost)
        self._open = grant is not None
        return self._open

    def _do_without(self, error: RateLimiterUnavailable) -> None:
        """Go on without a store, or raise, as the unavailability policy says."""
        if self._limiter._policy_of(self) is OnUnavailable.BLOCK:
            raise error
        self.degraded = True
        self._delta = dict(self._cost)
        self._open = True

    async def _enter(self) -> None:
        """Take the tokens, or raise; without a store, as the unavailability policy says."""
        try:
            self._grant = await self._limiter._take(self, self._cost, self._options.max_wait_ms)
        except RateLimiterUnavailable as error:
            self._do_without(error)
        self._open = True

    async def _look(self) -> None:
        """Raise as `_enter` would, but take nothing. Without a store, as the unavailability policy says."""
        try:
            await self._limiter._check(self, self._cost)
        except RateLimiterUnavailable as error:
            self._do_without(error)

    async def _owe(self, times: int = 1) -> None:
        """Charge the cost so many times as of now, whether it fits or not: the bucket may go into debt."""
        await self._limiter._engine.finish(self._owe_whole(times))

    async def _owe_whole(self, times: int) -> None:
        deadline = self._limiter._backend.deadline(self._options.timeout)
        await self._settle(None, {name: amount * times for name, amount in self._cost.items()}, deadline)

    async def _consume_more(self, amounts: Mapping[str, int] | None, named: Mapping[str, int]) -> None:
        cost = self._checked("consume", amounts, named, 0)
        if self._grant is None:
            self._collect(cost, 1)
            return
        try:
            self._extra = (*self._extra, await self._limiter._take(self, cost, 0))
        except RateLimiterUnavailable:
            if self._limiter._policy_of(self) is OnUnavailable.BLOCK:
                raise
            self.degraded = True
            self._collect(cost, 1)

    def _adjust(self, amounts: Mapping[str, int] | None, named: Mapping[str, int]) -> None:
        self._collect(self._checked("adjust", amounts, named, -MAX_AMOUNT), 1)

    def _release(self, amounts: Mapping[str, int] | None, named: Mapping[str, int]) -> None:
        self._collect(self._checked("release", amounts, named, 0), -1)

    def _checked(
        self, verb: str, amounts: Mapping[str, int] | None, named: Mapping[str, int], least: int
    ) -> dict[str, int]:
        if not self._open:
            raise LeaseExpiredError(f"{verb}() was called outside the block of its lease.")
        checked = check_amounts(verb, {**(amounts or {}), **named}, least)
        if self._grant is not None:
            check_known(verb, checked, self._grant.chain.names)
        return checked

    def _collect(self, amounts: Mapping[str, int], sign: int) -> None:
        """Keep a correction for the end. Nobody can give back more than was taken: the rest is cut off and logged."""
        delta = self._delta if self._delta is not None else {}
        cut = {}
        for name, amount in amounts.items():
            taken = sum(grant.cost.get(name, 0) for grant in self._grants())
            wanted = delta.get(name, 0) + sign * amount
            delta[name] = max(wanted, -taken)
            cut[name] = delta[name] - wanted
        self._delta = delta
        if any(cut.values()) and not self.degraded:
            excess = _tokens(cut, 1)
            whose = {**self._limiter._where(), **self._whose()}
            tell(
                RETURN_CUT,
                "more tokens were returned than taken, the excess %s is ignored",
                excess,
                **whose,
                zae_tokens=excess,
            )

    def _leave_at_once(self) -> bool:
        """Settle where there is nothing to write."""
        if self._delta is not None:
            return False
        self._open = False
        return True

    async def _exit(self, failed: bool) -> None:
        """Settle what was collected, or give everything back; whoever waits for it hears of it."""
        self._open = False
        try:
            await self._end(failed)
        finally:
            limiter = self._limiter
            if self._grant is not None and limiter._lines.waiting:
                limiter._lines.stir(self._grant.chain.roots)
            if limiter._backend.closed:  # what was written may have opened the store again
                await limiter._backend.close()

    async def _end(self, failed: bool) -> None:
        if failed:
            # The caller's exception matters more than a failure here.
            grants = self._grants()
            for error in await self._limiter._give_back(self, grants):
                lost = {"zae_tokens": _tokens(grants[0].cost, -1)} if len(grants) == 1 else {}
                about = {**self._about(error), **lost}
                tell(RETURN_LOST, "tokens of a failed call could not be returned: %s", error, **about)
        elif self._delta:
            await self._limiter._settle(self, self._grants(), self._delta)

    async def _settle_each(self, shares: tuple[tuple[Grant, dict[str, int]], ...]) -> None:
        deadline = self._limiter._backend.deadline(self._options.timeout)
        for grant, share in shares:
            await self._settle(grant, share, deadline)

    def _grants_with(self, delta: Mapping[str, int]) -> tuple[Grant, ...]:
        """The grants as if what was settled since had been taken with them: it can be given back as well."""
        shares = {id(grant): share for grant, share in apportioned(self._grants(), delta)}
        return tuple(_with(grant, shares.get(id(grant), {})) for grant in self._grants())

    async def _settle(self, grant: Grant | None, delta: Mapping[str, int], deadline: Deadline) -> None:
        """The work is done: under ALLOW a failure is only reported."""
        try:
            await self._limiter._settle_grant(self, grant, delta, deadline)
        except RateLimiterUnavailable as error:
            message = "settlement lost, the estimate stays charged: %s"
            tell(SETTLEMENT_LOST, message, error, **self._about(error), zae_tokens=_tokens(delta, 1))
            if self._limiter._policy_of(self) is OnUnavailable.BLOCK:
                raise

    def _about(self, error: Exception) -> dict[str, object]:
        """Whose tokens they are, and what went wrong with them, as fields of a log record."""
        return {**self._limiter._where(), **self._whose(), "zae_error_type": type(error).__name__}

    def _whose(self) -> dict[str, object]:
        return {"zae_entity_id": self._entity_id, "zae_resource": self._resource}


def _tokens(amounts: Mapping[str, int], sign: int) -> dict[str, int]:
    """Whole tokens of each limit."""
    return {name: sign * amount // MILLI for name, amount in amounts.items() if amount}


def _with(grant: Grant, share: Mapping[str, int]) -> Grant:
    cost, later = dict(grant.cost), dict(grant.later)
    for name, amount in share.items():
        cost[name] = cost.get(name, 0) + amount
        later[name] = later.get(name, 0) - max(0, amount)
    return grant._replace(cost=cost, later=later, settled=True)


def apportioned(grants: tuple[Grant, ...], delta: Mapping[str, int]) -> Iterator[tuple[Grant, dict[str, int]]]:
    """What is settled with which grant: no more is given back where it was taken than was taken there."""
    left = dict(delta)
    for grant in grants:
        here = {name: max(amount, -grant.cost.get(name, 0)) for name, amount in left.items()}
        left = {name: amount - here[name] for name, amount in left.items()}
        if any(here.values()):
            yield grant, here


class Lease(LeaseCore):
    """What `RateLimiter.acquire` gives: enter it with ``async with`` to take the tokens.

    ``degraded`` is true when the body runs without any limit, because the store could not be asked.
    """

    async def consume(self, amounts: Mapping[str, int] | None = None, /, **named: int) -> None:
        """Take more, checked by the store: may raise `RateLimitExceeded`, and then nothing is taken."""
        await self._consume_more(amounts, named)

    async def adjust(self, amounts: Mapping[str, int] | None = None, /, **named: int) -> None:
        """Correct the estimate by the difference; never refused, may drive the bucket into debt.

        No more is given back than this lease has taken: a larger negative amount is cut, which is logged.
        """
        self._adjust(amounts, named)

    async def release(self, amounts: Mapping[str, int] | None = None, /, **named: int) -> None:
        """Give unused tokens back, at most what this lease has taken: more is cut, which is logged."""
        self._release(amounts, named)

    async def __aenter__(self) -> Self:
        if not self._enter_at_once():
            await self._enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None or not self._leave_at_once():
            await self._exit(error is not None)
