"""An oracle for the arithmetic, in whole numbers and independent of `zae_limiter.core`.

A limit of ``amount`` tokens every ``period`` seconds makes ``amount * 1000`` millitokens in ``period * 1000`` ms: the
same fraction, so ``rate = amount / period`` millitokens a millisecond. Stored balances are floors of that rational
line. Two floors differ from the line by less than one millitoken, and by nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .expect import same, true

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ...core.limit import Limit
    from ...core.reports import BucketState
    from ...limiter.limiter import RateLimiter

LAG_MS = 50
"""How far in the past a client may decide after it has lost a race; its decision counts as of then."""


def made(limit: Limit, instant_ms: int) -> int:
    """Return the millitokens that the limit has made from the epoch to an instant, rounded down."""
    return instant_ms * limit.refill_amount // limit.refill_period_seconds


def balance(state: BucketState, now_ms: int) -> int:
    """Return the millitokens of a stored bucket at an instant."""
    amount, period = state.refill_amount_milli, state.refill_period_ms
    since = now_ms * amount // period - state.last_refill_ms * amount // period
    return min(state.capacity_milli, state.tokens_milli + since)


async def balances(limiter: RateLimiter, entities: Iterable[str], now_ms: int) -> dict[tuple[str, str, str], int]:
    """Return the millitokens of every stored limit of the entities, by entity, resource and limit."""
    return {
        (state.entity_id, state.resource, state.limit_name): balance(state, now_ms)
        for entity_id in entities
        for state in await limiter.get_buckets(entity_id)
    }


@dataclass(frozen=True, slots=True)
class Entry:
    """A change of a balance in millitokens, positive where they were taken, and the instant it counts from."""

    at_ms: int
    milli: int
    granted: bool
    lag_ms: int = 0
    returned: int = 0
    """The part of a grant that was given back later, whatever it was worth."""


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
        """Check that from any grant to any later one, what was taken less what was worth giving back is within the law.

        Debt counts as taken: it is paid before anything else is granted.
        """
        for first, begin in enumerate(self.entries):
            taken = 0
            for end in self.entries[first:]:
                taken += end.milli
                if begin.granted and end.granted:
                    self._within(taken, end.at_ms - begin.at_ms + begin.lag_ms)

    def _check_windows(self) -> None:
        """Check that in any window of instants, what was granted and kept is within the law."""
        grants = sorted(
            (entry.at_ms, entry.milli - entry.returned, entry.lag_ms) for entry in self.entries if entry.granted
        )
        for first, (begin_ms, _, _) in enumerate(grants):
            kept = lag_ms = 0
            for end_ms, milli, lag in grants[first:]:
                kept += milli
                lag_ms = max(lag_ms, lag)
                self._within(kept, end_ms - begin_ms + lag_ms)

    def _within(self, taken: int, span_ms: int) -> None:
        """``taken < capacity + rate * span + credits + 1``: over the line by less than the millitoken of its floors."""
        amount, period = self.limit.refill_amount, self.limit.refill_period_seconds
        over = taken - self.limit.capacity * 1000 - self.credits
        true(
            (over - 1) * period < amount * span_ms,
            f"over-admitted: {taken} millitokens in {span_ms} ms of {self.limit}",
        )


@dataclass(frozen=True, slots=True)
class Left:
    """A bucket right after something was taken from it."""

    milli: int
    credited: int
    upper_draws: int
    limit: Limit
    number: int
    """How many draws there had been."""
    state: tuple[int, int]


@dataclass(slots=True)
class ExactBucket:
    """One limit by itself, as simply as it can be said: refill to now, clip, take.

    Tokens beyond the ceiling are lost when somebody takes. A settlement is about the past. What turns out to be owed is
    taken as of then. What is given back is worth the room that there has been all the time since: under all that was
    credited since then, or above three quarters as long as nobody has found more than these. What a client has itself
    taken since and given back only made up for itself, and where nothing has happened since, nothing is credited.

    The limits of one bucket share its time, which never runs backwards: whoever changes a limit or gives back says as
    of which instant, and that is never before the newest as of which anything was taken from the bucket.
    """

    limit: Limit
    as_of_ms: int
    milli: int
    credited: int = 0
    upper_draws: int = 0
    draws: int = 0
    returns: tuple[tuple[int, int, int], ...] = ()
    """Client, number of the draw and millitokens of every give-back."""

    @classmethod
    def full(cls, limit: Limit, now_ms: int) -> ExactBucket:
        """Return a full bucket."""
        return cls(limit, now_ms, limit.capacity * 1000)

    @property
    def mark(self) -> int:
        """Three quarters."""
        return self.limit.capacity * 1000 * 3 // 4

    def level(self, now_ms: int) -> int:
        """Return the balance at an instant."""
        since = made(self.limit, now_ms) - made(self.limit, self.as_of_ms)
        return min(self.milli + since, self.limit.capacity * 1000)

    def take(self, cost: int, now_ms: int) -> None:
        """Take whole tokens that are there."""
        self.owe(cost, now_ms)

    def owe(self, amount: int, as_of_ms: int) -> None:
        """Take whole tokens as of an instant, whatever the balance."""
        found = self.level(as_of_ms)
        self.draws += 1
        self.upper_draws += found >= self.mark
        self.milli = found - amount * 1000
        self.as_of_ms = as_of_ms

    def change(self, limit: Limit, instant_ms: int) -> None:
        """Go on under another limit: a raise keeps the tokens, a cut clamps them, time that was counted stays so."""
        old = self.limit
        held = self.milli + made(old, instant_ms) - made(old, self.as_of_ms)
        self.credited += made(old, instant_ms) - made(limit, instant_ms)
        self.credited += max(0, old.capacity - limit.capacity) * 1000
        self.upper_draws += 1
        self.milli = min(held, min(old.capacity, limit.capacity) * 1000)
        self.limit, self.as_of_ms = limit, instant_ms

    def left(self, now_ms: int) -> Left:
        """Return what to remember of the bucket for somebody who has just taken from it."""
        credited = self.credited + made(self.limit, now_ms)
        return Left(self.level(now_ms), credited, self.upper_draws, self.limit, self.draws, self.state)

    @property
    def state(self) -> tuple[int, int]:
        """Return what is the same again if nothing has happened."""
        return self.milli - made(self.limit, self.as_of_ms), self.credited

    def give_back(self, amount: int, left: Left, instant_ms: int, client: int = 0) -> int:
        """Give whole tokens back whose taking has left the bucket as ``left``; return how many millitokens count."""
        ceiling = left.limit.capacity * 1000
        credited = self.credited + made(self.limit, instant_ms) - left.credited
        credited -= sum(milli for who, number, milli in self.returns if who == client and number > left.number)
        room = ceiling - left.milli - credited
        unclipped = self.milli + made(self.limit, instant_ms) - made(self.limit, self.as_of_ms)
        if left.state == self.state:
            counted = max(0, min(amount * 1000, room))
            self.milli += counted
            return counted
        if self.upper_draws == left.upper_draws and max(left.milli, unclipped) < self.mark:
            shared = ceiling - self.mark - (self.credited - left.state[1])
            room = max(room, shared)
        counted = max(0, min(amount * 1000, room))
        self.milli += counted
        self.credited += counted
        self.returns = (*self.returns, (client, left.number, counted))
        return counted

    def missing_ms(self, cost: int, now_ms: int) -> int:
        """Return the milliseconds until ``cost`` whole tokens are there, found by bisection."""
        low, high = -1, 1
        if self.level(now_ms) >= cost * 1000:
            return 0
        while self.level(now_ms + high) < cost * 1000:
            low, high = high, high * 2
        while high - low > 1:
            middle = (low + high) // 2
            if self.level(now_ms + middle) < cost * 1000:
                low = middle
            else:
                high = middle
        return high


def same_balances(found: dict[tuple[str, str, str], int], before: dict[tuple[str, str, str], int], claim: str) -> None:
    """Raise AssertionError unless every balance that there was before is unchanged."""
    true(before.keys() <= found.keys(), f"{claim}: no bucket is lost")
    same({name: found[name] for name in before}, before, claim)
