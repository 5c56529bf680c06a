"""The config record of the three stored levels: system, resource and entity.

l_{limit}_cp|ra|rp    capacity, refill amount, refill period in seconds: whole tokens
config_version        raised by every change; a deleted config keeps its record, so that it never falls
on_unavailable        system level only
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ..core.errors import CorruptRecordError, ValidationError, quote
from ..core.limit import Limit, whole
from ..core.values import OnUnavailable
from .algebra import ABSENT, PRESENT, Guard, Image, Key, Write

if TYPE_CHECKING:
    from collections.abc import Mapping

VERSION = "config_version"
_FIELDS = ("cp", "ra", "rp")


class Config(NamedTuple):
    """The config of one level: nothing, or limits."""

    limits: tuple[Limit, ...] | None = None
    on_unavailable: OnUnavailable | None = None
    version: int = 0


def attribute(limit_name: str, field: str) -> str:
    """Return the attribute of a limit's field in a config record."""
    return f"l_{limit_name}_{field}"


def encode(limits: tuple[Limit, ...]) -> dict[str, int]:
    """Return the attributes that state the limits."""
    return {
        attribute(limit.name, field): value
        for limit in limits
        for field, value in zip(
            _FIELDS, (limit.capacity, limit.refill_amount, limit.refill_period_seconds), strict=True
        )
    }


def decode(key: Key, image: Image | None) -> Config:
    """Return what a config record says, nothing if there is none. Raise `CorruptRecordError` for a damaged one."""
    if image is None:
        return Config()
    names = sorted(attr[2:-3] for attr in image if attr.startswith("l_") and attr.endswith("_cp"))
    try:
        limits = tuple(Limit(name, *(image[attribute(name, field)] for field in _FIELDS)) for name in names)
        policy = image.get("on_unavailable")
        version = whole(VERSION, image[VERSION], 0, 2**62)
        return Config(limits or None, OnUnavailable(policy) if policy else None, version)
    except (KeyError, ValidationError, ValueError) as error:
        raise CorruptRecordError(
            f"The config record {key.pk} {key.sk} cannot be read: {quote(error)}. Set or delete these limits again."
        ) from error


def decode_or_damaged(key: Key, image: Image | None) -> Config:
    """Return what a config record says that is about to be replaced; a damaged one says something that is not empty."""
    try:
        return decode(key, image)
    except CorruptRecordError:
        return Config(limits=_DAMAGED)


def replace(
    key: Key,
    seen: Image | None,
    limits: tuple[Limit, ...] | None,
    identity: Mapping[str, Any],
    on_unavailable: OnUnavailable | None = None,
) -> Write:
    """Return the write that replaces a level's limits (None: deletes them), if they are still those in ``seen``."""
    put: dict[str, Any] = dict(identity)
    put.update(encode(limits) if limits else {})
    if on_unavailable is not None:
        put["on_unavailable"] = on_unavailable.value
    if seen is None:
        put[VERSION] = 1
        return Write(key, (ABSENT,), put)
    before = seen.get(VERSION)
    put[VERSION] = before + 1 if type(before) is int else 1
    keep = put.keys() | {"ttl"}
    remove = tuple(attr for attr in seen if attr not in keep and (attr[:2] == "l_" or attr in _VOLATILE))
    guard = PRESENT if before is None else Guard(VERSION, "=", before)
    return Write(key, (guard,), put, remove=remove)


_DAMAGED = (Limit.per_second("damaged", 1),)
"""Stands for limits that were there but cannot be read."""

_VOLATILE = frozenset(("on_unavailable", "GSI3PK", "GSI3SK"))
"""Attributes a config has only while it says something."""
