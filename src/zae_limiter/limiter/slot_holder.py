"""A lease that holds slots, as those who renew the slots see it."""

from __future__ import annotations

import weakref
from functools import partial
from typing import TYPE_CHECKING

from .options import CANCEL

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..clock import Clock
    from ..records.slots import TakenSlot
    from ..repository.outlook import Reserving
    from ..runtime.port import Caller
    from .options import AcquireRequest


class SlotHolder:
    """The slots of one lease, and how to reach the code that has entered it.

    Only the lease refers to it, and it refers to the lease weakly: slots of a lease that was forgotten expire.
    """

    def __init__(self, lease: Reserving, request: AcquireRequest, caller: Caller, clock: Clock) -> None:
        self.request = request
        self.caller = caller
        self.slots: list[TakenSlot] = []
        self._lease = weakref.ref(lease)
        self._clock = clock
        self._told = False

    @property
    def is_forsaken(self) -> bool:
        """Whether the lease cannot be ended any more: its event loop was closed."""
        return self.caller.is_gone

    @property
    def holds(self) -> bool:
        """Whether a slot is held that was neither freed nor lost."""
        return any(not slot.ended for slot in self.slots)

    @property
    def has_lost(self) -> bool:
        """Whether a slot was lost: not renewed in time, or taken away."""
        now_ms = self._clock.now_ms()
        return any(slot.lost or (not slot.ended and slot.until_ms <= now_ms) for slot in self.slots)

    def tell_lost(self, call_back: Callable[[str, Callable[[], object]], None]) -> None:
        """Do what ``on_lost`` asks for; once, however many slots are lost. From any thread.

        ``call_back`` calls a function of the user.
        """
        on_lost, lease, told = self.request.options.on_lost, self._lease(), self._told
        self._told = True
        if told or lease is None:
            return
        if on_lost == CANCEL:
            self.caller.cancel(lambda: lease.is_open)
        elif callable(on_lost):
            self.caller.call(partial(call_back, "on_lost", partial(on_lost, lease)))
