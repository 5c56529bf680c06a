"""Writes that settle a charge: what was used beyond it is owed, what was not used is given back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ..core.bucket import MILLI, Rule, between, level as level_at
from ..core.credit import sum_up
from ..core.draw import AnchoredLimit, owe
from ..core.give_back import GiveBack, Order, Snapshot, give_back, owed_to_new
from . import pressure
from .algebra import Image, Write
from .bucket import latest_instant, stored_rule
from .charging import create
from .level import ANCHOR, CHANGES, HOUR_END, MADE, SHARDS, attribute
from .lots import parse_lot
from .reshaping import keep_in_debt

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..core.alerts import Alert
    from ..core.credit import SpentLots
    from .level import Level

_NOTHING: dict[str, int] = {}


class Charge(NamedTuple):
    """The charge that a settlement belongs to: when it was, of which bucket, and how it left each of its limits.

    ``overdrawn`` is what of it was beyond soft limits and was not given back yet, in millitokens.
    """

    instant_ms: int
    made: int
    after: Mapping[str, Snapshot]
    orders: Mapping[str, Order]
    overdrawn: Mapping[str, int] = _NOTHING
    may_undo: bool = True
    """Whether a return may rely on nobody else writing the bucket, where nobody has since."""

    @classmethod
    def of(cls, level: Level, image: Image, now_ms: int, on_top: Mapping[str, int]) -> Charge:
        """Return the charge that left a bucket as ``image``, less what others have taken on top of it."""
        after = {}
        for name in level.token_limits:
            rule = stored_rule(image, name, level.shard)
            if rule is not None:
                tk = image[attribute(name, "tk")] + on_top.get(name, 0)
                held = level_at(rule, tk, image[ANCHOR], now_ms)
                credited, upper_draws = (image.get(attribute(name, field), 0) for field in ("cr", "hi"))
                after[name] = Snapshot(tk - credited, held, rule.capacity, upper_draws, tk)
        orders = {name: Order(image.get(SHARDS, 1), -snapshot.base) for name, snapshot in after.items()}
        return cls(now_ms, image.get(MADE, 0), after, orders)

    def with_overdrawn(self, level: Level, cost: Mapping[str, int], settled: Mapping[str, int]) -> Charge:
        """Return the charge with what it took beyond soft limits: of ``cost``, of which ``settled`` came later.

        It is known from the level that it left: below zero is what was not there. A return takes this off first.
        """
        found = {}
        for name, after in self.after.items():
            entry = level.token_limits.get(name)
            if entry is not None and entry.ov:
                taken, back = cost.get(name, 0), min(0, settled.get(name, 0))
                found[name] = max(0, min(taken - back, -after.level) + back)
        return self._replace(overdrawn=found) if found else self

    def split(self) -> tuple[Charge, Charge]:
        """Return the charge for each of the two shards that its bucket was split into, the old one first."""
        both = {name: after.split() for name, after in self.after.items()}
        kept, given = ({name: pair[place] for name, pair in both.items()} for place in (0, 1))
        less = {name: amount // 2 for name, amount in self.overdrawn.items()}
        more = {name: amount - less[name] for name, amount in self.overdrawn.items()}
        return self._replace(after=kept, overdrawn=more), self._replace(after=given, overdrawn=less)

    def returned_overdraft(self, delta: Mapping[str, int]) -> dict[str, int]:
        """Return by the attribute that counts it what a correction takes off what was overdrawn, below zero."""
        off = {name: max(delta.get(name, 0), -amount) for name, amount in self.overdrawn.items()}
        return {attribute(name, "ov"): amount for name, amount in off.items() if amount < 0}


class SettlementWrite(NamedTuple):
    """The write that settles a charge, and what of a give-back it credits or finds no room for, in millitokens.

    ``alerts`` are the thresholds that it crosses.
    """

    write: Write
    credited: dict[str, int]
    uncounted: dict[str, int]
    alerts: tuple[Alert, ...] = ()


def settle(
    level: Level,
    image: Image,
    delta: Mapping[str, int],
    charge: Charge,
    now_ms: int,
    changes: int = 1,
    more_back: Mapping[str, int] = _NOTHING,
    made_up: Mapping[str, int] = _NOTHING,
    lots: SpentLots = (),
) -> SettlementWrite:
    """Return the write that adds ``delta`` to what a charge consumed: owed if positive, given back if negative.

    What is owed is drawn as of the charge, so a bucket that was full then does not swallow it. What is given back
    counts as far as `core.give_back` lets it. A bucket that was made since the charge was full when it was made: it is
    given nothing back, and owes what the refill until then has not repaid. Of a limit that the bucket does not have
    only the consumption is counted. ``more_back`` is given back besides, without being taken off the consumption.
    ``made_up`` is what is known to have been taken after the charge and given back since. ``changes`` is what the
    settlement counts for: below 0 where grants are undone that nobody was given. ``lots`` is the part of what is given
    back that goes to credits. Slots are freed by `slots.with_freed`.
    """
    draft = SettlementDraft(level, image, charge)
    instant = max(latest_instant(image, now_ms), charge.instant_ms)
    credit = draft.return_lots(lots, instant) if lots else _NOTHING
    to_allowance = {name: amount + credit.get(name, 0) for name, amount in delta.items()} if credit else delta
    draft.add |= charge.returned_overdraft(to_allowance)
    for name in (*delta, *(name for name in more_back if name not in delta)):
        amount = delta.get(name, 0)
        rule = stored_rule(image, name, level.shard)
        if rule is None and attribute(name, "tl") in image:  # it is a concurrency limit by now
            continue
        if rule is None:  # a limit that is not in force any more, in a bucket that has not known it
            entry = level.token_limits[name]
            draft.put |= {entry.tk: entry.rule.capacity, **dict(entry.shape)}
            draft.add |= {entry.tc: amount, entry.cr: 0, entry.hi: 0}
            continue
        if amount:
            draft.add[attribute(name, "tc")] = amount
        if amount > 0:
            draft.owe(name, rule, amount)
        back = more_back.get(name, 0) - min(0, amount) - credit.get(name, 0)
        if back:
            draft.give_back(name, back, between(rule, image[ANCHOR], instant), made_up.get(name, 0))
    if level.usage_days and HOUR_END in image and draft.add:
        draft.add[CHANGES] = changes
    if level.partition_writes:
        pressure.count(level, image, now_ms, draft.put, draft.add)
    write = Write(level.key, tuple(draft.guards), draft.put, draft.add, (), now_ms + level.lifetime_ms, seen=image)
    return SettlementWrite(keep_in_debt(level, image, write), draft.credited, draft.uncounted)


class SettlementDraft:
    """A settlement that is being put together, limit by limit."""

    def __init__(self, level: Level, image: Image, charge: Charge) -> None:
        self._token_limits = level.token_limits
        self._image = image
        self._charge = charge
        self._is_same_bucket = image.get(MADE, 0) == charge.made
        self.guards: list[tuple[str, str, Any]] = [(attr, "=", image[attr]) for attr in (ANCHOR, MADE) if attr in image]
        self.put: dict[str, Any] = {}
        self.add: dict[str, int] = {}
        self.credited: dict[str, int] = {}
        self.uncounted: dict[str, int] = {}

    def owe(self, name: str, rule: Rule, amount: int) -> None:
        """Draw a debt as of the charge, or as of the instant at which a bucket was made that is newer."""
        image, charge, tk = self._image, self._charge, attribute(name, "tk")
        as_of_ms = charge.instant_ms
        if not self._is_same_bucket and name in charge.after:
            as_of_ms = max(as_of_ms, image.get(MADE, 0) // MILLI)
            amount = owed_to_new(charge.after[name], amount, between(rule, charge.instant_ms, as_of_ms))
        ov = self._token_limits[name].ov if name in self._token_limits else ""
        attributes = (tk, attribute(name, "tc"), attribute(name, "hi"))
        limit = AnchoredLimit.of(rule, image[ANCHOR], attributes, 0, as_of_ms, ov)
        self.guards.append(owe(limit, image[tk], amount, as_of_ms, self.put, self.add))

    def return_lots(self, lots: SpentLots, instant_ms: int) -> dict[str, int]:
        """Give back to lots what was taken from them, unless they have expired or are gone; return that by limit."""
        for _, attr, amount in lots:
            if self._is_same_bucket and attr in self._image and parse_lot(attr).expires_ms > instant_ms:
                self.add[attr] = amount
        return sum_up(lots)

    def give_back(self, name: str, amount: int, since: int, made_up: int) -> None:
        """Give back what of ``amount`` counts; ``since`` was produced since the anchor."""
        image, found = self._image, GiveBack(0)
        tk, cr, hi = (attribute(name, field) for field in ("tk", "cr", "hi"))
        if self._is_same_bucket and name in self._charge.after:
            counters = (image[tk], image[cr], image[hi])
            found = give_back(self._charge.after[name], amount, *counters, since, made_up, self._charge.may_undo)
        self.credited[name] = 0 if found.undoes else found.counted
        if found.counted < amount:
            self.uncounted[name] = amount - found.counted
        if found.undoes:
            self.guards += [(tk, "=", image[tk]), (cr, "=", image[cr])]
        if found.most_credited is not None:
            self.guards.append((cr, "<=", found.most_credited))
        if found.upper_draws is not None:
            self.guards += [(hi, "=", found.upper_draws), (tk, "<=", found.most_tokens)]
        if found.counted:
            self.add |= {tk: found.counted} if found.undoes else {tk: found.counted, cr: found.counted}


def remake(level: Level, charged: Level, delta: Mapping[str, int], charge: Charge, now_ms: int, serial: int) -> Write:
    """Return the write that makes a bucket again, under the limits in force now, to settle a charge to the old one.

    It owes what its refill has not repaid since the charge. Consumption of limits that are gone is counted as well.
    """
    owed = {}
    for name, entry in level.token_limits.items():
        amount = delta.get(name, 0)
        if amount > 0 and name in charge.after:
            owed[name] = owed_to_new(charge.after[name], amount, between(entry.rule, charge.instant_ms, now_ms))
        elif amount > 0:
            owed[name] = amount
    write = create(level, owed, now_ms, serial=serial)
    put = dict(write.put)
    for name, amount in delta.items():
        entry = level.token_limits.get(name) or charged.token_limits[name]
        if name not in level.token_limits:
            put |= {entry.tk: entry.rule.capacity, entry.cr: 0, entry.hi: 0, **dict(entry.shape)}
        put[entry.tc] = amount
    put |= charge.returned_overdraft(delta)
    if level.usage_days:
        put[CHANGES] = 1
    return write._replace(put=put)


def is_split(level: Level, image: Image) -> bool:
    """Return whether a shard has been split since it was seen as ``level``."""
    return bool(image.get(SHARDS, 1) > level.shard_count)
