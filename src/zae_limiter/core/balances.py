"""Balances: what the records of a bucket hold of one limit, all together, and when a cost fits."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from .production import FOR_EVER, MILLI, Rule
from .slots import Slots
from .tokens import Tokens


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
