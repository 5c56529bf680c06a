"""`LeaseCore` as users call it; `sync_lease` is the same without ``await``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from ..core.errors import LeaseExpiredError, SlotLostError
from ..core.limit import MAX_AMOUNT, whole
from .lease_core import ENTERED_ONCE, LOST, LeaseCore


class Lease(LeaseCore):
    """Tokens for the length of a block, made by `RateLimiter.acquire`: ``async with`` takes and settles them.

    Code that cannot hold a block open calls `enter` and `exit`.
    """

    def resource(self, name: str) -> Lease:
        """Return the lease of one of several resources: what it has consumed, `settle`, `adjust` and so on.

        It begins and ends with this one, which is the lease of the first resource. Raise `ValidationError` if ``name``
        is not one of `resources`.
        """
        found: Lease = self._find_part(name)
        return found

    async def consume(self, amounts: Mapping[str, int] | None = None, /, **named: int) -> None:
        """Take more tokens, ``amounts`` by limit name or as keywords: all of them, or raise `RateLimitExceeded`."""
        await self._consume_more(amounts, named)

    async def settle(self, usage: Mapping[str, int] | None = None, /, **named: int) -> None:
        """State the actual usage: tokens by limit name, as ``usage`` or as keywords.

        It replaces earlier corrections of the limits that it names; of two calls the last one counts. It is never
        refused: what is above the reservation may drive the bucket into debt, and the rest is given back. It is written
        when the lease ends, whether or not the block raises. Raises `LeaseExpiredError` outside of the lease.
        """
        if self._settle_usage(usage, named):
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
        if self._correct("release", amounts, named, 0, sign=-1):
            await self._write_late()

    async def enter(self) -> None:
        """Take the tokens, as the beginning of a block does. Call `exit` afterwards, whatever happens.

        Raises `RateLimitExceeded` where the tokens are not there, `RateLimiterUnavailable` where the store is
        unavailable and the policy is to block, and `LeaseExpiredError` where the lease was entered before.
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
            await self._exit(give_back=give_back, final=final)

    async def check(self) -> None:
        """Raise what `enter` would raise, but take nothing. A lease that was checked can still be entered."""
        await self._check()

    async def charge(self, times: int = 1) -> None:
        """Charge the cost ``times`` times, whether it is there or not: the bucket may go into debt.

        It is for what has happened already; the lease need not be entered, and `exit` does not give this back. Raises
        `RateLimiterUnavailable` where the store is unavailable and the policy is to block.
        """
        await self._charge(whole("times", times, 1, MAX_AMOUNT))

    async def __aenter__(self) -> Self:
        if self._open or self._granted is not None:
            raise LeaseExpiredError(ENTERED_ONCE)
        take_now = self._limiter._take_now
        self._granted = granted = None if take_now is None else take_now(self)
        if granted is None:
            await self._enter()
        self._open = True
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._open = False  # first: a correction that comes later in another thread sees it
        if (error is not None or self._delta is not None) and not self._settle_at_once(error is not None):
            await self._end(error)

    async def _end(self, error: BaseException | None) -> None:
        """End with a block. Raise `SlotLostError` if it was cancelled only because a slot was lost."""
        try:
            await self._exit(failed=error is not None)
        finally:
            lost = self._has_cancelled(error)
        if lost:
            raise SlotLostError(LOST) from error
