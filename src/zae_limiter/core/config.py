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

    limits: tuple[Limit, ...] | None = None
    source: str | None = None
    version: int = 0


_NOTHING = Resolved()


def resolve(
    levels: Sequence[tuple[tuple[Limit, ...] | None, int]], defaults: Resolved = _NOTHING, version: int = 0
) -> Resolved:
    """Return the limits in force, given ``(limits, version)`` of the first levels in the order of `SOURCES`.

    Where they have no limits, it is ``defaults``. All versions are added, that of the entity too (``version``): each
    only ever rises, so any change at any level raises the sum.
    """
    total = defaults.version + version + sum(number for _, number in levels)
    for source, (limits, _) in zip(SOURCES, levels, strict=False):
        if limits:
            return Resolved(limits, source, total)
    return defaults._replace(version=total)
