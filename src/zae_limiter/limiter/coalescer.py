"""The queue in which concurrent acquires of one chain wait while a write is in flight, to go out together."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, NoReturn, TypeVar

from ..core.errors import RateLimiterUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..runtime.deadline import Deadline
    from ..runtime.port import Signal

G = TypeVar("G")


@dataclass(slots=True, eq=False)
class PendingCharge(Generic[G]):
    """One request for tokens, and what becomes of it: a grant or an error."""

    cost: Mapping[str, int]
    deadline: Deadline
    atomic: bool = False
    grant: G | None = None
    error: BaseException | None = None
    signal: Signal | None = None
    leads: bool = False
    abandoned: bool = False
    decided: bool = False

    def fail(self) -> NoReturn:
        """Raise the error that the charge ended with."""
        error, self.error = self.error, None
        assert error is not None  # a charge that was decided has a grant or an error
        try:
            raise error
        finally:
            del error  # it holds this frame, which must not hold it as well


class WriteCoalescer(Generic[G]):
    """One leader at a time has a write in flight; the others queue.

    When the write has landed, the one in the queue with the most time left becomes leader and takes along all who
    wait, in the order of their coming. So the deadline of the write cuts nobody short.
    """

    __slots__ = ("_lock", "leading", "waiting")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.leading = threading.Lock()
        """Held while a write is in flight: whoever acquires it without blocking is the leader. As long as somebody
        waits it is held, because it is released only where nobody does."""
        self.waiting: deque[PendingCharge[G]] = deque()

    def queue(self, charge: PendingCharge[G], new_signal: Callable[[], Signal]) -> Signal | None:
        """Queue and return the signal to wait for; None for the leader, if nothing is in flight any more."""
        with self._lock:
            if self.leading.acquire(blocking=False):
                return None
            charge.signal = new_signal()
            self.waiting.append(charge)
            return charge.signal

    def batch(self, leader: PendingCharge[G]) -> list[PendingCharge[G]]:
        """Return those who wait, the leader included, in the order of their coming, up to one with much more time."""
        ends = leader.deadline.ends + leader.deadline.seconds * _SLACK
        with self._lock:
            taken = [] if leader in self.waiting else [leader]
            while self.waiting and self.waiting[0].deadline.ends <= ends:
                taken.append(self.waiting.popleft())
        return taken

    def leave(self) -> None:
        """Make the one in the queue with the most time left the leader, or end it."""
        with self._lock:
            if not self.waiting:
                self.leading.release()
                return
            heir = max(self.waiting, key=lambda charge: charge.deadline.ends)
            heir.leads = True
        _wake(heir)

    def decide(self, batch: list[PendingCharge[G]], failure: Exception | None) -> list[G]:
        """Tell the batch its outcome and leave; return the grants whose callers are gone: they have to go back.

        Charges without an outcome end with ``failure``.
        """
        orphaned = []
        with self._lock:
            for charge in batch:
                charge.decided = True
                if charge.grant is None:
                    charge.error = charge.error or failure or RateLimiterUnavailable(_INTERRUPTED)
                elif charge.abandoned:
                    orphaned.append(charge.grant)
            if len(batch) == 1 and batch[0].signal is None and not self.waiting:
                self.leading.release()
                return orphaned
        for charge in batch:
            _wake(charge)
        self.leave()
        return orphaned

    def withdraw(self, charge: PendingCharge[G]) -> G | None:
        """Take out the charge of a cancelled caller; return the grant if it was decided already: that has to go back.

        Of one that is in flight `decide` returns it.
        """
        with self._lock:
            queued = charge in self.waiting
            if queued:
                self.waiting.remove(charge)
            charge.abandoned = not charge.decided
            grant = charge.grant if charge.decided else None
        if queued and charge.leads:
            self.leave()
        return grant


_INTERRUPTED = "The write that was to make the decision was interrupted."
_SLACK = 0.1
"""How much more time than the leader somebody may have who goes along, as a share of the leader's time."""


def _wake(charge: PendingCharge[G]) -> None:
    if charge.signal is not None:
        charge.signal.set()
