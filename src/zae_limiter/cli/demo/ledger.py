"""The log of grants and returns, per entity and limit, and its check, without any code of the limiter.

The law: in **every** window that ends with a grant, what was charged, less what was given back, is at most ``capacity +
rate x length``. A window starts at any entry; windows that start or end elsewhere are no harder to satisfy. What a call
used beyond its estimate could not be refused, so no window ends with it; from then on it counts as if it had been
charged with its grant, and later grants must have room beside it: that is what debt means.

A window is measured from just before its first entry to just after its last, by the caller's clock, and the limit's
resolution, a thousandth of a token, is allowed for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ...core.limit import Limit
from .scenario import PARTIES, chain


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the log of a limit, with the clock before and after it.

    The first entry of a call is what it was granted. A later one is what it used beyond that, or (negative) what it
    gave back.
    """

    before_ms: int
    after_ms: int
    call: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Finding:
    """The window that came nearest to the limit or exceeded it."""

    charged: int
    allowed: float
    length_ms: int
    passed: bool

    @property
    def share(self) -> float:
        """The charged share of what was allowed."""
        return self.charged / self.allowed


@dataclass(slots=True)
class Account:
    """One limit of one entity."""

    entity_id: str
    limit: Limit
    log: list[Entry] = field(default_factory=list)
    granted: int = 0
    refused: int = 0
    estimated: int = 0
    refunded: int = 0
    overshot: int = 0

    @property
    def used(self) -> int:
        """The tokens that the calls really used."""
        return self.estimated - self.refunded + self.overshot

    def at_most(self, elapsed_ms: int) -> float:
        """Return what the limit allows in this time, starting with a full bucket."""
        return self.limit.capacity + self.limit.refill_amount * elapsed_ms / (self.limit.refill_period_seconds * 1000)


class Ledger:
    """The accounts of all entities. A call is entered for its key and for all above it."""

    def __init__(self) -> None:
        self.accounts = {
            (party.id, limit.name): Account(party.id, limit) for party in PARTIES for limit in party.limits
        }

    def grant(self, call: int, key_id: str, cost: Mapping[str, int], before_ms: int, after_ms: int) -> None:
        """Enter a granted call."""
        for party in chain(key_id):
            for name, tokens in cost.items():
                account = self.accounts[party.id, name]
                account.granted += 1
                account.estimated += tokens
                account.log.append(Entry(before_ms, after_ms, call, tokens))

    def settle(self, call: int, key_id: str, change: Mapping[str, int], before_ms: int, after_ms: int) -> None:
        """Enter what a call used more (positive) or less (negative) than its estimate."""
        for party in chain(key_id):
            for name, tokens in change.items():
                account = self.accounts[party.id, name]
                account.overshot += max(0, tokens)
                account.refunded += max(0, -tokens)
                account.log.append(Entry(before_ms, after_ms, call, tokens))


@dataclass(slots=True, eq=False)
class _Start:
    """A possible start of a window. ``height`` is what had been charged by then, less what had been refilled.

    Numbers are multiplied by the period, so that they are whole. The window with the largest excess starts where the
    height is lowest.
    """

    at_ms: int
    charged: int
    height: int = 0
    lowest: _Start = field(init=False)


class _Oracle:
    """Reads the log of one limit, entry by entry."""

    def __init__(self, limit: Limit) -> None:
        self._capacity = limit.capacity
        self._amount = limit.refill_amount
        self._period = limit.refill_period_seconds * 1000
        self._charged = 0
        self._starts: list[_Start] = []
        self._granted_at: dict[int, int] = {}
        self._beyond: int | None = None
        self.tightest: Finding | None = None

    def read(self, entry: Entry) -> None:
        """Take one more entry into account."""
        here = len(self._starts)
        granted_at = self._granted_at.setdefault(entry.call, here)
        self._starts.append(_Start(entry.before_ms, self._charged))
        self._charged += entry.tokens
        if granted_at < here and entry.tokens > 0:
            for start in self._starts[granted_at + 1 :]:
                start.charged += entry.tokens
            self._survey(granted_at + 1)
            return
        self._survey(here)
        if granted_at == here:
            self._end_window(entry.after_ms)

    def _survey(self, first: int) -> None:
        """Find the lowest start again, from ``first`` on."""
        before = self._starts[first - 1].lowest if first else None
        for start in self._starts[first:]:
            start.height = start.charged * self._period - self._amount * start.at_ms
            start.lowest = start if before is None or start.height <= before.height else before
            before = start.lowest

    def _end_window(self, at_ms: int) -> None:
        start = self._starts[-1].lowest
        height = self._charged * self._period - self._amount * at_ms
        beyond = height - start.height - self._capacity * self._period
        if self._beyond is None or beyond > self._beyond:
            self._beyond = beyond
            length_ms = at_ms - start.at_ms
            allowed = self._capacity + self._amount * length_ms / self._period
            passed = beyond * 1000 > self._period
            self.tightest = Finding(self._charged - start.charged, allowed, length_ms, passed)


def examine(limit: Limit, log: Iterable[Entry]) -> Finding | None:
    """Return the tightest window, or None if nothing was granted."""
    oracle = _Oracle(limit)
    for entry in log:
        oracle.read(entry)
    return oracle.tightest
