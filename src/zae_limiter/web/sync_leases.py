"""Leases that last as long as a response, blocking. Apart from `leases`, as an ASGI app needs none of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..runtime.blocking import run
from ..sync.facade import SyncLease
from .leases import ResponseLeaseCore

if TYPE_CHECKING:
    from collections.abc import Mapping


class SyncResponseLease(ResponseLeaseCore, SyncLease):
    """A `SyncLease` of a response."""

    def adjust(self, amounts: Mapping[str, int] | None = None, /, **named: int) -> None:
        """Correct the estimate by the difference; never refused, may drive the bucket into debt."""
        run(self._change(self._adjust, amounts, named))

    def release(self, amounts: Mapping[str, int] | None = None, /, **named: int) -> None:
        """Give unused tokens back."""
        run(self._change(self._release, amounts, named))
