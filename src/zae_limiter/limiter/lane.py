"""A lane: where concurrent acquires of one chain queue while a write is in flight, to go out together."""

from __future__ import annotations

import enum
import threading
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..runtime.port import Gate
    from .engine import Grant


class Place(enum.Enum):
    """Where an ask is on its way."""

    QUEUED = enum.auto()
    LEADING = enum.auto()
    FLYING = enum.auto()
    LANDED = enum.auto()


class Ask:
    """One request for tokens, and what becomes of it."""

    __slots__ = ("abandoned", "atomic", "cost", "error", "gate", "grant", "landed", "leads")

    def __init__(self, cost: Mapping[str, int], atomic: bool = False) -> None:
        self.cost = cost
        self.atomic = atomic
        self.grant: Grant | None = None
        self.error: BaseException | None = None
        self.gate: Gate | None = None
        self.leads = False
        self.abandoned = False
        self.landed = False


class Lane:
    """One leader at a time has a write in flight; the others queue.

    When the write has landed the first in the queue becomes leader and takes along all who wait.
    """

    __slots__ = ("_busy", "_queue", "lock")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._busy = False
        self._queue: deque[Ask] = deque()

    def lead(self) -> bool:
        """Take the lead if the lane is free."""
        with self.lock:
            free = not self._busy
            self._busy = True
        return free

    def enter(self, ask: Ask, new_gate: Callable[[], Gate]) -> Gate | None:
        """Take the lead if the lane is free; otherwise queue behind the gate that is returned."""
        with self.lock:
            if not self._busy:
                self._busy = True
                return None
            ask.gate = new_gate()
            self._queue.append(ask)
            return ask.gate

    def batch(self, leader: Ask) -> list[Ask]:
        """The leader and everybody who waits, in the order of their coming."""
        with self.lock:
            taken = [leader, *self._queue]
            self._queue.clear()
        return taken

    def leave(self) -> None:
        """Hand the lead to the first in the queue, or free the lane."""
        with self.lock:
            heir = self._queue.popleft() if self._queue else None
            if heir is None:
                self._busy = False
                return
            heir.leads = True
        _open(heir)

    def land(self, batch: list[Ask]) -> list[Grant]:
        """Tell the batch its outcome; returns the grants whose callers are gone: they go back."""
        with self.lock:
            for ask in batch:
                ask.landed = True
            lost = [ask.grant for ask in batch if ask.abandoned and ask.grant is not None]
        for ask in batch:
            _open(ask)
        return lost

    def withdraw(self, ask: Ask) -> Place:
        """A cancelled caller leaves; the place where its ask was says who has to clean up."""
        with self.lock:
            if ask in self._queue:
                self._queue.remove(ask)
                return Place.QUEUED
            if ask.landed:
                return Place.LANDED
            if ask.leads:
                return Place.LEADING
            ask.abandoned = True
            return Place.FLYING


def _open(ask: Ask) -> None:
    if ask.gate is not None:
        ask.gate.open()
