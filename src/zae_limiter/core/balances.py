"""Balances: what the records of a bucket hold of one limit, all together, and when a cost fits."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from .advance import Advance
from .production import FOR_EVER, MILLI, Rule
from .slots import Slots


class Tokens(NamedTuple):
    """What one record holds of a rate or a quota: the whole of it, or a shard's share.

    ``credits`` are the lots that are spent after the allowance: when each expires, and what it holds. ``advances`` are
    tokens that this process holds as well, having drawn them before.
    """

    rule: Rule
    tokens: int
    anchor_ms: int
    credits: tuple[tuple[int, int], ...] = ()
    advances: tuple[Advance, ...] = ()

    def level(self, now_ms: int) -> int:
        """Return the balance at ``now_ms``, credits and advances included."""
        held = self.rule.level(self.tokens, self.anchor_ms, now_ms)
        if self.credits:
            held += self.credit(now_ms)
        if not self.advances:
            return held
        ready = sum(each.grantable(now_ms) for each in self.advances)
        if ready or held > 0:
            return min(ready + max(0, held), self.rule.capacity + self.credit(now_ms))
        # It may be below zero only for what was drawn ahead of the refill, which is no debt.
        return min(0, held + sum(each.size for each in self.advances))

    def since(self, now_ms: int) -> int:
        """Return what was produced from the anchor to ``now_ms``."""
        return self.rule.produced_between(self.anchor_ms, now_ms)

    def credit(self, now_ms: int) -> int:
        """Return the credits that have not expired at ``now_ms``."""
        return sum(held for expires_ms, held in self.credits if expires_ms > now_ms)

    def without_credits(self) -> Tokens:
        """Return the allowance alone."""
        return self._replace(credits=())

    def debit(self, cost_milli: int) -> Tokens:
        """Return the tokens after taking a cost from the allowance."""
        return self._replace(tokens=self.tokens - cost_milli)

    def fits_at(self, needed: int) -> int:
        """Return the first instant at which the allowance has ``needed``, at most the capacity."""
        return self.rule.fits_at(self.tokens, self.anchor_ms, needed)

    def full_at(self) -> int:
        """Return the instant from which the allowance is full, and all that was drawn in advance is there."""
        return max([self.fits_at(self.rule.capacity), *(each.all_grantable_from for each in self.advances)])


class SlotBalance(NamedTuple):
    """The slots of one limit in one record, seen at an instant: how many there are, and those that are taken.

    It is asked like `Tokens`, in thousandths of a slot.
    """

    rule: Rule
    slots: Slots
    seen_ms: int
    credits: tuple[tuple[int, int], ...] = ()

    def level(self, now_ms: int) -> int:
        """Return the slots that are free at ``now_ms``; negative where more are taken than the limit states by now."""
        return self.rule.capacity - MILLI * self.slots.count(now_ms)

    def full_at(self) -> int:
        """Return the instant from which no slot is taken, unless it is renewed; 0 if none is."""
        last_ms = max(self.slots.ends, default=0)
        return last_ms if last_ms > self.seen_ms else 0

    def credit(self, now_ms: int) -> int:
        """Return 0: there is no credit of slots."""
        return 0

    def without_credits(self) -> SlotBalance:
        """Return the same."""
        return self

    def debit(self, cost_milli: int) -> SlotBalance:
        """Return what is left for others if somebody takes slots, who gives them back nobody knows when."""
        return self._replace(rule=self.rule._replace(capacity=self.rule.capacity - cost_milli))


Balance: TypeAlias = Tokens | SlotBalance
"""What one record holds of one limit: tokens, or slots."""


def balance(balances: Sequence[Balance], now_ms: int) -> int:
    """Return what can be taken from all balances together, or what is owed if nothing can be taken."""
    if len(balances) == 1:
        return balances[0].level(now_ms)
    levels = [shard.level(now_ms) for shard in balances]
    return sum(held for held in levels if held > 0) or sum(levels)


def debit(balances: Sequence[Balance], cost_milli: int, now_ms: int) -> tuple[Balance, ...]:
    """Return the balances after taking a cost: from each what it has, and what is still missing from the first."""
    if len(balances) == 1:
        return (balances[0].debit(cost_milli),)
    taken = []
    for shard in balances:
        here = min(cost_milli, max(0, shard.level(now_ms)))
        taken.append(shard.debit(here))
        cost_milli -= here
    taken[0] = taken[0].debit(cost_milli)
    return tuple(taken)


def wait_ms(balances: Sequence[Balance], cost_milli: int, now_ms: int) -> int:
    """Return the milliseconds from ``now_ms`` until ``cost_milli`` fits; 0 if it fits now.

    For slots until enough of them have come back by themselves, at the latest. With credits `FOR_EVER` if it never
    fits: these may expire before the allowance has what is missing.
    """
    if balance(balances, now_ms) >= cost_milli:
        return 0
    tokens = [shard for shard in balances if isinstance(shard, Tokens)]
    if not tokens:
        return _wait_for_slots([shard for shard in balances if isinstance(shard, SlotBalance)], cost_milli, now_ms)
    if len(tokens) == 1 and not tokens[0].credits and not tokens[0].advances:
        return tokens[0].fits_at(cost_milli) - now_ms
    full_ms = max(shard.full_at() for shard in tokens)
    # Between two expiries the balance never falls.
    ends = sorted({end for shard in balances for end, _ in shard.credits if now_ms < end < FOR_EVER})
    for early, end in zip([now_ms, *ends], [*ends, FOR_EVER], strict=True):
        late = min(end - 1, max(early, full_ms))
        if balance(balances, late) >= cost_milli:
            return _first_fit(balances, cost_milli, early, late) - now_ms
    return FOR_EVER


def _wait_for_slots(balances: Sequence[SlotBalance], cost_milli: int, now_ms: int) -> int:
    """Return the milliseconds until so many taken slots have come back by themselves that enough are free.

    Until all have, or for a second where none is taken, if that is not enough: others are waiting for them too.
    """
    ends = sorted({end_ms for shard in balances for end_ms in shard.slots.ends if end_ms > now_ms})
    place = bisect_left(ends, True, key=lambda end: balance(balances, end) >= cost_milli)
    return ends[min(place, len(ends) - 1)] - now_ms if ends else MILLI


def _first_fit(balances: Sequence[Balance], cost_milli: int, early: int, late: int) -> int:
    """Return the first instant at which a cost fits that fits at ``late``; the balance does not fall until then."""
    while early < late:
        middle = (early + late) // 2
        early, late = (early, middle) if balance(balances, middle) >= cost_milli else (middle + 1, late)
    return early
