"""The check of a log of grants and returns against its limit, without any code of the limiter.

The law: in **every** window that ends with a grant, what was charged, less what was given back, is at most ``capacity +
rate x length``. Usage beyond an estimate is charged when it is settled. It could not be refused, so no window ends with
it, but later grants must have room beside it: that is what debt means. A window starts just before its first entry, a
charge, and ends just after its last one, by the caller's clock; a thousandth of a token is allowed for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...core.limit import Limit


class Entry(NamedTuple):
    """The tokens that a call was granted or, in a later entry, used beyond that; negative if it gave them back."""

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


def add_up(log: Sequence[Entry]) -> tuple[int, int, int, int, int]:
    """Return how many calls were granted, and their tokens: estimated, refunded, overshot and used."""
    grants = {entry.call: entry.tokens for entry in reversed(log)}  # the first entry of a call stays
    estimated, refunded = sum(grants.values()), -sum(min(0, entry.tokens) for entry in log)
    used = sum(entry.tokens for entry in log)
    return len(grants), estimated, refunded, used - estimated + refunded, used


def examine(limit: Limit, log: Sequence[Entry]) -> Finding | None:
    """Return the tightest window, or None if nothing was granted.

    The height of a window's start is what had been charged before it, less what had been refilled by then, times the
    period, so that it is whole. Of all windows with the same end, the one with the lowest start has the largest excess.
    """
    amount, period = limit.refill_amount, limit.refill_period_seconds * 1000
    calls: set[int] = set()
    charged = most = 0
    lowest: tuple[int, int, int] | None = None
    tightest: Finding | None = None
    for entry in log:
        start = (charged * period - amount * entry.before_ms, entry.before_ms, charged)
        if entry.tokens > 0 and (lowest is None or start[0] <= lowest[0]):
            lowest = start
        charged += entry.tokens
        if entry.call not in calls and lowest is not None:
            height, at_ms, charged_before = lowest
            excess = charged * period - amount * entry.after_ms - height - limit.capacity * period
            if tightest is None or excess > most:
                most, length_ms = excess, entry.after_ms - at_ms
                allowed = limit.capacity + amount * length_ms / period
                tightest = Finding(charged - charged_before, allowed, length_ms, passed=excess * 1000 > period)
        calls.add(entry.call)
    return tightest
