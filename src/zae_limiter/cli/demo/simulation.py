"""The traffic of the demo: calls arrive, are granted or refused, take their time, and settle what they really used.

The limiter makes every decision. The simulation only decides when a key calls and what a call uses, by one seeded
source, so a run on a manual clock repeats. Keys and calls are generators that yield the instant at which they go on.
"""

from __future__ import annotations

import heapq
import random
import signal
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from ...core.errors import RateLimitExceeded
from ...core.limit import Limit

if TYPE_CHECKING:
    from ...clock import Clock
    from ...core.reports import LevelStatus
    from ...sync import SyncRateLimiter

RESOURCE, ESTIMATE = "gpt-4", 400
"""What is called, and the tokens charged for a call before anybody knows what it uses."""
COST = {"rpm": 1, "tpm": ESTIMATE}
_TRIES, _FAILURE_RATE = 3, 0.04


class Party(NamedTuple):
    """An entity. A key makes ``rate`` calls a second: all the time, or for ``burst_ms`` of every ``cycle_ms``."""

    id: str
    label: str
    parent_id: str | None
    limits: tuple[Limit, Limit]
    rate: float = 0.0
    burst_ms: int = 1000
    cycle_ms: int = 1000


def _limits(rpm: int, calls: int, tpm: int, tokens: int) -> tuple[Limit, Limit]:
    return Limit.per_minute("rpm", rpm, burst=calls), Limit.per_minute("tpm", tpm, burst=tokens)


_KEY, _PROJECT = _limits(120, 6, 48_000, 2_500), _limits(200, 10, 78_000, 4_000)
PARTIES = (
    Party("acme", "acme", None, _limits(360, 14, 120_000, 6_000)),
    Party("chat", "├ chat", "acme", _PROJECT),
    Party("web", "│ ├ web", "chat", _KEY, 1.8),
    Party("mobile", "│ └ mobile", "chat", _KEY, 1.1),
    Party("batch", "└ batch", "acme", _PROJECT),
    Party("etl", "  ├ etl", "batch", _KEY, 7.0, 1200, 4000),
    Party("evals", "  └ evals", "batch", _KEY, 1.0),
)
"""Parents come before their children, siblings together: the order of the tree."""
BY_ID = {party.id: party for party in PARTIES}
KEYS = tuple(party for party in PARTIES if party.rate)


def install(limiter: SyncRateLimiter) -> None:
    """Create all entities. Keys use the limits of the resource; those above have their own."""
    limiter.set_resource_defaults(RESOURCE, _KEY, principal="demo")
    for party in PARTIES:
        limiter.create_entity(party.id, None, party.parent_id, party.parent_id is not None, None, "demo")
        if not party.rate:
            limiter.set_limits(party.id, party.limits, RESOURCE, principal="demo")


class Entry(NamedTuple):
    """The tokens that a call was granted or, in a later entry, used beyond that; negative if it gave them back."""

    before_ms: int
    after_ms: int
    call: int
    tokens: int


class Event(NamedTuple):
    """What happened to a call or a bucket."""

    at_ms: int
    kind: str
    who: str
    text: str
    debt: bool = False


class Simulation:
    """Traffic against a limiter, and the log of each limit of each entity, with how often it refused."""

    def __init__(self, limiter: SyncRateLimiter, clock: Clock, seed: int, seconds: float) -> None:
        self._limiter, self._clock, self._random = limiter, clock, random.Random(seed)
        self.start_ms = clock.now_ms()
        self.end_ms = self.start_ms + round(seconds * 1000)
        self.logs: dict[tuple[str, str], list[Entry]] = defaultdict(list)
        self.refused, self.counts, self.events = Counter[tuple[str, str]](), Counter[str](), list[Event]()
        self.deepest_debt = self.longest_debt_ms = 0
        self._in_debt_since: dict[tuple[str, str], int] = {}
        self._due: list[tuple[int, int, Iterator[int]]] = []
        self._order, self._is_over = count(), False
        for party in KEYS:
            self._go_on(self._arrive(party))

    @property
    def elapsed_ms(self) -> int:
        """The time since the start."""
        return self._clock.now_ms() - self.start_ms

    def play(self, sleep: Callable[[float], object], frame_ms: int, frame: Callable[[], object]) -> bool:
        """Run to the end with a frame every ``frame_ms``. Return False if Ctrl-C ended it early."""
        next_frame_ms, pressed = self.start_ms, list[int]()
        before = signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))  # no call is interrupted
        with ExitStack() as at_the_end:
            at_the_end.callback(signal.signal, signal.SIGINT, before)
            try:
                while not pressed:
                    now_ms, due_ms = self._clock.now_ms(), self._due[0][0] if self._due else self.end_ms + 1
                    if due_ms <= min(now_ms, self.end_ms):
                        self._go_on(heapq.heappop(self._due)[2])
                    elif next_frame_ms <= now_ms:
                        frame()
                        next_frame_ms = max(next_frame_ms + frame_ms, now_ms)
                    elif now_ms >= self.end_ms:
                        break
                    else:
                        sleep((min(next_frame_ms, self.end_ms, due_ms) - now_ms) / 1000)
            finally:  # also if a frame cannot be written: calls that wait give up, and open ones are settled
                self._is_over = True
                while self._due:
                    next(self._due.pop()[2], None)
            frame()
            return not pressed

    def balances(self) -> dict[tuple[str, str], LevelStatus]:
        """Return the status of each limit by entity and limit, and note debts and their end."""
        rows = [row for party in KEYS for row in self._limiter.get_status(party.id, RESOURCE)]
        found = {(row.entity_id, row.limit_name): row for row in rows}
        self._watch_debts(found.values())
        return found

    def _go_on(self, process: Iterator[int]) -> None:
        at_ms = next(process, None)
        if at_ms is not None:
            heapq.heappush(self._due, (at_ms, next(self._order), process))

    def _arrive(self, party: Party) -> Iterator[int]:
        """Make the calls of a key: a Poisson process, in bursts if the key has bursts."""
        at_ms = self._next_arrival(party, self.start_ms)
        while at_ms < self.end_ms:
            yield at_ms
            at_ms = self._next_arrival(party, at_ms)
            self._go_on(self._call(party.id))

    def _next_arrival(self, party: Party, after_ms: int) -> int:
        at_ms = after_ms + max(1, round(self._random.expovariate(party.rate) * 1000))
        phase_ms = (at_ms - self.start_ms) % party.cycle_ms
        return at_ms + party.cycle_ms - phase_ms if phase_ms > party.burst_ms else at_ms

    def _call(self, who: str) -> Iterator[int]:
        """Make one call, from its arrival to its settlement."""
        call, used = next(self._order), min(4_500, round(120 * self._random.paretovariate(1.15)))
        lasts_ms, fails = round(self._random.uniform(0.15, 0.9) * 1000), self._random.random() < _FAILURE_RATE
        for attempt in range(1, _TRIES + 1):
            if self._is_over:
                return
            before_ms = self._clock.now_ms()
            try:
                with self._limiter.acquire(who, RESOURCE, COST) as lease:
                    after_ms = self._enter(who, call, COST, before_ms)
                    self.counts["granted later"] += attempt > 1
                    again = f" at try {attempt}" if attempt > 1 else ""
                    self._tell("granted", who, f"1 rpm, {ESTIMATE} tpm estimated{again}")
                    yield min(after_ms + lasts_ms, max(self.end_ms, after_ms))
                    before_ms = self._clock.now_ms()
                    if fails:
                        raise ConnectionError  # the model's answer: the limiter gives the whole cost back
                    lease.settle(tpm=used)
            except RateLimitExceeded as error:
                retry_ms = self._note_refusal(who, error)
                if attempt == _TRIES or retry_ms >= self.end_ms:
                    why = "the demo ends before that" if retry_ms >= self.end_ms else f"after {_TRIES} tries"
                    return self._tell("gave up", who, why)
                yield retry_ms
            except ConnectionError:
                self._enter(who, call, {name: -need for name, need in COST.items()}, before_ms)
                return self._tell("failed", who, f"upstream error, 1 rpm and {ESTIMATE} tpm given back")
            else:
                self._enter(who, call, {"tpm": used - ESTIMATE}, before_ms)
                return self._tell_settlement(who, used)

    def _enter(self, who: str | None, call: int, tokens: Mapping[str, int], before_ms: int) -> int:
        """Enter what a key and all above it are charged or given back. Return the instant."""
        after_ms = self._clock.now_ms()
        while who is not None:
            for name, amount in tokens.items():
                self.logs[who, name].append(Entry(before_ms, after_ms, call, amount))
            who = BY_ID[who].parent_id
        return after_ms

    def _note_refusal(self, who: str, error: RateLimitExceeded) -> int:
        """Return when to try again: later than promised, by chance, so that calls do not come back together."""
        self.refused.update((status.entity_id, status.limit_name) for status in error.violations)
        first, wait = error.primary_violation, error.retry_after_seconds
        assert first is not None  # a refusal names its reason
        assert wait is not None  # no call costs more than a bucket holds
        left = f"{first.entity_id} has {first.available:,} of {first.requested:,} {first.limit_name}"
        self._tell("refused", who, f"{left}, retry after {wait:.2f} s")
        return self._clock.now_ms() + round(wait * 1000 * self._random.uniform(1.0, 1.5))

    def _tell_settlement(self, who: str, used: int) -> None:
        rows = self._limiter.get_status(who, RESOURCE) if used > ESTIMATE else []
        below = [row for row in rows if row.available < 0]
        self._watch_debts(below)
        debts = ", ".join(f"{row.entity_id} {row.available:,} {row.limit_name}" for row in below)
        text = f"used {used:,} ({used - ESTIMATE:+,}){f': {debts}' if below else ''}"
        self._tell("settled", who, text, debt=bool(below))

    def _watch_debts(self, rows: Iterable[LevelStatus]) -> None:
        now_ms = self._clock.now_ms()
        for row in rows:
            name = row.entity_id, row.limit_name
            if row.available < 0:
                self._in_debt_since.setdefault(name, now_ms)
                self.deepest_debt = min(self.deepest_debt, row.available)
            if name in self._in_debt_since:
                took_ms = now_ms - self._in_debt_since[name]
                self.longest_debt_ms = max(self.longest_debt_ms, took_ms)
                if row.available >= 0:
                    del self._in_debt_since[name]
                    self._tell("repaid", row.entity_id, f"{row.limit_name} out of debt after {took_ms / 1000:.1f} s")

    def _tell(self, kind: str, who: str, text: str, *, debt: bool = False) -> None:
        self.counts[kind] += 1
        self.events.append(Event(self.elapsed_ms, kind, who, text, debt))
