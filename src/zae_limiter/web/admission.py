"""An admission: the rules that are for one request are chosen, and then what they ask for is taken."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .matching import Matching

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from .charges import Charge
    from .request import Request
    from .tab import Pending, Tab


class Admission:
    """One request on its way in. It goes on without waiting for as long as nothing has to be awaited."""

    __slots__ = ("_charges", "_chosen", "_matching", "_request", "_tab")

    def __init__(self, charges: Sequence[Charge], request: Request, tab: Tab) -> None:
        self._charges = iter(charges)
        self._chosen: list[Charge] = []
        self._matching = Matching(request.paths)
        self._request = request
        self._tab = tab

    def begin(self) -> Pending:
        """Choose, and take; raises as an acquire does."""
        for charge in () if self._matching.done else self._charges:
            fits = charge.fits(self._request, self._matching)
            if fits is not True and fits is not False:
                return self._go_on_once_known(fits, charge)
            if fits:
                self._chosen.append(charge)
                if self._matching.done:
                    break
        return self._take()

    async def _go_on_once_known(self, fits: Awaitable[bool], charge: Charge) -> None:
        if await fits:
            self._chosen.append(charge)
        pending = self.begin()
        if pending is not None:
            await pending

    def _take(self) -> Pending:
        """Take for the last rule first, so that `lease_of` gives the lease of the first one."""
        while self._chosen:
            pending = self._chosen.pop().take(self._request, self._tab)
            if pending is not None:
                return self._take_others_after(pending) if self._chosen else pending
        return None

    async def _take_others_after(self, pending: Awaitable[None]) -> None:
        await pending
        others = self._take()
        if others is not None:
            await others
