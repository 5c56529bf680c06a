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
    from ...core.values import BucketState
    from ...limiter.limiter import RateLimiter

LAG_MS = 50
"""How far in the past a client may decide after it has lost a race; its decision counts as of then."""


def made(limit: Limit, instant_ms: int) -> int:
    """Millitokens that the limit has made from the epoch to an instant, rounded down."""
    return instant_ms * limit.refill_amount // limit.refill_period_seconds


def balance(state: BucketState, now_ms: int) -> int:
    """Millitokens of a stored bucket at an instant."""
    amount, period = state.refill_amount_milli, state.refill_period_ms
    since = now_ms * amount // period - state.last_refill_ms * amount // period
    return min(state.capacity_milli, state.tokens_milli + since)


async def balances(limiter: RateLimiter, entities: Iterable[str], now_ms: int) -> dict[tuple[str, str, str], int]:
    """Millitokens of every stored limit of the entities, by entity, resource and limit."""
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


@dataclass(slots=True)
class Ledger:
    """Everything that was taken from one limit of one bucket and put back, in the order of the writes."""

    limit: Limit
    entries: list[Entry] = field(default_factory=list)

    def check(self) -> None:
        """Law 1, in every span of writes and in every window of time."""
        self._check_spans()
        self._check_windows()

    def _check_spans(self) -> None:
        """From any grant to any later one, what was taken less what came back is within the law.

        Debt counts as taken: it is paid before anything else is granted.
        """
        for first, begin in enumerate(self.entries):
            taken = 0
            for end in self.entries[first:]:
                taken += end.milli
                if begin.granted and end.granted:
                    self._within(taken, end.at_ms - begin.at_ms + begin.lag_ms)

    def _check_windows(self) -> None:
        """In any window of instants, the grants are within the law and what came back meanwhile."""
        grants = sorted((entry.at_ms, place) for place, entry in enumerate(self.entries) if entry.granted)
        for first, (begin_ms, _) in enumerate(grants):
            inside: list[int] = []
            for end_ms, place in grants[first:]:
                inside.append(place)
                taken = sum(self.entries[each].milli for each in inside)
                meanwhile = self.entries[min(inside) : max(inside)]
                returned = -sum(min(0, entry.milli) for entry in meanwhile)
                lag_ms = self.entries[min(inside)].lag_ms
                self._within(taken - returned, end_ms - begin_ms + lag_ms)

    def _within(self, taken: int, span_ms: int) -> None:
        """``taken < capacity + rate * span + 1``: over the rational line by less than the millitoken of its floors."""
        amount, period = self.limit.refill_amount, self.limit.refill_period_seconds
        over = taken - self.limit.capacity * 1000
        true(
            (over - 1) * period < amount * span_ms,
            f"over-admitted: {taken} millitokens in {span_ms} ms of {self.limit}",
        )


@dataclass(slots=True)
class Pot:
    """One limit by itself, as simply as it can be said: refill to now, clip, take.

    Tokens beyond the ceiling are lost when somebody takes. A settlement is about the past. What turns out to be owed is
    taken as of then. What is given back is void if somebody has found the pot full since, and is worth no more than
    the room that there was by the refill alone.
    """

    limit: Limit
    as_of_ms: int
    milli: int
    found_full_ms: int

    @classmethod
    def full(cls, limit: Limit, now_ms: int) -> Pot:
        """A new one."""
        return cls(limit, now_ms, limit.capacity * 1000, now_ms)

    def level(self, now_ms: int) -> int:
        """The balance at an instant."""
        since = made(self.limit, now_ms) - made(self.limit, self.as_of_ms)
        return min(self.milli + since, self.limit.capacity * 1000)

    def take(self, cost: int, now_ms: int) -> None:
        """Take whole tokens that are there."""
        found = self.level(now_ms)
        if found == self.limit.capacity * 1000:
            self.found_full_ms = now_ms
        self.milli = found - cost * 1000
        self.as_of_ms = now_ms

    def owe(self, amount: int, taken_ms: int) -> None:
        """Take more whole tokens, as of an instant that has passed, whatever the balance."""
        self.milli = self.level(taken_ms) - amount * 1000
        self.as_of_ms = taken_ms

    def give_back(self, amount: int, taken_ms: int, room_milli: int) -> None:
        """Give whole tokens back that were taken at an instant, as far as there has been room for them since."""
        if self.found_full_ms <= taken_ms:
            self.milli += min(amount * 1000, room_milli)

    def missing_ms(self, cost: int, now_ms: int) -> int:
        """Milliseconds until ``cost`` whole tokens are there, found by bisection."""
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
    """Balances after something that must not have changed any. A bucket that was not there yet is full."""
    true(before.keys() <= found.keys(), f"{claim}: no bucket is lost")
    same({name: found[name] for name in before}, before, claim)
