"""Lines of waiters: first come, first served within an event loop, or among all threads of blocking code.

Only the head of a line has a timer; the others are woken when they become head, so nobody stampedes. A newcomer that
does not wait is refused if it needs more than those in line will leave. The lines of several event loops are apart:
nobody waits behind one who may be stuck or dead. `Standing` is what one waiter does.
"""

from __future__ import annotations

import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from weakref import ref

from ..core.balances import debit
from ..core.decide import refusal
from ..core.errors import RateLimitExceeded
from ..forks import after_fork, protect
from ..records.algebra import Key
from ..records.waiters import WAITER_PREFIX
from ..repository.backend import Backend
from ..runtime.port import Signal, has_ended
from .charge_path import ChargePath
from .grant import add_up


@dataclass(slots=True, eq=False)
class Ticket:
    """A place in the lines of every bucket that an acquire needs."""

    scope: object
    costs: Mapping[Key, Mapping[str, int]]
    """What it wants of each bucket."""
    signal: Signal
    mark: str
    """The attribute of the mark that its line leaves in buckets."""
    since_ms: int
    has_news: bool = False
    """Whether another limiter has given something back, which its own has not seen yet."""


@dataclass(slots=True, eq=False)
class Line:
    """The waiters for one bucket in the order of coming, and what they want together."""

    tickets: deque[Ticket] = field(default_factory=deque)
    wanted: Counter[str] = field(default_factory=Counter)
    marked_ms: int = 0
    """When it last left a mark in the bucket."""
    takes: int = 0
    """How often slots of the bucket had been taken when one of its waiters was last served."""

    def sum_ahead(self, key: Key, before: Ticket | None) -> Mapping[str, int]:
        """Return what all of them want of the bucket together, or those up to ``before``."""
        if before is None:
            return dict(self.wanted)
        return add_up(ticket.costs[key] for ticket in takewhile(lambda each: each is not before, self.tickets))


_OCCUPIED: set[ref[Lines]] = set()
"""The lines of all limiters of this process in which anyone stands."""


class Lines:
    """The lines of one limiter, by bucket."""

    def __init__(self, backend: Backend, stopwatch: Callable[[], float]) -> None:
        self._runtime = backend.runtime
        self._clock = backend.clock
        self.stopwatch = stopwatch
        self.occupied = _OCCUPIED
        """The lines that a return may wake."""
        self._ref = ref(self, _OCCUPIED.discard)
        hash(self._ref)  # a reference remembers its hash, which cannot be computed once these lines are gone
        self._lock = threading.RLock()  # what a dead loop leaves is cleared away at any moment, also under the lock
        self.forget()
        protect(self._lock)
        after_fork(self.forget)

    def check(self, chain: ChargePath, cost: Mapping[str, int], max_wait_ms: int, before: Ticket | None = None) -> None:
        """Refuse a caller that cannot be served in time after those ahead in line (all of it, or up to ``before``)."""
        now_ms = self._clock.now_ms()
        with self._lock:
            lines = self._lines_of(self._runtime.scope())
            ahead = [lines[key].sum_ahead(key, before) if key in lines else {} for key in chain.roots]
        error = refuse_behind(chain, cost, ahead, now_ms) if any(ahead) else None
        if error is not None and not may_wait(chain, error, now_ms, max_wait_ms):
            raise error

    def stir(self, keys: tuple[Key, ...] = ()) -> None:
        """Wake the heads of the lines of some buckets, where tokens came back; of all own ones if none is named.

        The waiters of other limiters of this process are woken too, as they may share the store. Keys begin with the
        random id of a namespace, so buckets of other stores have other keys.
        """
        for each in [lines() for lines in tuple(self.occupied)] if keys else [self]:
            for head in each._heads(keys) if each is not None else ():
                head.has_news = head.has_news or each is not self
                head.signal.set()

    def _heads(self, keys: tuple[Key, ...]) -> list[Ticket]:
        with self._lock:
            return [lines[key].tickets[0] for lines in self.waiting.values() for key in keys or lines if key in lines]

    def forget(self) -> None:
        """Start with empty lines under a new name: waiters of the parent do not wait in a forked child."""
        self.waiting: dict[object, dict[Key, Line]] = {}
        """The lines of each event loop."""
        self.occupied.discard(self._ref)
        self._name = os.urandom(4).hex()
        """Tells the marks of these lines from those of other processes."""

    def new_ticket(self, chain: ChargePath, cost: Mapping[str, int]) -> Ticket:
        """Return a ticket for the lines of a chain's buckets, of a caller that comes now."""
        scope = self._runtime.scope()
        costs = {level.key(0): chain.cost_at(level.home.level, cost) for level in chain.levels}
        mark = f"{WAITER_PREFIX}{self._name}{id(scope) & 0xFFFFFF:x}"
        return Ticket(scope, costs, self._runtime.new_signal(), mark, self._clock.now_ms())

    async def wait_to_lead(self, ticket: Ticket, seconds: float) -> bool:
        """Wait until the ticket leads all its lines; return False if that takes too long."""
        woken = await ticket.signal.wait(seconds)
        ticket.signal = self._runtime.new_signal()
        return woken or self.leads(ticket)

    async def pause(self, ticket: Ticket, seconds: float) -> bool:
        """Wait for ``seconds``; return True if tokens or slots came back to one of the buckets before."""
        pause = getattr(self._clock, "pause", None)
        if pause is not None:
            await pause(seconds)
            return False
        stirred = await ticket.signal.wait(seconds)
        ticket.signal = self._runtime.new_signal()  # not before: what comes during an attempt is not missed
        return stirred

    def find_line(self, ticket: Ticket, key: Key) -> Line | None:
        """Return the line of a bucket that a ticket is in; None once it has left."""
        with self._lock:
            line = self.waiting.get(ticket.scope, {}).get(key)
            return line if line is not None and ticket in line.tickets else None

    def find_lines(self, ticket: Ticket) -> list[Line]:
        """Return the lines that a ticket is in."""
        return [line for line in (self.find_line(ticket, key) for key in ticket.costs) if line is not None]

    def find_next(self, ticket: Ticket, key: Key) -> Ticket | None:
        """Return the ticket behind one that leads the line of a bucket."""
        with self._lock:
            line = self.find_line(ticket, key)
            return None if line is None else next((each for each in line.tickets if each is not ticket), None)

    def join(self, ticket: Ticket) -> bool:
        """Join the lines; return whether the ticket leads all of them."""
        with self._lock:
            lines = self._lines_of(ticket.scope)
            self.waiting[ticket.scope] = lines
            self.occupied.add(self._ref)
            for key, cost in ticket.costs.items():
                line = lines.setdefault(key, Line())
                line.tickets.append(ticket)
                line.wanted.update(cost)
            return self.leads(ticket)

    def _lines_of(self, scope: object) -> dict[Key, Line]:
        """Return the lines of an event loop, and drop those of loops that have been closed."""
        lines = self.waiting.get(scope)
        if lines is not None:
            return lines
        for ended in filter(has_ended, list(self.waiting)):
            self.waiting.pop(ended, None)
        return {}

    def leads(self, ticket: Ticket) -> bool:
        """Return whether a ticket is the first in all its lines."""
        with self._lock:
            lines = self.waiting[ticket.scope]
            return all(lines[key].tickets[0] is ticket for key in ticket.costs)

    def leave(self, ticket: Ticket) -> None:
        """Leave the lines, and wake the tickets that lead now."""
        with self._lock:
            lines = self.waiting.get(ticket.scope, {})
            for key, cost in ticket.costs.items():
                line = lines.get(key)
                if line is not None and ticket in line.tickets:  # else it was interrupted before it stood here
                    line.tickets.remove(ticket)
                    line.wanted.subtract(cost)
                if line is not None and not line.tickets:
                    del lines[key]
            fronts = (lines[key].tickets[0] for key in ticket.costs if key in lines)
            heirs = [front for front in fronts if self.leads(front)]
            if not lines:
                self.waiting.pop(ticket.scope, None)
            if not self.waiting:
                self.occupied.discard(self._ref)
        for heir in heirs:
            heir.signal.set()


def refuse_behind(
    chain: ChargePath, cost: Mapping[str, int], ahead: Sequence[Mapping[str, int]], now_ms: int
) -> RateLimitExceeded | None:
    """Return the refusal of a cost once others have taken what they want of each level; None if it fits."""
    wanted = {name: amount for name, amount in cost.items() if amount}  # zero-cost requests cannot jump the queue
    served = []
    for reading, taken in zip(chain.readings(now_ms), ahead, strict=True):
        balances = {name: debit(each, taken.get(name, 0), now_ms) for name, each in reading.balances.items()}
        served.append(reading._replace(balances=balances))
    return refusal(served, wanted, now_ms)


def may_wait(chain: ChargePath, error: RateLimitExceeded, now_ms: int, left_ms: int) -> bool:
    """Return whether waiting for ``left_ms`` may help a refused caller.

    Tokens of a rate and slots may come back at any moment. A quota that resets later has to be one of which this
    process expects a return.
    """
    if left_ms <= 0 or error.retry_after_seconds is None:
        return False
    late = [each for each in error.violations if round((each.retry_after_seconds or 0) * 1000) > left_ms]
    return all(chain.expects_return(status, now_ms) for status in late if status.limit.calendar is not None)
