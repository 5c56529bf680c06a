"""The simulation: calls arrive, are granted or refused, take their time, and settle what they really used.

Every decision is made by the limiter. The simulation only decides when somebody calls and what a call uses. Events are
drawn in order of time from one seeded source, so a run with a manual clock repeats exactly.
"""

from __future__ import annotations

import enum
import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...clock import Clock
from ...core.errors import RateLimitExceeded
from ...core.reports import LevelStatus
from .ledger import Ledger
from .scenario import ESTIMATE, KEYS, RESOURCE, Party

if TYPE_CHECKING:
    from ...sync import SyncLease, SyncRateLimiter

COST = {"rpm": 1, "tpm": ESTIMATE}
TRIES = 3
FAILURE_RATE = 0.04
_TAIL = 1.15
_LEAST_TOKENS = 120
_MOST_TOKENS = 4_500


class EventKind(enum.Enum):
    """The kind of an event."""

    GRANTED = "granted"
    REFUSED = "refused"
    SETTLED = "settled"
    FAILED = "failed"
    GAVE_UP = "gave up"
    REPAID = "repaid"


@dataclass(frozen=True, slots=True)
class DemoEvent:
    """One event of a call or of a bucket."""

    at_ms: int
    """Since the start of the run."""
    kind: EventKind
    who: str
    text: str
    debt: bool = False
    """Whether it drove a bucket below zero."""


class UpstreamFailure(Exception):
    """The model answered with an error, so the limiter gives the whole cost back."""


@dataclass(slots=True)
class Call:
    """One call of a key, from its arrival to its settlement."""

    number: int
    party: Party
    used: int
    seconds: float
    fails: bool
    tries: int = 0
    open: ExitStack = field(default_factory=ExitStack)
    lease: SyncLease | None = None


class Simulation:
    """Traffic against a limiter, one event at a time."""

    def __init__(self, limiter: SyncRateLimiter, clock: Clock, seed: int, seconds: float) -> None:
        self._limiter = limiter
        self._clock = clock
        self._random = random.Random(seed)
        self.start_ms = clock.now_ms()
        self.end_ms = self.start_ms + round(seconds * 1000)
        self.ledger = Ledger()
        self.events: list[DemoEvent] = []
        self.counts: Counter[EventKind] = Counter()
        self._order = itertools.count()
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._open: dict[int, Call] = {}
        self._in_debt: dict[tuple[str, str], int] = {}
        self.granted_later = 0
        self._longest_debt_ms = 0
        self.deepest_debt = 0
        for party in KEYS:
            self._expect(party, self.start_ms)

    @property
    def elapsed_ms(self) -> int:
        """The milliseconds since the start."""
        return self._clock.now_ms() - self.start_ms

    @property
    def longest_debt_ms(self) -> int:
        """The longest time that a bucket was in debt so far."""
        now_ms = self._clock.now_ms()
        return max(self._longest_debt_ms, *(now_ms - since_ms for since_ms in self._in_debt.values()), 0)

    def next_ms(self) -> int | None:
        """Return the instant of the next event, or None if there are no more."""
        return self._due[0][0] if self._due else None

    def step(self) -> None:
        """Process the next event."""
        heapq.heappop(self._due)[2]()

    def stop(self) -> None:
        """End all arrivals and settle the open calls."""
        self._due.clear()
        while self._open:
            self._finish(self._open.popitem()[1])

    def balances(self) -> dict[tuple[str, str], LevelStatus]:
        """Return the status of each limit by entity and limit, and note debts that were repaid."""
        rows = [row for party in KEYS for row in self._limiter.get_status(party.id, RESOURCE)]
        found = {(row.entity_id, row.limit_name): row for row in rows}
        for row in found.values():
            self._watch_debt(row)
        return found

    # Arrivals: a Poisson process, in bursts where the key has bursts.

    def _expect(self, party: Party, after_ms: int) -> None:
        traffic = party.traffic
        assert traffic is not None  # only keys call
        at_ms = after_ms + max(1, round(self._random.expovariate(traffic.calls_per_second) * 1000))
        cycle_ms, on_ms = round(traffic.cycle * 1000), round(traffic.on * 1000)
        phase_ms = (at_ms - self.start_ms) % cycle_ms
        if phase_ms > on_ms:
            at_ms += cycle_ms - phase_ms
        if at_ms < self.end_ms:
            self._at(at_ms, lambda: self._arrive(party, at_ms))

    def _arrive(self, party: Party, at_ms: int) -> None:
        self._expect(party, at_ms)
        tokens = min(_MOST_TOKENS, round(_LEAST_TOKENS * self._random.paretovariate(_TAIL)))
        seconds = self._random.uniform(0.15, 0.9)
        self._try(Call(next(self._order), party, tokens, seconds, self._random.random() < FAILURE_RATE))

    def _try(self, call: Call) -> None:
        who, before_ms = call.party.id, self._clock.now_ms()
        call.tries += 1
        try:
            call.lease = call.open.enter_context(self._limiter.acquire(who, RESOURCE, COST))
        except RateLimitExceeded as error:
            self._on_refusal(call, error)
            return
        after_ms = self._clock.now_ms()
        self.ledger.grant(call.number, who, COST, before_ms, after_ms)
        self.granted_later += call.tries > 1
        again = f" at try {call.tries}" if call.tries > 1 else ""
        self._tell(EventKind.GRANTED, who, f"1 rpm, {ESTIMATE} tpm estimated{again}")
        self._open[call.number] = call
        finish_ms = min(after_ms + round(call.seconds * 1000), max(self.end_ms, after_ms))
        self._at(finish_ms, lambda: self._finish(self._open.pop(call.number)))

    def _on_refusal(self, call: Call, error: RateLimitExceeded) -> None:
        for status in error.violations:
            self.ledger.accounts[status.entity_id, status.limit_name].refused += 1
        first, wait = error.primary_violation, error.retry_after_seconds
        assert first is not None  # a refusal names its reason
        assert wait is not None  # no call costs more than a bucket holds
        left = f"{first.entity_id} has {first.available:,} of {first.requested:,} {first.limit_name}"
        self._tell(EventKind.REFUSED, call.party.id, f"{left}, retry after {wait:.2f} s")
        # Later than promised by a little chance, never earlier: those refused together do not come back together.
        retry_ms = self._clock.now_ms() + round(wait * 1000 * self._random.uniform(1.0, 1.5))
        if retry_ms >= self.end_ms:
            self._tell(EventKind.GAVE_UP, call.party.id, "the demo ends before that")
        elif call.tries == TRIES:
            self._tell(EventKind.GAVE_UP, call.party.id, f"after {TRIES} tries")
        else:
            self._at(retry_ms, lambda: self._try(call))

    def _finish(self, call: Call) -> None:
        who, change, before_ms = call.party.id, call.used - ESTIMATE, self._clock.now_ms()
        assert call.lease is not None  # only granted calls finish
        if call.fails:
            with suppress(UpstreamFailure), call.open:
                raise UpstreamFailure
            back = {name: -tokens for name, tokens in COST.items()}
            self.ledger.settle(call.number, who, back, before_ms, self._clock.now_ms())
            self._tell(EventKind.FAILED, who, f"upstream error, 1 rpm and {ESTIMATE} tpm given back")
            return
        call.lease.settle(tpm=call.used)
        call.open.close()
        self.ledger.settle(call.number, who, {"tpm": change}, before_ms, self._clock.now_ms())
        text = f"used {call.used:,} ({change:+,})"
        below = [row for row in self._limiter.get_status(who, RESOURCE) if row.available < 0] if change > 0 else []
        if below:
            text += ": " + ", ".join(f"{row.entity_id} {row.available:,} {row.limit_name}" for row in below)
        for row in below:
            self._watch_debt(row)
        self._tell(EventKind.SETTLED, who, text, debt=bool(below))

    def _watch_debt(self, row: LevelStatus) -> None:
        name, now_ms = (row.entity_id, row.limit_name), self._clock.now_ms()
        if row.available < 0:
            self._in_debt.setdefault(name, now_ms)
            self.deepest_debt = min(self.deepest_debt, row.available)
        elif name in self._in_debt:
            took_ms = now_ms - self._in_debt.pop(name)
            self._longest_debt_ms = max(self._longest_debt_ms, took_ms)
            self._tell(EventKind.REPAID, name[0], f"{name[1]} out of debt after {took_ms / 1000:.1f} s")

    def _at(self, at_ms: int, action: Callable[[], None]) -> None:
        heapq.heappush(self._due, (at_ms, next(self._order), action))

    def _tell(self, kind: EventKind, who: str, text: str, *, debt: bool = False) -> None:
        self.counts[kind] += 1
        self.events.append(DemoEvent(self.elapsed_ms, kind, who, text, debt))
