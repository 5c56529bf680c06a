"""An oracle for the arithmetic, in whole numbers and independent of `zae_limiter.core`.

A limit of ``amount`` tokens every ``period`` seconds makes ``amount * 1000`` millitokens in ``period * 1000`` ms: the
same fraction, so ``rate = amount / period`` millitokens a millisecond. Stored balances are floors of that rational
line. Two floors differ from the line by less than one millitoken, and by nothing else.

A quota makes ``amount * 1000`` millitokens at once when a window begins. Windows are counted by the local date.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import accumulate
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from tests.conformance.expect import same, true

if TYPE_CHECKING:
    from collections.abc import Iterable

    from zae_limiter.core.limit import Limit
    from zae_limiter.core.reports import BucketState
    from zae_limiter.limiter.limiter import RateLimiter

LAG_MS = 50
"""How far in the past a client may decide after it has lost a race; its decision counts as of then."""


def made(limit: Limit, instant_ms: int) -> int:
    """Return the millitokens that the limit has made from the epoch to an instant, rounded down."""
    if limit.calendar is not None:
        return number_of_window(limit.calendar.text, instant_ms) * limit.refill_amount * 1000
    return instant_ms * limit.refill_amount // limit.refill_period_seconds


def number_of_window(calendar: str, instant_ms: int) -> int:
    """Return the number of the hour, day, week, month or period that holds an instant, by the date on the wall.

    For zones of whole hours in which midnight always exists; windows begin at midnight, weeks on Monday.
    """
    unit, _, zone = calendar.partition("@")
    if unit.endswith("ms"):
        return instant_ms // int(unit[:-2])
    if unit == "hour":
        return instant_ms // 3_600_000
    date = datetime.fromtimestamp(instant_ms // 1000, ZoneInfo(zone)).date()
    if unit == "month":
        return date.year * 12 + date.month
    if unit == "year":
        return date.year
    return date.toordinal() if unit == "day" else (date - timedelta(date.weekday())).toordinal() // 7


def balance(state: BucketState, now_ms: int) -> int:
    """Return the millitokens of a stored bucket at an instant."""
    amount, period = state.refill_amount_milli, state.refill_period_ms
    now, then = now_ms, state.last_refill_ms
    if state.calendar is not None:
        now, then = (number_of_window(state.calendar, instant) for instant in (now, then))
    return min(state.capacity_milli, state.tokens_milli + now * amount // period - then * amount // period)


async def balances(limiter: RateLimiter, entities: Iterable[str], now_ms: int) -> dict[tuple[str, str, str], int]:
    """Return the millitokens of every stored limit of the entities, by entity, resource and limit."""
    return {
        (state.entity_id, state.resource, state.limit_name): balance(state, now_ms)
        for entity_id in entities
        for state in await limiter.get_buckets(entity_id)
    }


@dataclass(frozen=True, slots=True)
class Entry:
    """A change of a balance in millitokens, positive if they were taken, and the instant it counts from.

    Only a give-back that raised the level is an entry; one to another bucket or window is not.
    """

    at_ms: int
    milli: int
    granted: bool
    lag_ms: int = 0


@dataclass(slots=True)
class Ledger:
    """Everything that was taken from one limit of one bucket and put back, in the order of the writes."""

    limit: Limit
    entries: list[Entry] = field(default_factory=list)
    credits: int = 0
    """The millitokens that were ever given as credit: so many may be taken besides."""

    def check(self) -> None:
        """Check law 1, in every span of writes and in every window of time."""
        self._check_spans()
        self._check_windows()

    def _check_spans(self) -> None:
        """Check that from any grant to any later one, what was taken less what returns added is within the law.

        Debt counts as taken: it is paid before anything else is granted.
        """
        for first, begin in enumerate(self.entries):
            taken = 0
            for end in self.entries[first:]:
                taken += end.milli
                if begin.granted and end.granted:
                    self._within(taken, end.at_ms - begin.at_ms + begin.lag_ms)

    def _check_windows(self) -> None:
        """Check that in any window of instants, grants less the returns written between them are within the law."""
        grants = sorted((entry.at_ms, place) for place, entry in enumerate(self.entries) if entry.granted)
        returned = [0, *accumulate(max(0, -entry.milli) for entry in self.entries)]
        for first, (begin_ms, place) in enumerate(grants):
            granted = lag_ms = 0
            low = high = place
            for end_ms, place in grants[first:]:
                low, high = min(low, place), max(high, place)
                granted += self.entries[place].milli
                lag_ms = max(lag_ms, self.entries[place].lag_ms)
                self._within(granted - (returned[high] - returned[low]), end_ms - begin_ms + lag_ms)

    def _within(self, taken: int, span_ms: int) -> None:
        """``taken < capacity + rate * span + credits + 1``: over the line by less than the millitoken of its floors."""
        amount, period = self.limit.refill_amount, self.limit.refill_period_seconds
        over = taken - self.limit.capacity * 1000 - self.credits
        true(
            (over - 1) * period < amount * span_ms,
            f"over-admitted: {taken} millitokens in {span_ms} ms of {self.limit}",
        )


@dataclass(slots=True)
class ExactBucket:
    """One limit by itself, as simply as it can be said: refill to now, cut at the capacity, take.

    A settlement counts when it comes. Debt is taken as of now, whatever the balance. A give-back is added; for a quota
    without rollover, only in the window in which the tokens were taken.

    The limits of one bucket share its time, which never runs backwards: a change or a settlement is never as of an
    instant before the newest as of which anything was taken from the bucket.
    """

    limit: Limit
    as_of_ms: int
    milli: int

    @classmethod
    def full(cls, limit: Limit, now_ms: int) -> ExactBucket:
        """Return a full bucket."""
        return cls(limit, now_ms, limit.capacity * 1000)

    def level(self, now_ms: int) -> int:
        """Return the balance at an instant."""
        since = made(self.limit, now_ms) - made(self.limit, self.as_of_ms)
        return min(self.milli + since, self.limit.capacity * 1000)

    def take(self, amount: int, as_of_ms: int) -> None:
        """Take whole tokens as of an instant, whatever the balance."""
        self.milli = self.level(as_of_ms) - amount * 1000
        self.as_of_ms = as_of_ms

    def cut(self, as_of_ms: int) -> None:
        """Drop what is above the capacity at an instant."""
        self.take(0, as_of_ms)

    def change(self, limit: Limit, instant_ms: int) -> None:
        """Go on under another limit: a raise keeps the tokens, a cut clamps them, time that was counted stays so."""
        old = self.limit
        held = self.milli + made(old, instant_ms) - made(old, self.as_of_ms)
        self.milli = min(held, min(old.capacity, limit.capacity) * 1000)
        self.limit, self.as_of_ms = limit, instant_ms

    def give_back(self, amount: int, taken_ms: int, now_ms: int) -> None:
        """Give back whole tokens that were taken at ``taken_ms``."""
        calendar = self.limit.calendar
        if calendar is not None and not self.limit.rollover:
            window, now = (number_of_window(calendar.text, instant) for instant in (taken_ms, now_ms))
            if window < now:
                return
        self.milli += amount * 1000

    def missing_ms(self, cost: int, now_ms: int, floor_milli: int = 0) -> int:
        """Return the milliseconds until ``cost`` whole tokens are there beside ``floor_milli``, found by bisection."""
        low, high, needed = -1, 1, cost * 1000 + floor_milli
        if self.level(now_ms) >= needed:
            return 0
        while self.level(now_ms + high) < needed:
            low, high = high, high * 2
        while high - low > 1:
            middle = (low + high) // 2
            if self.level(now_ms + middle) < needed:
                low = middle
            else:
                high = middle
        return high


def same_balances(found: dict[tuple[str, str, str], int], before: dict[tuple[str, str, str], int], claim: str) -> None:
    """Raise AssertionError unless every balance that there was before is unchanged."""
    true(before.keys() <= found.keys(), f"{claim}: no bucket is lost")
    same({name: found[name] for name in before}, before, claim)
