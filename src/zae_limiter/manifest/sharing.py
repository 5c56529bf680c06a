"""Find what a file states without effect, such as a parent that shares no limit name with its child."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ..core.config import share_no_name
from ..core.limit import Limit
from ..core.names import DEFAULT_RESOURCE
from ..core.values import Entity
from .states import SYSTEM, Manifest, Stored, Subject


class Pair(NamedTuple):
    """An entity and its parent, to be compared on one resource."""

    child: str
    parent: str
    resource: str

    def subjects(self, entity_id: str) -> list[Subject]:
        """Return the levels that may have limits for one of the two, the one that decides first."""
        shared = [SYSTEM] if self.resource == DEFAULT_RESOURCE else [Subject(None, self.resource), SYSTEM]
        own = [Subject(entity_id, each) for each in dict.fromkeys((self.resource, DEFAULT_RESOURCE))]
        return [*own, *shared]


def list_pairs(manifest: Manifest, entities: Mapping[str, Entity]) -> Iterator[Pair]:
    """Iterate over what a file may change: every entity that it names and that charges a parent, by resource."""
    named = {subject.entity_id for subject in manifest.levels if subject.entity_id is not None}
    for child in sorted(named | manifest.entities.keys()):
        stored, stated = entities.get(child), manifest.entities.get(child, {})
        parent = stated.get("parent_id", None if stored is None else stored.parent_id)
        if parent is None or not stated.get("cascade", stored is not None and stored.cascade):
            continue
        found = {each.resource for each in manifest.levels if each.entity_id in (child, parent)}
        for resource in sorted({DEFAULT_RESOURCE, *(each for each in found if each is not None)}):
            yield Pair(child, parent, resource)


def find_ineffective(manifest: Manifest, stored: Stored, *, prune: bool) -> tuple[str, ...]:
    """Return a warning for all that will have no effect as things stand. ``stored`` has all levels of `list_pairs`."""
    soft = {
        f"the floors of {limit.name} have no effect while it is soft"
        for level in manifest.levels.values()
        for limit in level.get("limits", ())
        if limit.soft and limit.floors
    }
    alone = []
    for entity_id, stated in manifest.entities.items():
        known = stored.entities.get(entity_id)
        if stated.get("cascade") and stated.get("parent_id", known and known.parent_id) is None:
            alone.append(f"cascade has no effect on {entity_id} until it has a parent")
    return (*sorted(soft), *sorted(alone), *_find_unshared(manifest, stored, prune=prune))


def _find_unshared(manifest: Manifest, stored: Stored, *, prune: bool) -> tuple[str, ...]:
    """Return a warning for every pair that will share no limit name."""

    def limits_after(subject: Subject) -> tuple[Limit, ...]:
        known = stored.levels.get(subject)
        kept = () if known is None or (prune and subject.resource is not None) else known.limits or ()
        found: tuple[Limit, ...] = manifest.levels.get(subject, {}).get("limits", kept)
        return found

    warnings = []
    for pair in list_pairs(manifest, stored.entities):
        both = (pair.subjects(who) for who in (pair.child, pair.parent))
        own, above = (next(filter(None, map(limits_after, subjects)), ()) for subjects in both)
        if share_no_name(own, above):
            where = "" if pair.resource == DEFAULT_RESOURCE else f" on {pair.resource}"
            both_named = f"{pair.child} and its parent {pair.parent}"
            warnings.append(f"{both_named} have no limit of the same name{where}: the parent limits nothing there")
    return tuple(warnings)
