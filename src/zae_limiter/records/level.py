"""A level: one entity's bucket for a resource, seen through the limits in force."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ..core.bucket import Rule
from . import keys

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..core.limit import Limit
    from .algebra import Image, Key

ANCHOR = "rf"
CONFIG_VERSION = "cv"
SHARDS = "shard_count"
HOUR_END = "he"
CHANGES = "ev"
BOOKINGS = "bk"
NEWEST = "at"
"""The newest instant, ms, as of which a bucket was charged: time before it is not counted anew at other rates."""
MADE = "mk"
"""When a bucket was made, in microseconds; the part below a millisecond only tells buckets of one millisecond apart."""
MIGRATED_FROM = "migrated_from"
"""The layout that an upgrade brought a bucket from: what it had consumed by then was counted there."""


class Slot(NamedTuple):
    """One limit of a level: its attribute names, its rule, and the whole rule as it is stored."""

    limit: Limit
    rule: Rule
    tk: str
    tc: str
    cr: str
    hi: str
    shape: tuple[tuple[str, int], ...]


Slots: TypeAlias = dict[str, Slot]

Anchor: TypeAlias = tuple[int, dict[str, tuple[int, int, int, int, int, int, str, str, str]], Slots]
"""An anchor and, per limit: the rule, what it had produced by then, its upper mark, and the names of tk, tc and hi;
of which slots."""


class Level:
    """One entity's bucket for a resource, or one shard of it, with the limits in force; a step of a cascade chain.

    ``partition_writes`` is how many writes a second the store takes for one record (0: it does not matter).
    ``usage_days`` is for how long usage is kept by whoever consumes (0: not by these).
    ``count`` is the number of shards when it was last looked at; what a record says of itself goes first.
    """

    __slots__ = (
        "_shares",
        "anchored",
        "cascade",
        "count",
        "entity_id",
        "key",
        "lifetime_ms",
        "limits",
        "namespace_id",
        "parent_id",
        "partition_writes",
        "resource",
        "shard",
        "slots",
        "source",
        "trusted",
        "usage_days",
        "version",
    )

    def __init__(
        self,
        namespace_id: str,
        entity_id: str,
        resource: str,
        limits: tuple[Limit, ...],
        *,
        source: str,
        version: int | None,
        lifetime_ms: int,
        cascade: bool = False,
        parent_id: str | None = None,
        partition_writes: int = 0,
        usage_days: int = 0,
        shard: int = 0,
        count: int = 1,
        key: Key | None = None,
    ) -> None:
        """``key`` is that of the bucket, where it is known already."""
        self.namespace_id = namespace_id
        self.entity_id = entity_id
        self.resource = resource
        self.key: Key = key or keys.bucket(namespace_id, entity_id, resource, shard)
        self.limits = limits
        self.source = source
        self.version = version
        self.lifetime_ms = lifetime_ms
        self.cascade = cascade
        self.parent_id = parent_id
        self.partition_writes = partition_writes
        self.usage_days = usage_days
        self.shard = shard
        self.count = count
        self.slots: Slots = _slots(limits)
        self.anchored: Anchor | None = None
        self.trusted: tuple[Image, Anchor] | None = None
        self._shares: dict[int, Slots] | None = None

    def at(self, shard: int, count: int) -> Level:
        """Another shard of the same bucket."""
        if (shard, count) == (self.shard, self.count):
            return self
        return Level(
            self.namespace_id,
            self.entity_id,
            self.resource,
            self.limits,
            source=self.source,
            version=self.version,
            lifetime_ms=self.lifetime_ms,
            cascade=self.cascade,
            parent_id=self.parent_id,
            partition_writes=self.partition_writes,
            usage_days=self.usage_days,
            shard=shard,
            count=count,
        )

    def charges(self, cost: Mapping[str, int]) -> bool:
        """Whether something of a cost is taken here."""
        return any(cost.get(name) for name in self.slots)

    def slots_of(self, image: Image) -> Slots:
        """The limits with the share that the record has by its own account."""
        count = image.get(SHARDS, 1)
        if count == 1:
            return self.slots
        if self._shares is None:
            self._shares = {}
        found = self._shares.get(count)
        if found is None:
            shared = {name: slot._replace(rule=slot.rule.share(self.shard, count)) for name, slot in self.slots.items()}
            found = self._shares[count] = shared
        return found


def attribute(limit_name: str, field: str) -> str:
    """The attribute of a limit's field; injective, as a field has two letters and no underscore."""
    return f"b_{limit_name}_{field}"


@lru_cache(maxsize=1024)
def _slots(limits: tuple[Limit, ...]) -> Slots:
    """The slots of some limits: one object for all levels that have the same."""
    return {limit.name: _slot(limit) for limit in limits}


def _slot(limit: Limit) -> Slot:
    rule = Rule.of(limit)
    shape = tuple((attribute(limit.name, field), value) for field, value in zip(("cp", "ra", "rp"), rule, strict=False))
    tk, tc, cr, hi = (attribute(limit.name, field) for field in ("tk", "tc", "cr", "hi"))
    return Slot(limit, rule, tk, tc, cr, hi, shape)
