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

from typing import TYPE_CHECKING, NamedTuple

from .production import MILLI, Rule
from .tokens import SOFT

if TYPE_CHECKING:
    from collections.abc import Collection

    from .limit import Limit

_MORE_SOFT = 16
"""How many slots a soft limit can have taken beyond twice of what it states; beyond that it only counts."""


def in_shard(number: int, shard: int, shards: int) -> bool:
    """Return whether a slot is one of a shard of so many."""
    return (number + 1 + shard) % shards == 0


class SlotOwner(NamedTuple):
    """Whose slots, and of which limit."""

    entity_id: str
    resource: str
    limit_name: str


class SlotLimit(NamedTuple):
    """A concurrency limit, or a shard's share of it. ``least`` is how many slots a request has to leave free."""

    name: str
    slots: int
    ttl_ms: int
    max_hold_ms: int = 0
    least: int = 0
    soft: bool = False
    shard: int = 0
    shards: int = 1

    @classmethod
    def of(cls, limit: Limit, priority: str | None = None, bypassed: bool = False) -> SlotLimit:
        """Return what a concurrency limit states for requests of a priority; bypassed, it refuses nobody."""
        soft = limit.soft or bypassed
        least = 0 if soft else round(limit.capacity * limit.floor(priority))
        return cls(limit.name, limit.capacity, limit.ttl * MILLI, limit.max_hold * MILLI, least, soft)

    def share(self, shard: int, shards: int) -> SlotLimit:
        """Return the share of one shard of so many in a whole limit."""
        if shards == 1:
            return self
        slots, least = (self.slots + shard) // shards, (self.least + shard) // shards
        return self._replace(slots=slots, least=least, shard=shard, shards=shards)

    def is_above(self, number: int, taken: Collection[int]) -> bool:
        """Return whether a slot is one that cannot be taken while those in ``taken`` are."""
        return number // self.shards >= self._bound(self.slots - self.least, taken)

    @property
    def rule(self) -> Rule:
        """The limit as a rule that makes nothing: slots come back, they are not made."""
        return Rule(self.slots * MILLI, 0, 1)

    @property
    def least_milli(self) -> int:
        """What a request has to leave, in thousandths of a slot."""
        return SOFT if self.soft else self.least * MILLI

    def find_free(self, taken: Collection[int]) -> list[int]:
        """Return the numbers of the slots that can be taken, while those in ``taken`` are."""
        return self._number(self._bound(self.slots - self.least, taken), taken)

    def find_beyond(self, taken: Collection[int]) -> list[int]:
        """Return the numbers of the slots that only a soft limit can take, beyond what it states."""
        within = self.find_free(taken)
        return [number for number in self._number(2 * self.slots + _MORE_SOFT, taken) if number not in within]

    def _number(self, bound: int, taken: Collection[int]) -> list[int]:
        first = self.shards - 1 - self.shard
        numbers = range(first, first + bound * self.shards, self.shards)
        return [number for number in numbers if number not in taken]

    def _bound(self, most: int, taken: Collection[int]) -> int:
        """Return the highest bound such that it and the slots taken at or above it are together at most ``most``."""
        bound = most
        while True:
            above = sum(number // self.shards >= bound for number in taken)
            if most - above >= bound:
                return max(0, bound)
            bound = most - above
