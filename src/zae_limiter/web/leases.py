"""A lease that lasts as long as a response."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from ..limiter.lease import Lease

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Change: TypeAlias = Callable[[Mapping[str, int] | None, Mapping[str, int]], None]


class ResponseLease(Lease):
    """A `Lease` that can still be adjusted when the response is done, with a write of its own.

    A handler cannot see when that is: a background task comes after it, and a generator whose client has gone is ended
    by the event loop at some time. What was given back, because the app failed, stays given back.
    """

    returned = False
    """Whether it has been given back."""

    async def adjust(self, amounts: Mapping[str, int] | None = None, /, **named: int) -> None:
        """Correct the estimate by the difference; never refused, may drive the bucket into debt."""
        await self._changed(self._adjust, amounts, named)

    async def release(self, amounts: Mapping[str, int] | None = None, /, **named: int) -> None:
        """Give unused tokens back."""
        await self._changed(self._release, amounts, named)

    async def _exit(self, failed: bool) -> None:
        self.returned = failed
        await super()._exit(failed)

    async def _changed(self, change: Change, amounts: Mapping[str, int] | None, named: Mapping[str, int]) -> None:
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
