"""The slots of a bucket that go to another record: to a new shard, or to the record of a newer layout."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

from ..core.slots import in_shard
from .algebra import Guards, Image
from .level import BucketLimits, attribute
from .slot_table import OWNERSHIP_PREFIX, SLOTS, slot_attributes
from .slots import concurrency_limits


def merge_slots(images: Iterable[Image], without: Collection[str]) -> dict[str, Any]:
    """Return the attributes of all slots, and of their limits, of several records of a bucket as one record has them.

    ``without`` are names of limits that are not of slots any more.
    """
    merged: dict[str, Any] = {}
    for image in images:
        for name in concurrency_limits(tuple(image)) - {*without}:
            merged |= {SLOTS: 1, **{attr: image[attr] for attr in (attribute(name, "cp"), attribute(name, "tl"))}}
            counters = [attribute(name, field) for field in ("tn", "tc", "pk", "ov")]
            merged |= {attr: merged.get(attr, 0) + image[attr] for attr in counters if attr in image}
        for name, _, attr in slot_attributes(image) if SLOTS in image else ():
            ownership_token = OWNERSHIP_PREFIX + attr[2:]
            merged |= {attr: image[attr], ownership_token: image[ownership_token]} if name not in without else {}
    return merged


class MovedSlots(NamedTuple):
    """The slots that go to the new shard when a bucket is split."""

    guards: Guards
    remove: tuple[str, ...]
    born: dict[str, Any]


def move_slots(level: BucketLimits, sibling: BucketLimits, image: Image) -> MovedSlots:
    """Return what a split takes from the slots of the old shard, guarded by nobody having taken one meanwhile.

    The statement of every concurrency limit goes along, its counters begin anew.
    """
    guards: list[tuple[str, str, Any]] = []
    remove: list[str] = []
    born: dict[str, Any] = {}
    for name in concurrency_limits(tuple(image)):
        tn = attribute(name, "tn")
        guards.append((tn, "=", image[tn]))
        born |= {attr: image[attr] for field in ("cp", "tl", "pt") if (attr := attribute(name, field)) in image}
        born |= {SLOTS: 1, tn: 0, attribute(name, "tc"): 0, attribute(name, "pk"): 0}
    for _, number, attr in slot_attributes(image) if SLOTS in image else ():
        if in_shard(number, sibling.shard, 2 * level.shard_count):
            ownership_attr = OWNERSHIP_PREFIX + attr[2:]
            guards.append((ownership_attr, "=", image[ownership_attr]))
            remove += [attr, ownership_attr]
            born |= {attr: image[attr], ownership_attr: image[ownership_attr]}
    return MovedSlots(tuple(guards), tuple(remove), born)
