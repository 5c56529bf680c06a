"""Writes that settle a charge: usage beyond the estimate is owed, unused tokens are given back.

Both take effect when they arrive (ADR 21). A give-back is a plain add to the tokens of the bucket they were taken from;
a level above the capacity is cut, as always. Debt lowers the level by exactly what is owed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..core.advance import UnusedAdvance, value_unused
from ..core.change import MISSING_OR_AT_MOST, Change
from ..core.credits import SpentLots, sum_up
from ..core.production import Amounts, Rule
from ..core.tokens import owe
from . import pressure
from .algebra import Image
from .bucket import latest_instant, stored_rule, stored_tokens, whole_rule
from .charging import Frame, create, put_expiry_off
from .level import ANCHOR, CHANGES, HOUR_END, MADE, NEWEST, SHARDS, BucketLimits, attribute, token_fields
from .lots import parse_lot
from .parked import settle_parked

_NOTHING: dict[str, int] = {}


class Receipt(NamedTuple):
    """The charge that a settlement belongs to: when it was made, and to which bucket.

    ``overdrawn`` is the part of it that went beyond soft limits and has not been given back yet, in millitokens.
    """

    instant_ms: int
    made: int
    overdrawn: Amounts = _NOTHING

    @classmethod
    def of(
        cls,
        level: BucketLimits,
        image: Image,
        now_ms: int,
        on_top: Amounts = _NOTHING,
        cost: Amounts = _NOTHING,
        settled: Amounts = _NOTHING,
    ) -> Receipt:
        """Return the charge that left a bucket as ``image``, before others took ``on_top``.

        It took ``cost``, of which ``settled`` came later. A level below zero shows how far it overdrew a soft limit; a
        give-back reduces that first.
        """
        overdrawn = {}
        for name, limit in level.token_limits.items() if level.token_limits.soft else ():
            held = stored_tokens(image, name, level.shard) if limit.soft else None
            if held is not None:
                left = held.rule.level(held.tokens + on_top.get(name, 0), held.anchor_ms, now_ms)
                overdrawn[name] = _count_beyond(left, cost.get(name, 0), min(0, settled.get(name, 0)))
        # A client whose clock is behind charges as of the bucket's newest instant, and in the window of that.
        return cls(latest_instant(image, now_ms), image.get(MADE, 0), overdrawn)

    def split(self) -> tuple[Receipt, Receipt]:
        """Return the charge for each of the two shards that its bucket was split into, the old one first."""
        less = {name: amount // 2 for name, amount in self.overdrawn.items()}
        more = {name: amount - less[name] for name, amount in self.overdrawn.items()}
        return self._replace(overdrawn=more), self._replace(overdrawn=less)

    def returned_overdraft(self, delta: Amounts) -> dict[str, int]:
        """Return by the attribute that counts it what a correction takes off what was overdrawn, below zero."""
        off = {name: max(delta.get(name, 0), -amount) for name, amount in self.overdrawn.items()}
        return {token_fields(name).overdrawn: amount for name, amount in off.items() if amount < 0}


def _count_beyond(left: int, taken: int, back: int) -> int:
    """Return how much of ``taken`` a limit that has ``left`` did not hold, after ``back`` (below zero) came back."""
    return max(0, min(taken - back, -left) + back)


class Settlement(NamedTuple):
    """A settlement in a bucket as of ``instant_ms``, and the change that it becomes."""

    change: Change
    level: BucketLimits
    image: Image
    receipt: Receipt
    is_same_bucket: bool
    instant_ms: int

    def owe(self, name: str, rule: Rule, amount: int) -> None:
        """Lower the level of a limit by ``amount``, below zero if need be.

        It counts as a charge: limits that have changed since the bucket was last charged apply from now on.
        """
        change, level, image, *_, instant_ms = self
        if instant_ms > image.get(NEWEST, instant_ms):
            change.put[NEWEST] = instant_ms
        at, limit = token_fields(name), level.token_limits_of(image).get(name)
        drawn = image[at.tokens], rule.produced_between(image[ANCHOR], instant_ms), rule.capacity, None
        owe(change, at, drawn, amount, limit is not None and limit.soft)
        if limit is not None and limit.alert_levels is not None and limit.rule == rule:
            change.drawn[name] = drawn

    def give_back(self, name: str, rule: Rule, amount: int, unused: Sequence[UnusedAdvance]) -> None:
        """Add ``amount`` to the tokens of a limit as far as those of the charge still count.

        A part of them may have been prefetched and never granted.
        """
        if rule.calendar is not None and not self._is_same_window(name):
            return
        at, mine = token_fields(name), [each for each in unused if each.limit_name == name]
        if mine:
            returned = self.image.get(at.returned, 0)
            worth, most_returned = value_unused(mine, returned, rule, self.image[ANCHOR], self.instant_ms)
            amount = max(0, amount + worth - sum(each.amount for each in mine))
            if worth:
                self.change.add[at.returned] = worth
                self.change.guards.append((at.returned, MISSING_OR_AT_MOST, most_returned))
        if amount:
            self.change.add[at.tokens] = amount

    def _is_same_window(self, name: str) -> bool:
        """Return whether the tokens of the charge still count, and add the guard that keeps it so.

        The tokens of a quota without rollover count only in the window in which they were taken.
        """
        whole = whole_rule(self.image, name)
        if whole is None or whole.calendar is None or whole.capacity > whole.amount:
            return True
        number = whole.calendar.index(self.instant_ms)
        if self.receipt.instant_ms < whole.calendar.start(number):
            return False
        if NEWEST in self.image:
            self.change.bound(NEWEST, high=whole.calendar.start(number + 1) - 1)
        return True

    def count_unknown(self, name: str, amount: int) -> None:
        """Count the consumption of a limit that the bucket does not have.

        If it is a concurrency limit now, settle the tokens that it will have when it counts tokens again.
        """
        change, image, parked = self.change, self.image, token_fields(name).parked
        if attribute(name, "tl") not in image:
            limit = self.level.token_limits[name]
            change.put |= {limit.at.tokens: limit.rule.capacity, **limit.stated}
            change.add[limit.at.consumed] = amount
        elif parked in image and (amount > 0 or self.is_same_bucket):
            change.equals[parked] = image[parked]
            change.put[parked] = settle_parked(image[parked], amount, self.instant_ms)


def settle(
    level: BucketLimits,
    image: Image,
    delta: Amounts,
    receipt: Receipt,
    now_ms: int,
    changes: int = 1,
    lots: SpentLots = (),
    unused: Sequence[UnusedAdvance] = (),
    frames: Frame | None = None,
) -> Change:
    """Return the change that adds ``delta`` to the consumption of a charge: owed if positive, else given back.

    It is guarded by the anchor and by ``made``: the bucket must still be the one that was seen, under the same limits
    and in as many shards. If the bucket does not have a limit, only its consumption is counted. ``changes`` is the
    number of usage events that the settlement counts for, negative if it undoes grants that were never handed out.
    ``lots`` is the part of the give-back that returns to credits, ``unused`` the part that was prefetched and never
    granted. ``frames`` are the limits in force, if the bucket is kept under these. Slots are freed by
    `slots.release_slots`.
    """
    change = Change({attr: image[attr] for attr in (ANCHOR, MADE) if attr in image})
    instant_ms, credit = max(latest_instant(image, now_ms), receipt.instant_ms), sum_up(lots) if lots else _NOTHING
    here = Settlement(change, level, image, receipt, image.get(MADE, 0) == receipt.made, instant_ms)
    for _, attr, amount in lots if here.is_same_bucket else ():
        if attr in image and parse_lot(attr).expires_ms > instant_ms:
            change.add[attr] = amount
    if receipt.overdrawn:
        change.add |= receipt.returned_overdraft({name: amount + credit.get(name, 0) for name, amount in delta.items()})
    owes = False
    for name, amount in delta.items():
        frame = None if frames is None else frames.by_name.get(name)
        rule = stored_rule(image, name, level.shard) if frame is None else frame.rule
        if rule is None:
            here.count_unknown(name, amount)
            continue
        change.add[token_fields(name).consumed] = amount
        back = -amount - credit.get(name, 0)
        if amount > 0:
            owes = True
            here.owe(name, rule, amount)
        elif back > 0 and here.is_same_bucket:
            here.give_back(name, rule, back, unused)
    if level.usage_days and HOUR_END in image and change.add:
        change.add[CHANGES] = changes
    if level.partition_writes:
        pressure.count(level, image, now_ms, change.put, change.add)
    put_expiry_off(change, level, image, now_ms, owes=owes)
    return change


def remake(
    level: BucketLimits, charged: BucketLimits, delta: Amounts, receipt: Receipt, now_ms: int, serial: int
) -> Change:
    """Return the change that recreates a bucket, under the limits in force now, to settle a charge to the old one.

    It owes everything used beyond the charge. Consumption of limits that are gone is counted as well.
    """
    owed = {name: delta[name] for name in level.token_limits if delta.get(name, 0) > 0}
    change = create(level, owed, now_ms, serial=serial)
    for name, amount in delta.items():
        limit = level.token_limits.get(name) or charged.token_limits[name]
        if name not in level.token_limits:
            change.put |= {limit.at.tokens: limit.rule.capacity, **limit.stated}
        change.put[limit.at.consumed] = amount
    change.put |= receipt.returned_overdraft(delta)
    if level.usage_days:
        change.put[CHANGES] = 1
    return change


def is_split(level: BucketLimits, image: Image) -> bool:
    """Return whether a shard has been split since it was seen as ``level``."""
    return bool(image.get(SHARDS, 1) > level.shard_count)
