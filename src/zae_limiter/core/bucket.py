"""The anchored token bucket: exact refill in integers.

Tokens are millitokens, time is milliseconds since the epoch. What a rate ``amount / period`` has
produced by the instant ``t`` is ``produced(t) = t * amount // period``. A bucket holds an anchor
``rf`` and, per limit, ``tk``, the tokens relative to that anchor:

    level(t) = min(capacity, tk + produced(t) - produced(rf))

Differences of ``produced`` telescope, so refill is exact for every rate however often it is looked
at, and an acquire need not move the anchor.

A bucket may be split over several shards. Shard ``i`` of ``n`` has produced ``(produced(t) + i) // n`` by ``t`` and
holds ``(capacity + i) // n`` at most; over all shards these sum to the whole, exactly. Shard ``i`` of ``n`` is in turn
the sum of the shards ``i`` and ``i + n`` of ``2n``, so any of them can be split again without the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .limit import Limit

MILLI = 1000


class Rule(NamedTuple):
    """A limit, or a shard's share of it, in stored units: millitokens and milliseconds."""

    capacity: int
    amount: int
    period: int
    phase: int = 0

    @classmethod
    def of(cls, limit: Limit) -> Rule:
        """Return the rule that a limit states."""
        return cls(limit.capacity * MILLI, limit.refill_amount * MILLI, limit.refill_period_seconds * MILLI)

    def share(self, shard: int, count: int) -> Rule:
        """Return the share of one shard of ``count`` in a whole rule."""
        if count == 1:
            return self
        return Rule((self.capacity + shard) // count, self.amount, self.period * count, self.period * shard)


def produced(instant_ms: int, rule: Rule) -> int:
    """Return the millitokens that the rate has made by ``instant_ms``."""
    return (instant_ms * rule.amount + rule.phase) // rule.period


def between(rule: Rule, start_ms: int, end_ms: int) -> int:
    """Return the millitokens that the rate makes from one instant to another."""
    return produced(end_ms, rule) - produced(start_ms, rule)


def level(rule: Rule, tokens_milli: int, anchor_ms: int, now_ms: int) -> int:
    """Return the balance at ``now_ms``; negative means debt."""
    return min(rule.capacity, tokens_milli + between(rule, anchor_ms, now_ms))


def first_instant(rule: Rule, tokens_milli: int, anchor_ms: int, cost_milli: int) -> int:
    """Return the first instant at which ``cost_milli`` fits, exact to the millisecond.

    Meaningful for a cost within the capacity: a larger one never fits.
    """
    target = produced(anchor_ms, rule) + cost_milli - tokens_milli
    return -((rule.phase - target * rule.period) // rule.amount)


def full_instant(tokens_milli: int, anchor_ms: int, capacity: int, amount: int, period: int, shards: int = 1) -> int:
    """Return the instant from which the first of so many shards of a rule is full, as `first_instant` of its capacity.

    >>> full_instant(4_000, 1_000, capacity=10_000, amount=1_000, period=1_000, shards=2)
    3000
    """
    period *= shards
    target = anchor_ms * amount // period + capacity // shards - tokens_milli
    return -(-target * period // amount)


def refill_ms(milli: int, amount: int, period: int) -> int:
    """Return the milliseconds in which a rate makes ``milli``, rounded down."""
    return milli * period // amount


class ShardBalance(NamedTuple):
    """The balance of one limit in one record: the whole of it, or a shard's share."""

    rule: Rule
    tokens: int
    anchor: int

    def level(self, now_ms: int) -> int:
        """Return the balance at ``now_ms``."""
        return level(*self, now_ms)

    def full_at(self) -> int:
        """Return the instant from which it is full."""
        return first_instant(*self, self.rule.capacity)


def balance(balances: Sequence[ShardBalance], now_ms: int) -> int:
    """Return what can be taken from all balances together, or what is owed if nothing can be taken."""
    if len(balances) == 1:
        return balances[0].level(now_ms)
    levels = [shard.level(now_ms) for shard in balances]
    return sum(held for held in levels if held > 0) or sum(levels)


def debit(balances: Sequence[ShardBalance], cost_milli: int, now_ms: int) -> tuple[ShardBalance, ...]:
    """Return the balances after taking a cost: from each what it has, and what is still missing from the first."""
    if len(balances) == 1:
        return (balances[0]._replace(tokens=balances[0].tokens - cost_milli),)
    taken = []
    for shard in balances:
        here = min(cost_milli, max(0, shard.level(now_ms)))
        taken.append(shard._replace(tokens=shard.tokens - here))
        cost_milli -= here
    taken[0] = taken[0]._replace(tokens=taken[0].tokens - cost_milli)
    return tuple(taken)


def wait_ms(balances: Sequence[ShardBalance], cost_milli: int, now_ms: int) -> int:
    """Return the milliseconds from ``now_ms`` until ``cost_milli`` fits; 0 if it fits now."""
    if balance(balances, now_ms) >= cost_milli:
        return 0
    if len(balances) == 1:
        return first_instant(*balances[0], cost_milli) - now_ms
    early, late = now_ms, max(shard.full_at() for shard in balances)
    while early < late:
        middle = (early + late) // 2
        early, late = (early, middle) if balance(balances, middle) >= cost_milli else (middle + 1, late)
    return early - now_ms
