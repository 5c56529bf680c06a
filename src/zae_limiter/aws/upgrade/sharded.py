"""The layout with a partition per bucket, as other clients write it: ``{ns}/BUCKET#{id}#{resource}#{shard}``.

Each shard has ``capacity // shards`` and ``amount // shards``; a missing shard is full. All shards of a bucket become
one record with their total; it is split again when traffic requires it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...core.bucket import Rule
from ...records import keys
from ...records.level import CONFIG_VERSION, SHARDS
from . import composite
from .buckets import Holding, Owner, encode_bucket
from .items import Move, Old, plan_move, whole_number

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ...records.algebra import Image

LAYOUT = "sharded"
MOST_SHARDS = 64


def is_old(image: Image) -> bool:
    """Return whether another client wrote the bucket: ours always store the config version."""
    return CONFIG_VERSION not in image


def count_shards(olds: Iterable[Old]) -> int:
    """Return how many shards a bucket has, judging by those that exist."""
    return max(
        max(whole_number(old.fields, SHARDS, 1, default=1), keys.parse_bucket_pk(old.key.pk).shard_id + 1)
        for old in olds
    )


def merge_shards(shards: Mapping[int, Old], now_ms: int) -> Move | None:
    """Return the move of all shards of a bucket to one record."""
    olds = list(shards.values())
    first = keys.parse_bucket_pk(olds[0].key.pk)
    image = olds[0].fields
    owner = Owner(*first[:3], bool(image.get("cascade")), image.get("parent_id"))
    number = count_shards(olds)
    if number > MOST_SHARDS:
        raise ValueError(f"it has {number} shards, more than {MOST_SHARDS}")
    parts = [part for old in olds for part in composite.read_holdings(old)]
    anchor = max((part.refilled_ms for part in parts), default=0)
    held = [
        _merge_holdings([part for part in parts if part.limit_name == name], number, anchor)
        for name in sorted({part.limit_name for part in parts})
    ]
    key = keys.bucket(*first[:3])
    return plan_move("bucket", olds, key, encode_bucket(owner, held, LAYOUT), now_ms)


def _merge_holdings(parts: list[Holding], number: int, anchor: int) -> Holding:
    """Return the total of one limit over all shards, as of the anchor."""
    whole = parts[0].rule
    share = Rule(max(1, whole.capacity // number), max(1, whole.amount // number), whole.period)
    levels = [part._replace(rule=share).level(anchor) for part in parts]
    tokens = sum(levels) + (number - len(parts)) * (whole.capacity // number)
    consumed = sum(part.consumed for part in parts)
    return Holding(parts[0].limit_name, whole, tokens if number > 1 else levels[0], anchor, consumed)
