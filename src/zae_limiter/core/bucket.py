"""The anchored token bucket: exact refill in integers.

Tokens are millitokens, time is milliseconds since the epoch. What a rate ``amount / period`` has
produced by the instant ``t`` is ``produced(t) = t * amount // period``. A bucket holds an anchor
``rf`` and, per limit, ``tk``, the tokens relative to that anchor:

    level(t) = min(capacity, tk + produced(t) - produced(rf))

Differences of ``produced`` telescope, so refill is exact for every rate however often it is looked
at, and an acquire need not move the anchor.

A quota is a bucket whose production is a staircase: time is counted in windows of a calendar instead of milliseconds,
``produced(t) = index(t) * amount``, and the first instant of something is the start of its window. All else stays.

A bucket may be split over several shards. Shard ``i`` of ``n`` has produced ``(produced(t) + i) // n`` by ``t`` and
holds ``(capacity + i) // n`` at most; over all shards these sum to the whole, exactly. Shard ``i`` of ``n`` is in turn
the sum of the shards ``i`` and ``i + n`` of ``2n``, so any of them can be split again without the others.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .calendar import Calendar
    from .limit import Limit

MILLI = 1000
FOR_EVER = 2**62
"""No instant is as late: the expiry of what does not expire, and the wait for what never fits."""
NEVER_USED = 2**60
"""The tokens of a limit that nobody has used: it is full whatever its numbers are."""


class Rule(NamedTuple):
    """A limit, or a shard's share of it, in stored units: millitokens, and milliseconds or windows of a calendar."""

    capacity: int
    amount: int
    period: int
    phase: int = 0
    calendar: Calendar | None = None

    @classmethod
    def of(cls, limit: Limit) -> Rule:
        """Return the rule that a limit states."""
        if limit.calendar is not None:
            return cls(limit.capacity * MILLI, limit.refill_amount * MILLI, 1, 0, limit.calendar)
        return cls(limit.capacity * MILLI, limit.refill_amount * MILLI, limit.refill_period_seconds * MILLI)

    def share(self, shard: int, count: int) -> Rule:
        """Return the share of one shard of ``count`` in a whole rule."""
        if count == 1:
            return self
        capacity, period, phase = (self.capacity + shard) // count, self.period * count, self.period * shard
        return Rule(capacity, self.amount, period, phase, self.calendar)


def produced(instant_ms: int, rule: Rule) -> int:
    """Return the millitokens that the rate has made by ``instant_ms``."""
    ticks = instant_ms if rule.calendar is None else rule.calendar.index(instant_ms)
    return (ticks * rule.amount + rule.phase) // rule.period


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
    ticks = -((rule.phase - target * rule.period) // rule.amount)
    return ticks if rule.calendar is None else rule.calendar.start(ticks)


def full_instant(
    tokens_milli: int,
    anchor_ms: int,
    capacity: int,
    amount: int,
    period: int,
    shards: int = 1,
    calendar: Calendar | None = None,
) -> int:
    """Return the instant from which the first of so many shards of a rule is full, as `first_instant` of its capacity.

    >>> full_instant(4_000, 1_000, capacity=10_000, amount=1_000, period=1_000, shards=2)
    3000
    """
    if calendar is not None:
        share = Rule(capacity, amount, period, 0, calendar).share(0, shards)
        return first_instant(share, tokens_milli, anchor_ms, share.capacity)
    period *= shards
    target = anchor_ms * amount // period + capacity // shards - tokens_milli
    return -(-target * period // amount)


def refill_ms(milli: int, amount: int, period: int) -> int:
    """Return the milliseconds in which a rate makes ``milli``, rounded down."""
    return milli * period // amount


class HeldTokens(Protocol):
    """Tokens of a limit that somebody holds, having drawn them in advance: `core.advance`."""

    @property
    def left(self) -> int:
        """How many there are."""

    @property
    def all_born_ms(self) -> int:
        """The instant from which on all of them may be granted."""

    def ready(self, now_ms: int) -> int:
        """Return how many of them may be granted at ``now_ms``."""


class ShardBalance(NamedTuple):
    """The balance of one limit in one record: the whole of it, or a shard's share.

    ``credits`` are the lots that are spent after it: the instant at which each expires, and the millitokens in it.
    ``advances`` are the tokens that whoever asks holds besides, having drawn them before.
    """

    rule: Rule
    tokens: int
    anchor: int
    credits: tuple[tuple[int, int], ...] = ()
    advances: tuple[HeldTokens, ...] = ()

    def level(self, now_ms: int) -> int:
        """Return the balance at ``now_ms``, credits and advances included."""
        held = level(self.rule, self.tokens, self.anchor, now_ms)
        if self.credits:
            held += self.credit(now_ms)
        if not self.advances:
            return held
        ready = sum(each.ready(now_ms) for each in self.advances)
        if ready or held > 0:
            return min(ready + max(0, held), self.rule.capacity + self.credit(now_ms))
        # It may be below zero only for what was drawn ahead of the refill, which is no debt.
        return min(0, held + sum(each.left for each in self.advances))

    def credit(self, now_ms: int) -> int:
        """Return the credits that have not expired at ``now_ms``."""
        return sum(held for expires_ms, held in self.credits if expires_ms > now_ms)

    def without_credits(self) -> ShardBalance:
        """Return the allowance alone."""
        return self._replace(credits=())

    def debit(self, cost_milli: int) -> ShardBalance:
        """Return the balance after taking a cost from the allowance."""
        return self._replace(tokens=self.tokens - cost_milli)

    def full_at(self) -> int:
        """Return the instant from which the allowance is full, and all that was drawn in advance is there."""
        born = [each.all_born_ms for each in self.advances]
        return max([first_instant(self.rule, self.tokens, self.anchor, self.rule.capacity), *born])


class Taken(Protocol):
    """The slots of one limit in one record."""

    @property
    def ends(self) -> Sequence[int]:
        """The instants at which slots come back by themselves, or have, in ascending order."""

    def count(self, now_ms: int) -> int:
        """Return how many are taken at ``now_ms``."""


class SlotBalance(NamedTuple):
    """The slots of one limit in one record: how many there are, and those that are taken.

    It is asked like a `ShardBalance`, in thousandths of a slot.
    """

    rule: Rule
    slots: Taken
    credits: tuple[tuple[int, int], ...] = ()

    def level(self, now_ms: int) -> int:
        """Return the slots that are free at ``now_ms``; negative where more are taken than the limit states by now."""
        return self.rule.capacity - MILLI * self.slots.count(now_ms)

    def full_at(self) -> int:
        """Return the instant from which no slot is taken, unless it is renewed; 0 if none is."""
        return max(self.slots.ends, default=0)

    def credit(self, now_ms: int) -> int:
        """Return 0: there is no credit of slots."""
        return 0

    def without_credits(self) -> SlotBalance:
        """Return the same."""
        return self

    def debit(self, cost_milli: int) -> SlotBalance:
        """Return what is left for others if somebody takes slots, who gives them back nobody knows when."""
        return self._replace(rule=self.rule._replace(capacity=self.rule.capacity - cost_milli))


Balance: TypeAlias = ShardBalance | SlotBalance
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
    tokens = [shard for shard in balances if isinstance(shard, ShardBalance)]
    if not tokens:
        return _wait_for_slots([shard for shard in balances if isinstance(shard, SlotBalance)], cost_milli, now_ms)
    if len(tokens) == 1 and not tokens[0].credits and not tokens[0].advances:
        return first_instant(*tokens[0][:3], cost_milli) - now_ms
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
