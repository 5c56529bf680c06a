"""The config record of the three stored levels: system, resource and entity.

l_{limit}_cp|ra|rp    capacity, refill amount, refill period in seconds: whole tokens
config_version        raised by every change; a deleted config keeps its record, so that it never falls
on_unavailable        system level only
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ..core.errors import CorruptRecordError, ValidationError
from ..core.limit import Limit
from ..core.values import OnUnavailable
from .algebra import ABSENT, Guard, Image, Key, Write

if TYPE_CHECKING:
    from collections.abc import Mapping

VERSION = "config_version"
_FIELDS = ("cp", "ra", "rp")


class Config(NamedTuple):
    """What one level says: nothing, or limits."""

    limits: tuple[Limit, ...] | None = None
    on_unavailable: OnUnavailable | None = None
    version: int = 0


def attribute(limit_name: str, field: str) -> str:
    """The attribute of a limit's field in a config record."""
    return f"l_{limit_name}_{field}"


def encode(limits: tuple[Limit, ...]) -> dict[str, int]:
    """The attributes that state the limits."""
    return {
        attribute(limit.name, field): value
        for limit in limits
        for field, value in zip(
            _FIELDS, (limit.capacity, limit.refill_amount, limit.refill_period_seconds), strict=True
        )
    }


def decode(key: Key, image: Image | None) -> Config:
    """Read a config record; one that does not exist says nothing."""
    if image is None:
        return Config()
    names = sorted(attr[2:-3] for attr in image if attr.startswith("l_") and attr.endswith("_cp"))
    try:
        limits = tuple(Limit(name, *(image[attribute(name, field)] for field in _FIELDS)) for name in names)
        policy = image.get("on_unavailable")
        return Config(limits or None, OnUnavailable(policy) if policy else None, image[VERSION])
    except (KeyError, ValidationError, ValueError) as error:
        raise CorruptRecordError(
            f"The config record {key.pk} {key.sk} cannot be read: {error}. Set or delete these limits again."
        ) from error


def replace(
    key: Key,
    seen: Image | None,
    limits: tuple[Limit, ...] | None,
    identity: Mapping[str, Any],
    on_unavailable: OnUnavailable | None = None,
) -> Write:
    """Replace what the level says (None: delete it), if nobody has changed it since ``seen``."""
    put: dict[str, Any] = dict(identity)
    put.update(encode(limits) if limits else {})
    if on_unavailable is not None:
        put["on_unavailable"] = on_unavailable.value
    put[VERSION] = 1 if seen is None else seen[VERSION] + 1
    if seen is None:
        return Write(key, (ABSENT,), put)
    keep = put.keys() | {"ttl"}
    remove = tuple(attr for attr in seen if attr not in keep and (attr[:2] == "l_" or attr in _VOLATILE))
    return Write(key, (Guard(VERSION, "=", seen[VERSION]),), put, remove=remove)


_VOLATILE = frozenset(("on_unavailable", "GSI3PK", "GSI3SK"))
"""Attributes a config has only while it says something."""
