"""Choose the limits in force: entity (resource) > entity (``_default_``) > resource > system."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

from .limit import Limit
from .values import Access, OnUnavailable

SOURCES = ("entity", "entity_default", "resource", "system")
"""Names of the levels, most specific first."""

CUSTOM = frozenset(("entity", "entity_default"))
"""The levels that belong to one entity: buckets under them never expire."""


class Config(NamedTuple):
    """What the config of one level says: limits, its version, a switch, whether the parent is charged; each if set.

    ``changed_ms`` is the instant at which its limits last changed, 0 if it never had any. ``since`` has an earlier one
    for each limit that kept its rate and capacity then.
    """

    limits: tuple[Limit, ...] | None = None
    on_unavailable: OnUnavailable | None = None
    version: int = 0
    access: Access | None = None
    cascade: bool | None = None
    changed_ms: int = 0
    since: Mapping[str, int] = MappingProxyType({})

    @property
    def is_empty(self) -> bool:
        """Whether it says nothing."""
        return not (self.limits or self.on_unavailable or self.access) and self.cascade is None

    def replaced_by(self, new: Config, now_ms: int) -> Config:
        """Return the config that follows this one, with the instant of the change if its limits are others.

        A limit that keeps its rate and capacity keeps its own instant, whatever is changed besides.
        """
        if {*(self.limits or ())} == {*(new.limits or ())}:
            return new._replace(changed_ms=self.changed_ms, since=self.since)
        kept = {_pace(limit) for limit in self.limits or ()} & {_pace(limit) for limit in new.limits or ()}
        since = {limit.name: self.since.get(limit.name, self.changed_ms) for limit in kept}
        return new._replace(changed_ms=now_ms, since=since)


def _pace(limit: Limit) -> Limit:
    """Return what of a limit decides how many tokens it makes."""
    return replace(limit, soft=False, floors=(), alerts=())


class Resolved(NamedTuple):
    """The limits in force, the level they come from, and the sum of the versions of all levels.

    ``access`` is the switch in force, with the level that it comes from; ``cascade`` is whether the parent is
    charged, None where the entity itself decides. ``since`` is the instant since when each limit is in force: its
    latest change on the level it comes from, or that of the more specific ones, which have no limits (any more).
    """

    limits: tuple[Limit, ...] | None = None
    source: str | None = None
    version: int = 0
    access: tuple[Access, str] | None = None
    cascade: bool | None = None
    since: Mapping[str, int] = MappingProxyType({})


_NOTHING = Resolved()


def resolve(levels: Sequence[Config], defaults: Resolved = _NOTHING, version: int = 0) -> Resolved:
    """Return the limits and the policies in force, given the first levels in the order of `SOURCES`.

    Where they have none, it is that of ``defaults``. All versions are added, that of the entity too (``version``): each
    only ever rises, so any change at any level raises the sum.
    """
    limits, source, total, access, cascade, since = defaults
    total += version
    for name, level in reversed(list(zip(SOURCES, levels, strict=False))):  # the most specific has the last word
        total += level.version
        if level.limits:
            limits, source = level.limits, name
            since = {limit.name: level.since.get(limit.name, level.changed_ms) for limit in limits}
        elif level.changed_ms:
            since = {limit_name: max(since_ms, level.changed_ms) for limit_name, since_ms in since.items()}
        if level.access is not None:
            access = level.access, name
        if level.cascade is not None:
            cascade = level.cascade
    return Resolved(limits, source, total, access, cascade, since)


def share_no_name(own: Iterable[Limit], above: Iterable[Limit]) -> bool:
    """Return whether limits of a parent limit nothing of a child, as none has the name of one of the child's.

    A concurrency limit counts whatever its name is.
    """
    theirs = list(above)
    names_above, names_own = {limit.name for limit in theirs}, {limit.name for limit in own}
    slotted = any(limit.is_concurrency for limit in theirs)
    return bool(names_own) and bool(names_above) and not slotted and names_own.isdisjoint(names_above)
