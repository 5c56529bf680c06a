"""The log of grants and returns, per entity and limit, and its check, without any code of the limiter.

The law: in **every** window that ends with a grant, what was charged, less what was given back, is at most ``capacity +
rate x length``. A window starts with a charge; windows that start or end elsewhere are no harder to satisfy. Usage
beyond an estimate is charged when it is settled. It could not be refused, so no window ends with it, but later grants
must have room beside it: that is what debt means.

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


def examine(limit: Limit, log: Iterable[Entry]) -> Finding | None:
    """Return the tightest window, or None if nothing was granted.

    The height of a window's start is what had been charged before it, less what had been refilled by then, times the
    period, so that it is whole. Of all windows with the same end, the one with the lowest start has the largest excess.
    """
    amount, period = limit.refill_amount, limit.refill_period_seconds * 1000
    calls: set[int] = set()
    charged, most = 0, 0
    lowest: tuple[int, int, int] | None = None
    tightest: Finding | None = None
    for entry in log:
        start = (charged * period - amount * entry.before_ms, entry.before_ms, charged)
        if entry.tokens > 0 and (lowest is None or start[0] <= lowest[0]):
            lowest = start
        charged += entry.tokens
        is_grant = entry.call not in calls
        calls.add(entry.call)
        if is_grant and lowest is not None:
            height, at_ms, charged_before = lowest
            excess = charged * period - amount * entry.after_ms - height - limit.capacity * period
            if tightest is None or excess > most:
                most, length_ms = excess, entry.after_ms - at_ms
                allowed = limit.capacity + amount * length_ms / period
                tightest = Finding(charged - charged_before, allowed, length_ms, passed=excess * 1000 > period)
    return tightest
