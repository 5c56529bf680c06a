"""Waiting for tokens: first come, first served within an event loop, or among all threads of blocking code.

Only the head of a line has a timer; the others are woken when they become head, so nobody stampedes. While a
line is not empty, a newcomer sees what those before it will leave: it joins if that fits in its time, and is
refused at once if not. The lines of several event loops are apart: nobody waits behind one who may be stuck or dead.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ..core.bucket import debit
from ..core.decide import refusal
from ..core.errors import RateLimitExceeded
from ..forks import after_fork, protect
from ..runtime.port import Runtime, Signal, has_ended
from .planning import add_up

if TYPE_CHECKING:
    from ..clock import Clock
    from ..records.algebra import Key
    from .chain import Chain
    from .grant import Grant

    T = TypeVar("T")


_LOOK_SECONDS = 1.1
"""How often it is looked for a slot that another process has freed: a little later than `refusal_ttl` usually is."""


@dataclass(slots=True, eq=False)
class Ticket:
    """A place in the lines of every bucket that an acquire needs."""

    scope: object
    costs: Mapping[Key, Mapping[str, int]]
    """What it wants of each bucket."""
    signal: Signal


class Line(NamedTuple):
    """Who waits for one bucket, in the order of coming, and what they want together."""

    tickets: deque[Ticket]
    wanted: Counter[str]


class Lines:
    """The lines of one limiter, by bucket."""

    def __init__(self, runtime: Runtime, clock: Clock, stopwatch: Callable[[], float]) -> None:
        self._runtime = runtime
        self._clock = clock
        self._stopwatch = stopwatch
        self._lock = threading.RLock()  # what a dead loop leaves is cleared away at any moment, also under the lock
        self.waiting: dict[object, dict[Key, Line]] = {}
        """The lines of each event loop; empty where nobody waits."""
        protect(self._lock)
        after_fork(self.forget)

    def check(self, chain: Chain, cost: Mapping[str, int], max_wait_ms: int, before: Ticket | None = None) -> None:
        """Refuse whoever cannot be served in time after those ahead in line (all of it, or up to ``before``)."""
        now_ms = chain.instant(self._clock.now_ms())
        with self._lock:
            lines = self._lines_of(self._runtime.scope())
            ahead = [_sum_ahead(lines[key], key, before) if key in lines else {} for key in chain.roots]
        if any(ahead):
            wanted = {name: amount for name, amount in cost.items() if amount}  # who takes nothing overtakes nobody
            served = []  # every level as it will be when those ahead have been served
            for reading, taken in zip(chain.readings(now_ms), ahead, strict=True):
                balances = {name: debit(each, taken.get(name, 0), now_ms) for name, each in reading.balances.items()}
                served.append(reading._replace(balances=balances))
            error = refusal(served, wanted, now_ms)
            if error is not None and _find_wait(error, max_wait_ms) is None:
                raise error

    async def stand(
        self,
        chain: Chain,
        cost: Mapping[str, int],
        max_wait_ms: int,
        attempt: Callable[[], Coroutine[Any, Any, Grant]],
        look: Callable[[], Coroutine[Any, Any, Chain]],
        note_wait: Callable[[float], None],
    ) -> Grant:
        """Stand in line and ``attempt`` whenever it may fit, until the time is up.

        ``look`` reads the buckets. ``note_wait`` is called with the seconds of each time of waiting between attempts.
        """
        deadline_ms = self._clock.now_ms() + max_wait_ms
        costs = {level.key(0): chain.cost_at(level.home.level, cost) for level in chain.levels}
        ticket = Ticket(self._runtime.scope(), costs, self._runtime.new_signal())
        try:
            first = self._join(ticket)
            woken = first or await self._time(ticket.signal.wait(max_wait_ms / 1000), note_wait)
            ticket.signal = self._runtime.new_signal()
            if not woken and not self._leads(ticket):
                self.check(chain, cost, 0, before=ticket)
            promised_ms = overtaken = 0
            while True:
                if chain.slot_names:
                    await self._hold_back(ticket, chain, deadline_ms, look, note_wait)
                try:
                    return await attempt()
                except RateLimitExceeded as error:
                    now_ms = self._clock.now_ms()
                    wait = _find_wait(error, deadline_ms - now_ms) if self._leads(ticket) else None
                    if wait is None:
                        raise
                    before_ms, promised_ms = promised_ms, now_ms + round(wait * 1000)
                    overtaken += 0 < before_ms < promised_ms and not error.at_latest
                    seconds = _choose_pause(wait, overtaken, (deadline_ms - now_ms) / 1000)
                    await self._time(self._pause(ticket, seconds), note_wait)
        finally:
            self._leave(ticket)

    async def _hold_back(
        self,
        ticket: Ticket,
        chain: Chain,
        deadline_ms: int,
        look: Callable[[], Coroutine[Any, Any, Chain]],
        note_wait: Callable[[float], None],
    ) -> None:
        """Wait while slots are raced for and none is there that this process should take.

        Those that are free then are about to be taken again where they were freed. Now and then it is looked whether
        one stays free.
        """
        while (now_ms := self._clock.now_ms()) < deadline_ms:
            shards = list(chain.shards())
            raced = [seen for _, seen in shards if seen.is_raced_for(now_ms)]
            if not raced or any(seen.has_preferred(now_ms, level.shard) for level, seen in shards):
                return
            seconds = _LOOK_SECONDS - (now_ms - max(seen.seen_ms for seen in raced)) / 1000
            if seconds > 0:
                await self._time(self._pause(ticket, min(seconds, (deadline_ms - now_ms) / 1000)), note_wait)
            else:
                chain = await look()

    def stir(self, keys: tuple[Key, ...] = ()) -> None:
        """Wake the heads of the lines of some buckets, where tokens came back; of all of them if none is named."""
        with self._lock:
            heads = [lines[key].tickets[0] for lines in self.waiting.values() for key in keys or lines if key in lines]
        for head in heads:
            head.signal.set()

    def forget(self) -> None:
        """Start with empty lines: in a forked child nobody of the parent's waits."""
        self.waiting = {}

    async def _time(self, waiting: Coroutine[Any, Any, T], note_wait: Callable[[float], None]) -> T:
        started = self._stopwatch()
        try:
            return await waiting
        finally:
            note_wait(self._stopwatch() - started)

    async def _pause(self, ticket: Ticket, seconds: float) -> None:
        """Wait for the moment, or until somebody stirs the line."""
        pause = getattr(self._clock, "pause", None)
        if pause is not None:
            await pause(seconds)
            return
        await ticket.signal.wait(seconds)
        ticket.signal = self._runtime.new_signal()  # not before: what comes during an attempt is not missed

    def _join(self, ticket: Ticket) -> bool:
        with self._lock:
            lines = self._lines_of(ticket.scope)
            self.waiting[ticket.scope] = lines
            for key, cost in ticket.costs.items():
                line = lines.setdefault(key, Line(deque(), Counter()))
                line.tickets.append(ticket)
                line.wanted.update(cost)
            return self._leads(ticket)

    def _lines_of(self, scope: object) -> dict[Key, Line]:
        """Return the lines of an event loop, and drop those of loops that have been closed."""
        lines = self.waiting.get(scope)
        if lines is not None:
            return lines
        for ended in filter(has_ended, list(self.waiting)):
            self.waiting.pop(ended, None)
        return {}

    def _leads(self, ticket: Ticket) -> bool:
        with self._lock:
            lines = self.waiting[ticket.scope]
            return all(lines[key].tickets[0] is ticket for key in ticket.costs)

    def _leave(self, ticket: Ticket) -> None:
        with self._lock:
            lines = self.waiting.get(ticket.scope, {})
            for key, cost in ticket.costs.items():
                line = lines.get(key)
                if line is None:  # the loop has been closed in the meantime
                    continue
                if ticket in line.tickets:  # else it was interrupted before it stood here
                    line.tickets.remove(ticket)
                    line.wanted.subtract(cost)
                if not line.tickets:
                    del lines[key]
            fronts = (lines[key].tickets[0] for key in ticket.costs if key in lines)
            heirs = [front for front in fronts if self._leads(front)]
            if not lines:
                self.waiting.pop(ticket.scope, None)
        for heir in heirs:
            heir.signal.set()


def _sum_ahead(line: Line, key: Key, before: Ticket | None) -> Mapping[str, int]:
    """Return what those in the line of a bucket want of it together: all of them, or those up to ``before``."""
    if before is None:
        return dict(line.wanted)
    return add_up(ticket.costs[key] for ticket in takewhile(lambda each: each is not before, line.tickets))


def _choose_pause(seconds: float, overtaken: int, left: float) -> float:
    """Return the seconds until the next try: at the promised moment, or later by chance if others were faster there.

    Later by chance, never earlier: many processes that wait for one bucket do not all come at the same instant.
    """
    if not overtaken:
        return seconds
    from random import random  # on first use: it brings a lot along

    return min(left, seconds * (1 + min(overtaken, 8) * random()))


def _find_wait(error: RateLimitExceeded, left_ms: int) -> float | None:
    """Return the seconds after which it may fit; None if that is too late.

    A slot may come back at any moment: where none is free, it is looked for again and again while there is time.
    """
    seconds = error.retry_after_seconds
    if seconds is None:
        return None
    slots = [status.retry_after_seconds or 0.0 for status in error.violations if status.limit.is_concurrency]
    if slots:
        others = [status.retry_after_seconds or 0.0 for status in error.violations if not status.limit.is_concurrency]
        seconds = max([*others, 0.0])
        if left_ms <= 0:
            return None
    if round(seconds * 1000) > left_ms:
        return None
    return min(max([seconds, *slots]), max(seconds, _LOOK_SECONDS), left_ms / 1000) if slots else seconds
