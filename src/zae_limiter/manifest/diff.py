"""Compare what a file states with what is stored, and find what it states without effect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ..core.config import share_no_name
from ..core.limit import Limit
from ..core.names import DEFAULT_RESOURCE, check_ancestry
from ..core.validation import ValidationError
from ..core.values import Entity
from .states import LABELS, SYSTEM, Change, Manifest, ManifestError, Plan, Problem, Stored, Subject


def diff(manifest: Manifest, stored: Stored, *, prune: bool = False, file: str = "limits") -> Plan:
    """Return the changes that make the store say what the file states; what it does not state is left alone.

    With ``prune`` the limits of resources and entities that are stored and not stated are removed. ``stored`` has what
    the file names, the entities above it, and for ``prune`` everything with limits. Raise `ManifestError` for a parent
    that does not exist and is not in the file, and for hierarchies that would be a cycle or too deep.
    """
    _check_parents(manifest, stored, file)
    levels = dict(manifest.levels)
    if prune:
        for subject in stored.levels:
            if subject.resource is not None:
                levels[subject] = {"limits": (), **levels.get(subject, {})}
    changes = [*_compare_entities(manifest, stored)]
    for subject in sorted(levels, key=_order):
        changes += _compare_level(subject, stored, levels[subject])
    return Plan(tuple(changes))


def _order(subject: Subject) -> tuple[str, str]:
    """Return the place of a level among all changes.

    It is the same in every plan, so that of two that are applied at the same time one is refused at the first change
    that both make, and the other goes through.
    """
    return subject.entity_id or "", subject.resource or ""


def _compare_level(subject: Subject, stored: Stored, stated: Mapping[str, Any]) -> Iterator[Change]:
    """Yield the change of the limits, with the policy stored beside them, of the switch and of the cascade policy."""
    for part in (("limits", "on_unavailable"), ("access",), ("cascade",)):
        after = {field: stated[field] for field in part if field in stated}
        before = stored.read(subject, after)
        if before != after:
            yield Change(subject, before, after)


def _compare_entities(manifest: Manifest, stored: Stored) -> Iterator[Change]:
    """Yield the changes of entities, parents first: those above an entity that is moved or created are in place."""
    for entity_id in sorted(manifest.entities, key=lambda each: (len(_list_ancestors(each, manifest, stored)), each)):
        subject, stated = Subject(entity_id), manifest.entities[entity_id]
        before = stored.read(subject, stated)
        if before is None or before != stated:
            yield Change(subject, before, stated)


def _check_parents(manifest: Manifest, stored: Stored, file: str) -> None:
    problems = []
    for entity_id, place in manifest.places.items():
        above = _list_ancestors(entity_id, manifest, stored)
        path, parent = f"entities.{entity_id}.parent", above[0] if above else None
        if parent is not None and parent not in manifest.entities and parent not in stored.entities:
            problems.append(Problem(place, path, f"{parent!r} is neither in the file nor stored"))
            continue
        try:
            check_ancestry(entity_id, above)
        except ValidationError as error:
            problems.append(Problem(place, path, error.reason))
    if problems:
        raise ManifestError(problems, file)


def _list_ancestors(entity_id: str, manifest: Manifest, stored: Stored) -> list[str]:
    """Return the entities above one as they will be, the nearest first; a cycle ends where it closes."""
    above: list[str] = []
    current: str | None = entity_id
    while current is not None:
        known = stored.entities.get(current)
        kept = None if known is None else known.parent_id
        current = manifest.entities.get(current, {}).get("parent_id", kept)
        if current is None or current in above:
            break
        above.append(current)
    return above


def describe_conflict(change: Change, now: Mapping[str, Any] | None) -> str:
    """Return what another client has changed, in one line."""
    if now is None:
        return f"{change.subject} was deleted"
    if change.before is None:
        fields = ", ".join(f"{LABELS.get(field, field)} {_describe(value)}" for field, value in now.items())
        return f"{change.subject} was created" + (f", with {fields}" if fields else "")
    parts = [
        f"{LABELS.get(field, field)}: now {_describe(value)}, in the plan {_describe(change.before[field])}"
        for field, value in now.items()
        if value != change.before[field]
    ]
    return f"{change.subject}, {'; '.join(parts)}"


def _describe(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(_describe_limit, value)) or "none"
    return "none" if value is None else str(value)


def _describe_limit(limit: Limit) -> str:
    from .limits import write_limit

    written = write_limit(limit)
    if isinstance(written, str):
        return f"{limit.name} {written}"
    return f"{limit.name} {{{', '.join(f'{field}: {value}' for field, value in written.items())}}}"


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
