"""What a bucket tells of its concurrency limits: the slots of each, and who has those that are taken.

Also its slots as another record has them: a new shard, or the record of a newer layout.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..core.balances import SlotBalance
from ..core.change import Change
from ..core.limit import Limit
from ..core.production import MILLI
from ..core.slots import SlotLimit, in_shard
from .algebra import Image, Key
from .keys import parse_bucket_pk
from .level import SHARDS, BucketLimits, attribute
from .slot_table import OWNERSHIP_PREFIX, SLOTS, SlotTable, parse_ownership_token, slot_attributes
from .slots import concurrency_limits, find_taken

if TYPE_CHECKING:
    from ..core.reports import BucketState, SlotState


def stored_slot_names(images: Iterable[Image]) -> set[str]:
    """Return the names of the concurrency limits that are stated by some of the records of a bucket."""
    return {name for image in images for name in concurrency_limits(image)}


def stored_slot_limits(image: Image) -> list[Limit]:
    """Return the concurrency limits that a record states, as far as it knows them, by name."""
    stated = (_stated_limit(image, name) for name in sorted(concurrency_limits(image)))
    return [Limit.concurrent(limit.name, limit.slots, ttl=limit.ttl_ms // MILLI) for limit in stated if limit]


def slot_balances(shards: Iterable[tuple[Key, Image]], name: str, now_ms: int) -> list[SlotBalance]:
    """Return the slots of a limit in each record of a bucket that states it."""
    balances = []
    for key, image in shards:
        stated = _stated_limit(image, name)
        if stated is not None:
            share = stated.share(parse_bucket_pk(key.pk).shard_id, image.get(SHARDS, 1))
            table = SlotTable.parse(image).shorten(image, now_ms)
            balances.append(SlotBalance(share.rule, table.of(name), now_ms))
    return balances


def _stated_limit(image: Image, name: str) -> SlotLimit | None:
    capacity, ttl_ms = (image.get(attribute(name, field)) for field in ("cp", "tl"))
    return None if capacity is None or ttl_ms is None else SlotLimit(name, capacity // MILLI, ttl_ms)


def taken_states(images: Iterable[Image], name: str, now_ms: int) -> tuple[SlotState, ...]:
    """Return the slots of a limit that are taken at ``now_ms``, in the order in which they were taken."""
    from ..core.reports import SlotState

    found = []
    for image in images:
        for number, until_ms in find_taken(image, now_ms).get(name, {}).items():
            since_ms, order, holder = parse_ownership_token(image[f"{OWNERSHIP_PREFIX}{name}_{number}"])
            found.append((since_ms, order, number, SlotState(number, since_ms, until_ms, holder or None)))
    return tuple(slot for *_, slot in sorted(found, key=lambda each: each[:3]))


def slot_state(shards: Sequence[tuple[Key, Image]], name: str, now_ms: int) -> BucketState:
    """Return a concurrency limit of one stored bucket, which one of its records states, as of now."""
    from ..core.reports import BucketState

    images = [image for _, image in shards]
    stated = next(limit for image in images if (limit := _stated_limit(image, name)) is not None)
    taken = taken_states(images, name, now_ms)
    held_ms, beyond = (sum(image.get(attribute(name, field), 0) for image in images) for field in ("tc", "ov"))
    whose, slots_milli = parse_bucket_pk(shards[0][0].pk), stated.rule.capacity
    numbers = (slots_milli - MILLI * len(taken), now_ms, slots_milli, slots_milli, stated.ttl_ms, held_ms)
    owned = BucketState(whose.entity_id, whose.resource, name, *numbers, total_overdrawn_milli=beyond)
    return replace(owned, ttl_ms=stated.ttl_ms, slots=taken)


def merge_slots(images: Iterable[Image], without: Collection[str]) -> dict[str, Any]:
    """Return the attributes of all slots, and of their limits, of several records of a bucket as one record has them.

    ``without`` are names of limits that are not of slots any more.
    """
    merged: dict[str, Any] = {}
    for image in images:
        for name in concurrency_limits(image) - {*without}:
            merged |= {SLOTS: 1, **{attr: image[attr] for attr in (attribute(name, "cp"), attribute(name, "tl"))}}
            counters = [attribute(name, field) for field in ("tn", "tc", "pk", "ov")]
            merged |= {attr: merged.get(attr, 0) + image[attr] for attr in counters if attr in image}
        for name, _, attr in slot_attributes(image):
            ownership_token = OWNERSHIP_PREFIX + attr[2:]
            merged |= {attr: image[attr], ownership_token: image[ownership_token]} if name not in without else {}
    return merged


def move_slots(level: BucketLimits, sibling: BucketLimits, image: Image, change: Change) -> dict[str, Any]:
    """Let a split take from the old shard the slots that the new one has, and return its attributes of slots.

    Guarded by nobody having taken one meanwhile. The statement of every concurrency limit goes along, its counters
    begin anew.
    """
    born: dict[str, Any] = {}
    for name in concurrency_limits(image):
        tn = attribute(name, "tn")
        change.equals[tn] = image[tn]
        born |= {attr: image[attr] for field in ("cp", "tl", "pt") if (attr := attribute(name, field)) in image}
        born |= {SLOTS: 1, tn: 0, attribute(name, "tc"): 0, attribute(name, "pk"): 0}
    for _, number, attr in slot_attributes(image):
        if in_shard(number, sibling.shard, 2 * level.shard_count):
            ownership_attr = OWNERSHIP_PREFIX + attr[2:]
            change.equals[ownership_attr] = image[ownership_attr]
            change.remove += attr, ownership_attr
            born |= {attr: image[attr], ownership_attr: image[ownership_attr]}
    return born
