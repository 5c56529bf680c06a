"""Slots: at most so many at once, each taken until an instant.

A concurrency limit of ``n`` has the slots ``0 .. n-1``. A slot is taken while its instant lies in the future: then it
comes back by itself, unless its holder has renewed it. What is in flight are the slots that are taken; there is no
counter beside them that could drift from that.

Where a limit is lowered, slots above it stay taken until their holders are done, and count. Be ``u`` the highest bound
such that ``u`` and the slots taken at or above ``u`` are together at most ``n``: slots below ``u`` can be taken, by any
number of clients at once, and never are there more than ``n`` unless there were before. Usually ``u = n``. A request
that has to leave some slots for others takes its own as if ``n`` were lower by that many.

Of a bucket that is split, shard ``i`` of ``c`` has the slots ``s`` with ``(s + 1 + i) % c == 0``. These are, like the
share of a shard in any capacity, ``(n + i) // c`` of ``n``, and half of them move when the shard is split.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Mapping
from typing import NamedTuple

from .limit import Limit
from .production import MILLI, Rule
from .tokens import SOFT

_MORE_SOFT = 16
"""How many slots a soft limit can have taken beyond twice of what it states; beyond that it only counts."""
_FAR = 2**62


def in_shard(number: int, shard: int, shards: int) -> bool:
    """Return whether a slot is one of a shard of so many."""
    return (number + 1 + shard) % shards == 0


class SlotOwner(NamedTuple):
    """Whose slots, and of which limit."""

    entity_id: str
    resource: str
    limit_name: str


class SlotLimit(NamedTuple):
    """A concurrency limit, or a shard's share of it. ``floor`` is how many slots a request has to leave free."""

    name: str
    slots: int
    ttl_ms: int
    max_hold_ms: int = 0
    floor: int = 0
    soft: bool = False
    shard: int = 0
    shards: int = 1

    @classmethod
    def of(cls, limit: Limit, priority: str | None = None, bypassed: bool = False) -> SlotLimit:
        """Return what a concurrency limit states for requests of a priority; bypassed, it refuses nobody."""
        soft = limit.soft or bypassed
        floor = 0 if soft else round(limit.capacity * limit.floor(priority))
        return cls(limit.name, limit.capacity, limit.ttl * MILLI, limit.max_hold * MILLI, floor, soft)

    def share(self, shard: int, shards: int) -> SlotLimit:
        """Return the share of one shard of so many in a whole limit."""
        if shards == 1:
            return self
        slots, floor = (self.slots + shard) // shards, (self.floor + shard) // shards
        return self._replace(slots=slots, floor=floor, shard=shard, shards=shards)

    def first_numbers(self, bound: int) -> range:
        """Return the numbers of its first ``bound`` slots."""
        first = self.shards - 1 - self.shard
        return range(first, first + bound * self.shards, self.shards)

    @property
    def rule(self) -> Rule:
        """The limit as a rule that makes nothing: slots come back, they are not made."""
        return Rule(self.slots * MILLI, 0, 1)

    @property
    def floor_milli(self) -> int:
        """What a request has to leave, in thousandths of a slot."""
        return SOFT if self.soft else self.floor * MILLI


class _View(NamedTuple):
    """What slots are from an instant on until before another one, as far as nobody changes them.

    ``expired`` have come back by themselves. ``share`` is how many slots a limit has, and in which shard of how many:
    ``own`` are their numbers and ``free`` those that can be taken; ``others`` are the places in the shard of slots that
    are taken although the limit does not have them. Both are in ascending order.
    """

    from_ms: int
    until_ms: int
    expired: frozenset[int]
    share: tuple[int, int, int] | None
    own: range
    free: list[int]
    others: list[int]


_UNSEEN = _View(_FAR, -_FAR, frozenset(), None, range(0), [], [])


class Slots:
    """The slots of one limit in one record: until when each of those is taken that the record has.

    They never change: `change` returns others, which know already what these know as of now. So choosing a slot takes
    the same time however many are taken.
    """

    __slots__ = ("_ends", "_view", "untils")

    def __init__(self, untils: dict[int, int], view: _View = _UNSEEN) -> None:
        self.untils = untils
        self._view = view
        self._ends: list[int] | None = None

    def change(self, put: Mapping[int, int], gone: Collection[int]) -> Slots:
        """Return the slots with some that are taken until another instant, and without some that are free now."""
        untils = self.untils.copy()
        untils.update(put)
        for number in gone:
            untils.pop(number, None)
        view = self._view
        if view is _UNSEEN or min(put.values(), default=_FAR) <= view.from_ms:
            return Slots(untils)
        return Slots(untils, self._carry(view, put, gone))

    def _carry(self, view: _View, put: Mapping[int, int], gone: Collection[int]) -> _View:
        """Return a view of these slots as one of the slots after a change."""
        from_ms, until_ms, expired, share, own, free, others = view
        taken = [number for number in put if number not in self.untils or number in expired]
        freed = [number for number in gone if number in self.untils and number not in expired]
        until_ms = min([until_ms, *put.values()])
        if expired:
            expired = expired.difference(put, gone)
        if share is None:
            return view._replace(until_ms=until_ms, expired=expired)
        free, others = free.copy(), others.copy()
        for number in taken:
            if number in own:
                del free[bisect_left(free, number)]
            else:
                insort(others, number // own.step)
        for number in freed:
            if number in own:
                insort(free, number)
            else:
                del others[bisect_left(others, number // own.step)]
        return _View(from_ms, until_ms, expired, share, own, free, others)

    def _look(self, now_ms: int, limit: SlotLimit | None = None) -> _View:
        """Return what the slots are at ``now_ms``; of a limit, if given, which of its slots are free."""
        view = self._view
        if not view.from_ms <= now_ms < view.until_ms:
            expired = frozenset([number for number, until_ms in self.untils.items() if until_ms <= now_ms])
            from_ms = max([self.untils[number] for number in expired], default=-_FAR)
            until_ms = min([until_ms for until_ms in self.untils.values() if until_ms > now_ms], default=_FAR)
            view = self._view = _View(from_ms, until_ms, expired, None, range(0), [], [])
        if limit is not None and view.share != (limit.slots, limit.shard, limit.shards):
            own, taken = limit.first_numbers(limit.slots), self.untils.keys() - view.expired
            free = [number for number in own if number not in taken]
            others = sorted([number // own.step for number in taken if number not in own])
            view = self._view = _View(*view[:3], (limit.slots, limit.shard, limit.shards), own, free, others)
        return view

    def count(self, now_ms: int) -> int:
        """Return how many are taken at ``now_ms``, at any instant."""
        view = self._view
        if view.from_ms <= now_ms < view.until_ms:
            return len(self.untils) - len(view.expired)
        return len(self.ends) - bisect_right(self.ends, now_ms)

    @property
    def ends(self) -> list[int]:
        """The instants at which slots come back by themselves, or have, in ascending order."""
        if self._ends is None:
            self._ends = sorted(self.untils.values())
        return self._ends

    def taken(self, now_ms: int) -> dict[int, int]:
        """Return those that are taken at ``now_ms``, and until when."""
        return {number: until_ms for number, until_ms in self.untils.items() if until_ms > now_ms}

    def is_taken(self, number: int, now_ms: int) -> bool:
        """Return whether a slot is taken at ``now_ms``."""
        return self.untils.get(number, 0) > now_ms

    def find_free(self, limit: SlotLimit, now_ms: int) -> tuple[list[int], list[int]]:
        """Return the numbers of the slots that a request can take, and of the expired ones above these.

        Both are in ascending order.
        """
        view = self._look(now_ms, limit)
        bound = _bound(limit, view) if limit.floor or view.others else limit.slots
        free = view.free[: bisect_left(view.free, bound * limit.shards)]
        return free, sorted([number for number in view.expired if number // limit.shards >= bound])

    def find_beyond(self, limit: SlotLimit, now_ms: int) -> list[int]:
        """Return the numbers of the slots that only a soft limit can take, beyond what it states."""
        within = {*self.find_free(limit, now_ms)[0]}
        numbers = limit.first_numbers(2 * limit.slots + _MORE_SOFT)
        return [number for number in numbers if number not in within and not self.is_taken(number, now_ms)]


NO_SLOTS = Slots({})


def _bound(limit: SlotLimit, view: _View) -> int:
    """Return the highest bound such that it and the slots taken at or above it are at most those to be taken."""
    bound = most = limit.slots - limit.floor
    while True:
        own = limit.slots - max(bound, 0) - (len(view.free) - bisect_left(view.free, bound * limit.shards))
        above = own + len(view.others) - bisect_left(view.others, bound)
        if most - above >= bound:
            return max(0, bound)
        bound = most - above
