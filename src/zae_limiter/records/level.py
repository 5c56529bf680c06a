"""A level: one entity's bucket for a resource, seen through the limits in force."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ..core.bucket import Rule
from . import keys

if TYPE_CHECKING:
    from ..core.limit import Limit
    from .algebra import Image, Key

ANCHOR = "rf"
CONFIG_VERSION = "cv"


class Slot(NamedTuple):
    """One limit of a level: its attribute names and its rule."""

    limit: Limit
    rule: Rule
    tk: str
    tc: str
    fl: str
    shape: tuple[tuple[str, int], ...]


Anchor: TypeAlias = tuple[int, dict[str, tuple[int, int, int, int, str, str, str]]]
"""An anchor and, per limit: capacity, amount, period, what was produced by then, and the names of tk, tc and fl."""


class Level:
    """One entity's bucket for a resource, with the limits in force; a step of a cascade chain."""

    __slots__ = (
        "cascade",
        "entity_id",
        "key",
        "lifetime_ms",
        "limits",
        "namespace_id",
        "parent_id",
        "resource",
        "slots",
        "source",
        "trusted",
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
    ) -> None:
        self.namespace_id = namespace_id
        self.entity_id = entity_id
        self.resource = resource
        self.key: Key = keys.bucket(namespace_id, entity_id, resource)
        self.limits = limits
        self.source = source
        self.version = version
        self.lifetime_ms = lifetime_ms
        self.cascade = cascade
        self.parent_id = parent_id
        self.slots = {limit.name: _slot(limit) for limit in limits}
        self.trusted: tuple[Image, Anchor] | None = None


def attribute(limit_name: str, field: str) -> str:
    """The attribute of a limit's field; injective, as a field has two letters and no underscore."""
    return f"b_{limit_name}_{field}"


def _slot(limit: Limit) -> Slot:
    rule = Rule.of(limit)
    shape = tuple((attribute(limit.name, field), value) for field, value in zip(("cp", "ra", "rp"), rule, strict=True))
    tk, tc, fl = (attribute(limit.name, field) for field in ("tk", "tc", "fl"))
    return Slot(limit, rule, tk, tc, fl, shape)
