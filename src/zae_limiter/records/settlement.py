"""Writes that settle a charge: usage beyond the estimate is owed, unused tokens are given back.

Both take effect when they arrive (ADR 21). A give-back is a plain add to the tokens of the bucket they were taken from;
a level above the capacity is cut, as always. Debt lowers the level by exactly what is owed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ..core.advance import UnusedAdvance, value_unused
from ..core.bucket import MILLI, Rule, level as level_at
from ..core.credit import sum_up
from ..core.draw import AnchoredLimit, owe
from . import pressure
from .algebra import MISSING_OR_AT_MOST, NEVER, TTL, Image, Write
from .bucket import latest_instant, stored_rule, whole_rule
from .charging import create, is_expiring
from .level import ANCHOR, CHANGES, HOUR_END, MADE, NEWEST, SHARDS, attribute
from .lots import parse_lot
from .parked import PARKED, settle_parked
from .reshaping import keep_in_debt

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..core.alerts import Alert
    from ..core.credit import SpentLots
    from .level import Level

_NOTHING: dict[str, int] = {}


class Charge(NamedTuple):
    """The charge that a settlement belongs to: when it was made, and to which bucket.

    ``overdrawn`` is the part of it that went beyond soft limits and has not been given back yet, in millitokens.
    """

    instant_ms: int
    made: int
    overdrawn: Mapping[str, int] = _NOTHING

    @classmethod
    def of(
        cls,
        level: Level,
        image: Image,
        now_ms: int,
        on_top: Mapping[str, int] = _NOTHING,
        cost: Mapping[str, int] = _NOTHING,
        settled: Mapping[str, int] = _NOTHING,
    ) -> Charge:
        """Return the charge that left a bucket as ``image``, before others took ``on_top``.

        It took ``cost``, of which ``settled`` came later. A level below zero shows how far it overdrew a soft limit; a
        give-back reduces that first.
        """
        overdrawn = (
            _find_overdrawn(level, image, now_ms, on_top, cost, settled) if level.token_limits.soft else _NOTHING
        )
        # A client whose clock is behind charges as of the bucket's newest instant, and in the window of that.
        return cls(latest_instant(image, now_ms), image.get(MADE, 0), overdrawn)

    def split(self) -> tuple[Charge, Charge]:
        """Return the charge for each of the two shards that its bucket was split into, the old one first."""
        less = {name: amount // 2 for name, amount in self.overdrawn.items()}
        more = {name: amount - less[name] for name, amount in self.overdrawn.items()}
        return self._replace(overdrawn=more), self._replace(overdrawn=less)

    def returned_overdraft(self, delta: Mapping[str, int]) -> dict[str, int]:
        """Return by the attribute that counts it what a correction takes off what was overdrawn, below zero."""
        off = {name: max(delta.get(name, 0), -amount) for name, amount in self.overdrawn.items()}
        return {attribute(name, "ov"): amount for name, amount in off.items() if amount < 0}


def _find_overdrawn(
    level: Level,
    image: Image,
    now_ms: int,
    on_top: Mapping[str, int],
    cost: Mapping[str, int],
    settled: Mapping[str, int],
) -> dict[str, int]:
    """Return by soft limit how far a charge went beyond it, with the arguments of `Charge.of`."""
    found = {}
    for name, entry in level.token_limits.items():
        rule = stored_rule(image, name, level.shard) if entry.ov else None
        if rule is not None:
            held = level_at(rule, image[entry.tk] + on_top.get(name, 0), image[ANCHOR], now_ms)
            taken, back = cost.get(name, 0), min(0, settled.get(name, 0))
            found[name] = max(0, min(taken - back, -held) + back)
    return found


class SettlementWrite(NamedTuple):
    """The write that settles a charge, and the alert thresholds that it crosses."""

    write: Write
    alerts: tuple[Alert, ...] = ()


def settle(
    level: Level,
    image: Image,
    delta: Mapping[str, int],
    charge: Charge,
    now_ms: int,
    changes: int = 1,
    lots: SpentLots = (),
    unused: Sequence[UnusedAdvance] = (),
) -> SettlementWrite:
    """Return the write that adds ``delta`` to the consumption of a charge: owed if positive, given back if negative.

    If the bucket does not have a limit, only its consumption is counted. ``changes`` is the number of usage events
    that the settlement counts for, negative if it undoes grants that were never handed out. ``lots`` is the part of the
    give-back that returns to credits, ``unused`` the part that was prefetched and never granted. Slots are freed by
    `slots.with_freed`.
    """
    draft = SettlementDraft(level, image, charge, now_ms)
    credit = draft.return_lots(lots) if lots else _NOTHING
    if charge.overdrawn:
        draft.add |= charge.returned_overdraft({name: amount + credit.get(name, 0) for name, amount in delta.items()})
    for name, amount in delta.items():
        rule = stored_rule(image, name, level.shard)
        if rule is None:
            draft.count_unknown(name, amount)
            continue
        draft.add[attribute(name, "tc")] = amount
        back = -amount - credit.get(name, 0)
        if amount > 0:
            draft.owe(name, rule, amount)
        elif back > 0:
            draft.give_back(name, rule, back, [each for each in unused if each.limit_name == name])
    if level.usage_days and HOUR_END in image and draft.add:
        draft.add[CHANGES] = changes
    if level.partition_writes:
        pressure.count(level, image, now_ms, draft.put, draft.add)
    return SettlementWrite(draft.finish(now_ms))


class SettlementDraft:
    """A settlement under construction, limit by limit.

    It is guarded by the anchor and by ``made``: the bucket must still be the one that was seen, under the same limits
    and in as many shards.
    """

    def __init__(self, level: Level, image: Image, charge: Charge, now_ms: int) -> None:
        self._level = level
        self._image = image
        self._charge = charge
        self._instant_ms = max(latest_instant(image, now_ms), charge.instant_ms)
        self._is_same_bucket = image.get(MADE, 0) == charge.made
        self._owes = False
        self.guards: list[tuple[str, str, Any]] = [(attr, "=", image[attr]) for attr in (ANCHOR, MADE) if attr in image]
        self.put: dict[str, Any] = {}
        self.add: dict[str, int] = {}

    def return_lots(self, lots: SpentLots) -> dict[str, int]:
        """Give back to lots what was taken from them, unless they have expired or are gone; return that by limit."""
        for _, attr, amount in lots:
            if self._is_same_bucket and attr in self._image and parse_lot(attr).expires_ms > self._instant_ms:
                self.add[attr] = amount
        return sum_up(lots)

    def count_unknown(self, name: str, amount: int) -> None:
        """Count the consumption of a limit that the bucket does not have.

        If it is a concurrency limit now, settle the tokens that it will have when it counts tokens again.
        """
        parked = attribute(name, PARKED)
        if attribute(name, "tl") not in self._image:
            entry = self._level.token_limits[name]
            self.put |= {entry.tk: entry.rule.capacity, **dict(entry.shape)}
            self.add[entry.tc] = amount
        elif parked in self._image and (amount > 0 or self._is_same_bucket):
            text = self._image[parked]
            self.guards.append((parked, "=", text))
            self.put[parked] = settle_parked(text, amount, self._instant_ms)

    def owe(self, name: str, rule: Rule, amount: int) -> None:
        """Lower the level of a limit by ``amount``, below zero if need be.

        It counts as a charge: limits that have changed since the bucket was last charged apply from now on.
        """
        self._owes = True
        if self._instant_ms > self._image.get(NEWEST, self._instant_ms):
            self.put[NEWEST] = self._instant_ms
        tk, tc = attribute(name, "tk"), attribute(name, "tc")
        ov = self._level.token_limits[name].ov if name in self._level.token_limits else ""
        limit = AnchoredLimit.of(rule, self._image[ANCHOR], (tk, tc), 0, self._instant_ms, ov)
        self.guards.append(owe(limit, self._image[tk], amount, self._instant_ms, self.put, self.add))

    def give_back(self, name: str, rule: Rule, amount: int, unused: Sequence[UnusedAdvance]) -> None:
        """Add ``amount`` to the tokens of a limit if they were taken from this bucket and, for a quota, this window.

        ``unused`` is the part of it that was prefetched and never granted, which may be worth less.
        """
        if not self._is_same_bucket or not self._is_same_window(name):
            return
        if unused:
            ua, anchor_ms = attribute(name, "ua"), self._image[ANCHOR]
            worth, most_returned = value_unused(unused, self._image.get(ua, 0), rule, anchor_ms, self._instant_ms)
            amount = max(0, amount + worth - sum(each.amount for each in unused))
            if worth:
                self.add[ua] = worth
                self.guards.append((ua, MISSING_OR_AT_MOST, most_returned))
        if amount:
            self.add[attribute(name, "tk")] = amount

    def _is_same_window(self, name: str) -> bool:
        """Return whether the tokens of the charge still count, and add the guard that keeps it so.

        The tokens of a quota without rollover count only in the window in which they were taken.
        """
        whole = whole_rule(self._image, name)
        if whole is None or whole.calendar is None or whole.capacity > whole.amount:
            return True
        number = whole.calendar.index(self._instant_ms)
        if self._charge.instant_ms < whole.calendar.start(number):
            return False
        if NEWEST in self._image:
            self.guards.append((NEWEST, "<", whole.calendar.start(number + 1)))
        return True

    def finish(self, now_ms: int) -> Write:
        """Return the write, with an expiry not before the bucket has repaid what it owes."""
        level, image = self._level, self._image
        write = Write(level.key, tuple(self.guards), self.put, self.add, (), now_ms + level.lifetime_ms, seen=image)
        if self._owes:
            write = keep_in_debt(level, image, write)
        elif not is_expiring(level, image):
            return write._replace(expires_at_ms=NEVER if TTL in image else None)
        if write.expires_at_ms and write.expires_at_ms <= image.get(TTL, 0) * MILLI:
            write = write._replace(expires_at_ms=None)  # it stays as it is
        return write


def remake(level: Level, charged: Level, delta: Mapping[str, int], charge: Charge, now_ms: int, serial: int) -> Write:
    """Return the write that recreates a bucket, under the limits in force now, to settle a charge to the old one.

    It owes everything used beyond the charge. Consumption of limits that are gone is counted as well.
    """
    owed = {name: delta[name] for name in level.token_limits if delta.get(name, 0) > 0}
    write = create(level, owed, now_ms, serial=serial)
    put = dict(write.put)
    for name, amount in delta.items():
        entry = level.token_limits.get(name) or charged.token_limits[name]
        if name not in level.token_limits:
            put |= {entry.tk: entry.rule.capacity, **dict(entry.shape)}
        put[entry.tc] = amount
    put |= charge.returned_overdraft(delta)
    if level.usage_days:
        put[CHANGES] = 1
    return write._replace(put=put)


def is_split(level: Level, image: Image) -> bool:
    """Return whether a shard has been split since it was seen as ``level``."""
    return bool(image.get(SHARDS, 1) > level.shard_count)
