"""Convert buckets: from the values that an old layout stores per limit to one record with one anchor.

An old bucket's level at an instant is ``min(capacity, tokens + (instant - refilled) * amount // period)``. By that
formula every limit is refilled to the latest refill among them, which becomes the anchor: there the levels are exactly
the old ones. Later they differ by at most the one millitoken by which the two formulas round differently.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ...core import names
from ...core.bucket import MILLI, Rule
from ...records import keys, pressure
from ...records.charging import identity
from ...records.level import ANCHOR, CONFIG_VERSION, MADE, MIGRATED_FROM, NEWEST, SHARDS, Level, attribute
from ...stores.dynamodb.store import CAPABILITIES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...records.algebra import Image


class Owner(NamedTuple):
    """The entity and resource of a bucket, and the parent that is charged with it."""

    namespace_id: str
    entity_id: str
    resource: str
    cascade: bool = False
    parent_id: str | None = None

    def check(self) -> None:
        """Raise `ValidationError` for names that are not valid today."""
        names.entity_id(self.entity_id)
        names.resource(self.resource)


class Holding(NamedTuple):
    """One limit of a bucket in an old layout, in millitokens and milliseconds."""

    limit_name: str
    rule: Rule
    tokens: int
    refilled_ms: int
    consumed: int = 0

    def level(self, now_ms: int) -> int:
        """Return the balance at an instant not before the last refill, by the old formula."""
        elapsed = max(0, now_ms - self.refilled_ms)
        return min(self.rule.capacity, self.tokens + elapsed * self.rule.amount // self.rule.period)


def encode_bucket(owner: Owner, holdings: Sequence[Holding], layout: str) -> Image:
    """Return the attributes of a bucket with these holdings."""
    owner.check()
    if not holdings:
        raise ValueError("it holds no limit")
    anchor = max(held.refilled_ms for held in holdings)
    level = level_of(owner)
    image: Image = {**identity(level), SHARDS: 1, ANCHOR: anchor, CONFIG_VERSION: 0, MIGRATED_FROM: layout}
    image |= {MADE: anchor * MILLI, NEWEST: anchor}
    image |= pressure.initial_attributes(level, anchor, pressure.WRITE)
    for held in holdings:
        names.limit_name(held.limit_name)
        image |= encode_limit(held, held.level(anchor))
    return image


def encode_limit(held: Holding, tokens: int) -> dict[str, int]:
    """Return the attributes of one limit."""
    rule = held.rule
    values = {
        "tk": tokens,
        "tc": held.consumed,
        "cr": 0,
        "hi": 0,
        "cp": rule.capacity,
        "ra": rule.amount,
        "rp": rule.period,
    }
    return {attribute(held.limit_name, field): value for field, value in values.items()}


def level_of(owner: Owner, lifetime_ms: int = 0) -> Level:
    """Return the bucket as a `Level` without limits, for the writers of records."""
    return Level(
        keys.bucket(owner.namespace_id, owner.entity_id, owner.resource),
        owner.namespace_id,
        owner.entity_id,
        owner.resource,
        (),
        {},
        lifetime_ms=lifetime_ms,
        cascade=owner.cascade,
        parent_id=owner.parent_id,
        partition_writes=CAPABILITIES.partition_writes,
    )
