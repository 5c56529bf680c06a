"""Leases that last as long as a response."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from ..limiter.lease import Lease, LeaseCore

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Change: TypeAlias = Callable[[Mapping[str, int] | None, Mapping[str, int]], None]


class ResponseLeaseCore(LeaseCore):
    """A lease that can still be adjusted when the response is done, with a write of its own.

    A handler cannot see when that is: a background task comes after it, a generator whose client has gone is ended by
    the event loop at some time, and a WSGI server closes a body after its last chunk. What was given back stays given
    back.
    """

    returned = False
    """Whether it has been given back."""

    async def _exit(self, failed: bool) -> None:
        self.returned = failed
        await super()._exit(failed)

    async def _change(self, change: Change, amounts: Mapping[str, int] | None, named: Mapping[str, int]) -> None:
        """Collect a change; when the response is done, write it."""
        if self._open or self.returned or not (self._grant or self.degraded):
            change(amounts, named)
            return
        before = dict(self._delta or {})
        self._open = True
        try:
            change(amounts, named)
        finally:
            self._open = False
        rest = {name: amount - before.get(name, 0) for name, amount in (self._delta or {}).items()}
        await self._limiter._settle(self, self._grants_with(before), rest)


class ResponseLease(ResponseLeaseCore, Lease):
    """A `Lease` of a response."""

    async def adjust(self, amounts: Mapping[str, int] | None = None, /, **named: int) -> None:
        """Correct the estimate by the difference; never refused, may drive the bucket into debt."""
        await self._change(self._adjust, amounts, named)

    async def release(self, amounts: Mapping[str, int] | None = None, /, **named: int) -> None:
        """Give unused tokens back."""
        await self._change(self._release, amounts, named)
