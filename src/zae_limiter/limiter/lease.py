"""A lease, as `RateLimiter` makes it: `LeaseCore`, phrased with ``await``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from ..core.errors import LeaseExpiredError
from ..core.limit import MAX_AMOUNT, whole
from .lease_core import ENTERED_ONCE, LeaseCore


class Lease(LeaseCore):
    """Tokens for the length of a block, made by `RateLimiter.acquire`: ``async with`` takes and settles them.

    Code that cannot hold a block open calls `enter` and `exit`.
    """

    async def consume(self, amounts: Mapping[str, int] | None = None, /, **named: int) -> None:
        """Take more tokens, ``amounts`` by limit name or as keywords: all of them, or raise `RateLimitExceeded`."""
        await self._consume_more(amounts, named)

    async def settle(self, usage: Mapping[str, int] | None = None, /, **named: int) -> None:
        """State the actual usage: tokens by limit name, as ``usage`` or as keywords.

        It replaces earlier corrections of the limits that it names; of two calls the last one counts. It is never
        refused: what is above the reservation may drive the bucket into debt, and the rest is given back. It is written
        when the lease ends, whether or not the block raises. Raises `LeaseExpiredError` outside of the lease.
        """
        if self._state("settle", usage, named):
            await self._write_late()

    async def adjust(self, amounts: Mapping[str, int] | None = None, /, **named: int) -> None:
        """Correct what was taken by differences: ``amounts`` by limit name, or as keywords.

        It is never refused, and may drive the bucket into debt. No more is given back than this lease has
        taken: a larger negative amount is cut, which is logged. It is written when the lease ends. Raises
        `LeaseExpiredError` outside of the lease.
        """
        if self._correct("adjust", amounts, named, -MAX_AMOUNT):
            await self._write_late()

    async def release(self, amounts: Mapping[str, int] | None = None, /, **named: int) -> None:
        """Give unused tokens back: ``amounts`` by limit name, or as keywords.

        It is at most what this lease has taken: more is cut, which is logged.
        """
        if self._correct("release", amounts, named, 0):
            await self._write_late()

    async def enter(self) -> None:
        """Take the tokens, as the beginning of a block does. Call `exit` afterwards, whatever happens.

        Raises `RateLimitExceeded` if the tokens are not there, `RateLimiterUnavailable` if the store is unavailable
        and the policy is to block, and `LeaseExpiredError` if the lease was entered before.
        """
        if not self.try_enter():
            await self._enter()

    async def exit(self, *, give_back: bool = False, final: bool = True) -> None:
        """End the lease, as the end of a block does: write what was settled. A lease that is not open stays as it is.

        ``give_back``: return all tokens instead, whatever `settle` or ``on_error`` have said. ``final``: with False,
        `settle`, `adjust` and `release` still work afterwards, each with a write of its own, unless the tokens were
        given back.
        """
        if self._open:
            self._open = False
            left = self._end(give_back, give_back, final)
            if left:
                await self._port.charger.settle(left, give_back)

    async def check(self) -> None:
        """Raise what `enter` would raise, but take nothing. A lease that was checked can still be entered."""
        request = self._joint_request() if self._others else self._request
        self.degraded = not await self._port.charger.check(request)

    async def charge(self, times: int = 1) -> None:
        """Charge the cost ``times`` times, whether it is there or not: the bucket may go into debt.

        It is for what has happened already; the lease need not be entered, and `exit` does not give this back. Raises
        `RateLimiterUnavailable` if the store is unavailable and the policy is to block.
        """
        await self._charge(whole("times", times, 1, MAX_AMOUNT))

    async def __aenter__(self) -> Self:
        if self._open or self._granted is not None:
            raise LeaseExpiredError(ENTERED_ONCE)
        take_now = self._port.charger.take_now
        if take_now is not None and not self._others:
            self._granted = take_now(self, self._entity_id, self._resource, self._cost, self._options)
        if self._granted is None:
            await self._enter()
        else:
            self._open = True
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        was_open, self._open = self._open, False  # first: a correction that comes later in another thread sees it
        if was_open and (error is not None or self._delta is not None or self._others):
            left = self._end(error is not None)
            if left:
                await self._write(left, error)
