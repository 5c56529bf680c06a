"""Writes that settle a charge: what was used beyond it is owed, what was not used is given back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ..core.bucket import MILLI, Rule, between, level as level_at
from ..core.draw import apply_draw, owe
from ..core.give_back import Order, Snapshot, give_back, owed_to_new
from . import pressure
from .algebra import Image, Write
from .bucket import newest, stored_rule
from .charging import create
from .level import ANCHOR, CHANGES, HOUR_END, MADE, SHARDS, attribute
from .reshaping import keep_in_debt

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .level import Level, Slot


class Charge(NamedTuple):
    """What a settlement knows of the charge it belongs to: when it was, and how it left each limit of which bucket."""

    instant_ms: int
    made: int
    after: Mapping[str, Snapshot]
    orders: Mapping[str, Order]

    @classmethod
    def of(cls, level: Level, image: Image, now_ms: int, on_top: Mapping[str, int]) -> Charge:
        """The charge that left a bucket as ``image``, apart from what others have taken on top of it."""
        after = {}
        for name in level.slots:
            rule = stored_rule(image, name, level.shard)
            if rule is not None:
                tk = image[attribute(name, "tk")] + on_top.get(name, 0)
                held = level_at(rule, tk, image[ANCHOR], now_ms)
                credited, upper_draws = (image.get(attribute(name, field), 0) for field in ("cr", "hi"))
                after[name] = Snapshot(tk - credited, held, rule.capacity, upper_draws, tk)
        orders = {name: Order(image.get(SHARDS, 1), -snapshot.base) for name, snapshot in after.items()}
        return cls(now_ms, image.get(MADE, 0), after, orders)

    def halves(self) -> tuple[Charge, Charge]:
        """The charge as the two shards know it that its bucket was split into, the old one first."""
        both = {name: after.halves() for name, after in self.after.items()}
        kept, given = ({name: pair[place] for name, pair in both.items()} for place in (0, 1))
        return self._replace(after=kept), self._replace(after=given)


class Settlement(NamedTuple):
    """The write that settles a charge, and what of a give-back it credits or finds no room for, in millitokens."""

    write: Write
    credited: dict[str, int]
    uncounted: dict[str, int]


def settle(
    level: Level,
    image: Image,
    delta: Mapping[str, int],
    charge: Charge,
    now_ms: int,
    changes: int = 1,
    more_back: Mapping[str, int] | None = None,
    made_up: Mapping[str, int] | None = None,
) -> Settlement:
    """Add ``delta`` to what a charge consumed: into debt if positive, given back if negative; nothing refuses it.

    What is owed is drawn as of the charge, so a bucket that was full then does not swallow it. What is given back
    counts as far as `core.give_back` lets it. A bucket that was made since the charge was full when it was made: it is
    given nothing back, and owes what the refill until then has not repaid. Of a limit that the bucket does not have
    only the consumption is counted. ``more_back`` is given back besides, without being taken off the consumption.
    ``made_up`` is what is known to have been taken after the charge and given back since. ``changes`` is what the
    settlement counts for: below 0 where grants are undone that nobody was given.
    """
    guards: list[tuple[str, str, Any]] = [(attr, "=", image[attr]) for attr in (ANCHOR, MADE) if attr in image]
    put: dict[str, Any] = {}
    add: dict[str, int] = {}
    credited: dict[str, int] = {}
    uncounted: dict[str, int] = {}
    extra = more_back or {}
    instant = max(newest(image, now_ms), charge.instant_ms)
    for name in (*delta, *(name for name in extra if name not in delta)):
        amount = delta.get(name, 0)
        rule = stored_rule(image, name, level.shard)
        if rule is None:
            _count_only(level.slots[name], amount, put, add)
            continue
        if amount:
            add[attribute(name, "tc")] = amount
        back = extra.get(name, 0) - min(0, amount)
        if amount > 0:
            _owe(image, name, rule, charge, amount, guards, put, add)
        if back:
            since = between(rule, image[ANCHOR], instant)
            counted = _give_back(image, name, charge, back, since, (made_up or {}).get(name, 0), guards, add)
            credited[name] = add.get(attribute(name, "cr"), 0)
            if counted < back:
                uncounted[name] = back - counted
    if level.usage_days and HOUR_END in image and add:
        add[CHANGES] = changes
    if level.partition_writes:
        pressure.count(level, image, now_ms, put, add)
    write = Write(level.key, tuple(guards), put, add, (), now_ms + level.lifetime_ms, seen=image)
    return Settlement(keep_in_debt(level, image, write), credited, uncounted)


def _count_only(slot: Slot, amount: int, put: dict[str, Any], add: dict[str, int]) -> None:
    """Count the consumption of a limit that is not in force any more, in a bucket that has not known it."""
    put |= {slot.tk: slot.rule.capacity, **dict(slot.shape)}
    add |= {slot.tc: amount, slot.cr: 0, slot.hi: 0}


def _owe(
    image: Image,
    name: str,
    rule: Rule,
    charge: Charge,
    amount: int,
    guards: list[tuple[str, str, Any]],
    put: dict[str, Any],
    add: dict[str, int],
) -> None:
    """Draw a debt as of the charge, or as of the birth of a bucket that was made since."""
    tk, anchor, made = attribute(name, "tk"), image[ANCHOR], image.get(MADE, 0)
    as_of_ms, owed = charge.instant_ms, amount
    if made != charge.made and name in charge.after:
        as_of_ms = max(as_of_ms, made // MILLI)
        owed = owed_to_new(charge.after[name], amount, between(rule, charge.instant_ms, as_of_ms))
    drawn = owe(rule.capacity, image[tk], between(rule, anchor, as_of_ms), owed)
    guards.append(apply_draw(drawn, tk, attribute(name, "hi"), put, add))


def _give_back(
    image: Image,
    name: str,
    charge: Charge,
    amount: int,
    since: int,
    made_up: int,
    guards: list[tuple[str, str, Any]],
    add: dict[str, int],
) -> int:
    """Give back what of ``amount`` counts, and return that; ``since`` was produced since the anchor."""
    if image.get(MADE, 0) != charge.made or name not in charge.after:
        return 0
    tk, cr, hi = (attribute(name, field) for field in ("tk", "cr", "hi"))
    found = give_back(charge.after[name], amount, image[tk], image[cr], image[hi], since, made_up)
    if found.undoes:
        guards += [(tk, "=", image[tk]), (cr, "=", image[cr])]
        add |= {tk: found.counted} if found.counted else {}
        return found.counted
    if found.most_credited is not None:
        guards.append((cr, "<=", found.most_credited))
    if found.upper_draws is not None:
        guards += [(hi, "=", found.upper_draws), (tk, "<=", found.most_tokens)]
    if found.counted:
        add[tk] = add[cr] = found.counted
    return found.counted


def remake(level: Level, charged: Level, delta: Mapping[str, int], charge: Charge, now_ms: int, serial: int) -> Write:
    """Make a bucket that is gone anew, under the limits in force now, to settle what was charged to the old one.

    It owes what its refill has not repaid since the charge. Consumption of limits that are gone is counted as well.
    """
    owed = {}
    for name, slot in level.slots.items():
        amount = delta.get(name, 0)
        if amount > 0 and name in charge.after:
            owed[name] = owed_to_new(charge.after[name], amount, between(slot.rule, charge.instant_ms, now_ms))
        elif amount > 0:
            owed[name] = amount
    write = create(level, owed, now_ms, serial=serial)
    put = dict(write.put)
    for name, amount in delta.items():
        slot = level.slots.get(name) or charged.slots[name]
        if name not in level.slots:
            put |= {slot.tk: slot.rule.capacity, slot.cr: 0, slot.hi: 0, **dict(slot.shape)}
        put[slot.tc] = amount
    if level.usage_days:
        put[CHANGES] = 1
    return write._replace(put=put)


def is_split(level: Level, image: Image) -> bool:
    """Whether a shard has been split since it was looked at as ``level``."""
    return bool(image.get(SHARDS, 1) > level.shard_count)
