"""The layout with a partition per bucket, as other clients write it: ``{ns}/BUCKET#{id}#{resource}#{shard}``.

Each shard has ``capacity // shards`` and ``amount // shards``; one that is not there yet is full. A bucket in shards
becomes one record again, with what its shards have together: it is split anew where the traffic asks for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...core.bucket import Rule
from ...records import keys
from ...records.level import CONFIG_VERSION, SHARDS
from . import composite
from .buckets import Holding, Owner, record
from .items import Move, Old, moved, whole_number

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ...records.algebra import Image

LAYOUT = "sharded"
MOST_SHARDS = 64


def is_old(image: Image) -> bool:
    """Whether another client wrote the bucket: ours always know the config that they were charged under."""
    return CONFIG_VERSION not in image


def count(olds: Iterable[Old]) -> int:
    """How many shards a bucket has, by those that are there."""
    return max(
        max(whole_number(old.fields, SHARDS, 1, default=1), keys.parse_bucket_pk(old.key.pk).shard_id + 1)
        for old in olds
    )


def adopt(shards: Mapping[int, Old], now_ms: int) -> Move | None:
    """The one record of all shards of a bucket."""
    olds = list(shards.values())
    first = keys.parse_bucket_pk(olds[0].key.pk)
    image = olds[0].fields
    owner = Owner(*first[:3], bool(image.get("cascade")), image.get("parent_id"))
    number = count(olds)
    if number > MOST_SHARDS:
        raise ValueError(f"it has {number} shards, more than {MOST_SHARDS}")
    parts = [part for old in olds for part in composite.holdings(old)]
    anchor = max((part.refilled_ms for part in parts), default=0)
    held = [
        _together([part for part in parts if part.limit_name == name], number, anchor)
        for name in sorted({part.limit_name for part in parts})
    ]
    key = keys.bucket(*first[:3])
    return moved("bucket", olds, key, record(owner, held, LAYOUT), now_ms)


def _together(parts: list[Holding], number: int, anchor: int) -> Holding:
    """What the shards have of one limit, as of the anchor."""
    whole = parts[0].rule
    share = Rule(max(1, whole.capacity // number), max(1, whole.amount // number), whole.period)
    levels = [part._replace(rule=share).level(anchor) for part in parts]
    tokens = sum(levels) + (number - len(parts)) * (whole.capacity // number)
    consumed = sum(part.consumed for part in parts)
    return Holding(parts[0].limit_name, whole, tokens if number > 1 else levels[0], anchor, consumed)
