"""The queue in which concurrent acquires of one chain wait while a write is in flight, to go out together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, NoReturn, TypeAlias, TypeVar

from ..core.errors import RateLimiterUnavailable
from ..records.algebra import Image, Write
from ..records.level import BucketLimits
from ..runtime.deadline import Deadline
from ..runtime.port import Signal

G = TypeVar("G")
Turn: TypeAlias = Callable[[Write, BucketLimits, Image], Write]
"""Returns a write to a level's bucket that serves a caller who stands in line, with the mark of the one behind it."""


@dataclass(slots=True, eq=False)
class PendingCharge(Generic[G]):
    """One request for tokens, and its outcome: a grant or an error."""

    cost: Mapping[str, int]
    """What it takes."""
    deadline: Deadline
    atomic: bool = False
    holder: str | None = None
    """The name of the caller, for the slots that it takes; None for who takes none but those it asks for by name."""
    grant: G | None = None
    error: BaseException | None = None
    signal: Signal | None = None
    leads: bool = False
    abandoned: bool = False
    decided: bool = False
    asked: Mapping[str, int] | None = None
    """What was asked for, if it takes slots besides."""
    turn: Turn | None = None
    """The turn of a caller that stands in line."""
    batch: list[PendingCharge[G]] = field(default_factory=list)
    """The charges whose write it leads, as soon as that begins."""

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

    __slots__ = ("_leader", "end", "lead", "lock", "waiting")

    def __init__(self) -> None:
        self.lock = threading.RLock()  # the garbage collector or a signal may run an acquire under it
        self._leader: dict[None, PendingCharge[G]] = {}
        self.lead: Callable[[PendingCharge[G]], PendingCharge[G]] = partial(self._leader.setdefault, None)
        """Make a charge the leader if there is none, in one step that no signal can interrupt; return the leader. There
        is one as long as a charge waits."""
        self.end: Callable[[], None] = self._leader.clear
        """Have no leader any more; only under the lock, and if no charge waits."""
        self.waiting: list[PendingCharge[G]] = []  # a deque takes ten times the memory, for every key

    def queue(self, charge: PendingCharge[G], new_signal: Callable[[], Signal]) -> Signal | None:
        """Queue and return the signal to wait for; None for the leader, if nothing is in flight any more."""
        with self.lock:
            if self.lead(charge) is charge:
                return None
            charge.signal = new_signal()
            self.waiting.append(charge)
            return charge.signal

    async def wait_to_lead(self, charge: PendingCharge[G], new_signal: Callable[[], Signal]) -> bool:
        """Queue until the charge is decided together with others, or return True if it has to lead.

        Raise `RateLimiterUnavailable` if its time is up before.
        """
        signal = self.queue(charge, new_signal)
        if signal is None:
            return True
        await signal.wait(charge.deadline.left())
        if not (charge.decided or charge.leads):
            seconds = charge.deadline.seconds
            raise RateLimiterUnavailable(f"No decision within {seconds:.3g} s: other calls were queued before it.")
        return not charge.decided

    def batch(self, leader: PendingCharge[G]) -> list[PendingCharge[G]]:
        """Return those who wait, the leader included, in the order of their coming, up to one with much more time."""
        ends = leader.deadline.ends + leader.deadline.seconds * _SLACK
        with self.lock:
            taken = [] if leader in self.waiting else [leader]
            while self.waiting and self.waiting[0].deadline.ends <= ends:
                taken.append(self.waiting.pop(0))
        return taken

    def decide(self, batch: list[PendingCharge[G]], failure: Exception | None) -> list[G]:
        """Give the batch its outcome; return the grants whose callers are gone: they have to go back.

        Charges without an outcome end with ``failure``. The one in the queue with the most time left leads from now on.
        """
        orphaned = []
        with self.lock:
            for charge in batch:
                charge.decided = True
                if charge.grant is None:
                    charge.error = charge.error or failure or RateLimiterUnavailable(_INTERRUPTED)
                elif charge.abandoned:
                    orphaned.append(charge.grant)
            heir = max(self.waiting, key=lambda charge: charge.deadline.ends, default=None)
            if heir is None:
                self._leader.clear()
            else:
                self._leader[None] = heir
                heir.leads = True
        for charge in batch if heir is None else (*batch, heir):
            if charge.signal is not None:
                charge.signal.set()
        return orphaned

    def withdraw(self, charge: PendingCharge[G], *, alone: bool) -> list[G]:
        """Take out the charge of a cancelled or interrupted caller; return what was granted and has to go back.

        If it leads and its write has not begun, or was in the caller's own hands (``alone``), the others go on without
        it. Of a write that is in flight elsewhere, `decide` returns what was granted.
        """
        with self.lock:
            if charge in self.waiting:
                self.waiting.remove(charge)
            charge.abandoned = True
            if self._leader.get(None) is not charge or (charge.batch and not alone):
                return [charge.grant] if charge.decided and charge.grant is not None else []
        return self.decide(charge.batch or [charge], None)


_INTERRUPTED = "The write that was to make the decision was interrupted."
_SLACK = 0.1
"""How much more time than the leader a charge in its batch may have, as a share of the leader's time."""
