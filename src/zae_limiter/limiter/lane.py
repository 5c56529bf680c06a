"""A lane: where concurrent acquires of one chain queue while a write is in flight, to go out together."""

from __future__ import annotations

import enum
import threading
from collections import deque
from typing import TYPE_CHECKING

from ..runtime.port import has_ended

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..runtime.deadline import Deadline
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

    __slots__ = ("abandoned", "atomic", "cost", "deadline", "error", "gate", "grant", "landed", "leads")

    def __init__(self, cost: Mapping[str, int], deadline: Deadline, atomic: bool = False) -> None:
        self.cost = cost
        self.deadline = deadline
        self.atomic = atomic
        self.grant: Grant | None = None
        self.error: BaseException | None = None
        self.gate: Gate | None = None
        self.leads = False
        self.abandoned = False
        self.landed = False


class Lane:
    """One leader at a time has a write in flight; the others queue.

    When the write has landed, the one in the queue with the most time left becomes leader and takes along all who
    wait, in the order of their coming. So the deadline of the write cuts nobody short.
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
        """The leader and those who wait, in the order of their coming, up to the first one with much more time."""
        ends = leader.deadline.ends + leader.deadline.seconds * _SLACK
        with self.lock:
            taken = [] if leader in self._queue else [leader]
            while self._queue and self._queue[0].deadline.ends <= ends:
                taken.append(self._queue.popleft())
        return taken

    def leave(self) -> None:
        """Hand the lead to the one in the queue with the most time left, or free the lane."""
        with self.lock:
            if not self._queue:
                self._busy = False
                return
            heir = max(self._queue, key=_ends)
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
                return Place.LEADING if ask.leads else Place.QUEUED
            if ask.landed:
                return Place.LANDED
            ask.abandoned = True
            return Place.FLYING


class Lanes:
    """The lanes of one chain, one for each event loop: nobody waits for a write of a loop that may be stuck or dead.

    Writes of several loops meet in the store, as those of several processes do.
    """

    __slots__ = ("_lanes",)

    def __init__(self) -> None:
        self._lanes: dict[object, Lane] = {}

    def of(self, home: object) -> Lane:
        """Return the lane of an event loop, or the one of all threads."""
        lane = self._lanes.get(home)
        if lane is None:
            for other in list(self._lanes):
                if has_ended(other):
                    self._lanes.pop(other, None)
            lane = self._lanes.setdefault(home, Lane())
        return lane


_SLACK = 0.1
"""How much more time than the leader somebody may have who goes along, as a share of the leader's time."""


def _ends(ask: Ask) -> float:
    return ask.deadline.ends


def _open(ask: Ask) -> None:
    if ask.gate is not None:
        ask.gate.open()
