"""Whether tokens of a quota may come back before it resets, by what this process knows."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Protocol

from ..records.algebra import Image
from ..records.level import ANCHOR, MADE, attribute

_RECENT_MS = 60_000
"""How long a quota whose balance has risen may be expected to rise again, in milliseconds."""
_FEW = 16
"""How many leases are remembered before those that have ended are dropped."""


class Reserving(Protocol):
    """What is used of a lease."""

    @property
    def is_open(self) -> bool:
        """Whether the lease was entered and has not ended."""


class Outlook:
    """The open leases of this process that have tokens of a bucket's quotas, and when these quotas last rose."""

    __slots__ = ("_leases", "_most", "_risen")

    def __init__(self, quotas: Sequence[str]) -> None:
        self._risen: dict[str, int | None] = dict.fromkeys(quotas)
        self._leases: list[tuple[weakref.ref[Reserving], Mapping[str, int]]] = []
        """Leases and what they have taken."""
        self._most = _FEW

    def add(self, lease: Reserving, cost: Mapping[str, int]) -> None:
        """Remember a lease that is about to open, until it ends."""
        if len(self._leases) >= self._most:
            self._leases = [each for each in self._leases if _is_open(each[0])]
            self._most = 2 * len(self._leases) + _FEW
        self._leases.append((weakref.ref(lease), cost))

    def note_rises(self, before: Image | None, after: Image | None, now_ms: int) -> None:
        """Note which quotas have risen between two images of the bucket; a reset does not count."""
        if before is None or after is None or any(before.get(attr) != after.get(attr) for attr in (ANCHOR, MADE)):
            return
        for name in self._risen:
            tk = attribute(name, "tk")
            if after.get(tk, 0) > before.get(tk, 0):
                self._risen[name] = now_ms

    def is_good(self, limit_name: str, now_ms: int) -> bool:
        """Return whether tokens of a quota may come back: an open lease has some, or it rose in the last minute."""
        risen_ms = self._risen.get(limit_name)
        if risen_ms is not None and now_ms - risen_ms <= _RECENT_MS:
            return True
        return any(cost.get(limit_name) and _is_open(ref) for ref, cost in tuple(self._leases))


def _is_open(ref: weakref.ref[Reserving]) -> bool:
    lease = ref()
    return lease is not None and lease.is_open
