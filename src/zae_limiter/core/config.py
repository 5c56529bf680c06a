"""Choose the limits in force: entity (resource) > entity (``_default_``) > resource > system."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .limit import Limit

SOURCES = ("entity", "entity_default", "resource", "system")
"""Names of the levels, most specific first."""

CUSTOM = frozenset(("entity", "entity_default"))
"""The levels that belong to one entity: buckets under them never expire."""


class Resolved(NamedTuple):
    """The limits in force, the level they come from, and the sum of the versions of all levels."""

    limits: tuple[Limit, ...] | None
    source: str | None
    version: int


def resolve(levels: Sequence[tuple[tuple[Limit, ...] | None, int]]) -> Resolved:
    """Return the limits in force, given ``(limits, version)`` of the four levels in the order of `SOURCES`.

    The version is the sum of the versions: each only ever rises, so any change at any level raises it.
    """
    version = sum(number for _, number in levels)
    for source, (limits, _) in zip(SOURCES, levels, strict=True):
        if limits:
            return Resolved(limits, source, version)
    return Resolved(None, None, version)


def override(defaults: Resolved, own: Sequence[tuple[tuple[Limit, ...] | None, int]], version: int) -> Resolved:
    """Return ``defaults`` overridden by ``own``, an entity's own levels as ``(limits, version)``.

    All versions are added.
    """
    total = defaults.version + version + sum(number for _, number in own)
    for source, (limits, _) in zip(SOURCES, own, strict=False):
        if limits:
            return Resolved(limits, source, total)
    return defaults._replace(version=total)
