"""What a file wants, what is stored, and the changes between the two, as values; the errors of files and of plans."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..core import names
from ..core.limit import Limit
from ..core.names import DEFAULT_RESOURCE
from ..core.validation import ValidationError, ZAELimiterError
from ..core.values import Access, Entity, OnUnavailable
from ..records.config import Config

_VERSION = 1
_FIELDS = {"limits", "on_unavailable", "access", "name", "parent_id", "cascade"}


class Place(NamedTuple):
    """A line and a column of a file, both counted from 1."""

    line: int = 1
    column: int = 1


class Problem(NamedTuple):
    """A mistake in a file: its place, the keys that lead to it, and what is wrong."""

    place: Place
    path: str
    message: str

    def __str__(self) -> str:
        where = f"{self.path}: " if self.path else ""
        return f"{self.place.line}:{self.place.column}: {where}{self.message}"


class ManifestError(ZAELimiterError):
    """A file with mistakes: all of its ``problems``, in the order of the file."""

    def __init__(self, problems: Sequence[Problem], file: str = "limits") -> None:
        self.problems = tuple(sorted(set(problems)))
        self.file = file
        count = len(self.problems)
        lines = "\n".join(f"{file}:{problem}" for problem in self.problems)
        super().__init__(f"{count} mistake{'' if count == 1 else 's'} in {file}, nothing was changed.\n{lines}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.problems, self.file)


class PlanOutdatedError(ZAELimiterError):
    """Others have changed what a plan is about: ``conflicts`` says what, ``applied`` how many changes were made."""

    def __init__(self, conflicts: Sequence[str], applied: int = 0) -> None:
        self.conflicts = tuple(conflicts)
        self.applied = applied
        before = f"{applied} change{'' if applied == 1 else 's'} made before it" if applied else "Nothing was changed"
        lines = "\n".join(f"  {conflict}" for conflict in self.conflicts)
        super().__init__(f"Changed by others since the plan:\n{lines}\n{before}; make a new plan.")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.conflicts, self.applied)


class Subject(NamedTuple):
    """What a change is about: the system, a resource, the limits of an entity on a resource, or an entity itself.

    The system has neither; an entity itself has no resource.
    """

    entity_id: str | None = None
    resource: str | None = None

    @property
    def is_entity(self) -> bool:
        """Whether it is an entity itself."""
        return self.entity_id is not None and self.resource is None

    @property
    def level(self) -> dict[str, str]:
        """The level of the config, as the repository writes it."""
        parts = {"entity_id": self.entity_id, "resource": self.resource}
        return {name: part for name, part in parts.items() if part is not None}

    def __str__(self) -> str:
        if self.entity_id is None:
            return "system" if self.resource is None else f"resource {self.resource}"
        if self.resource is None:
            return f"entity {self.entity_id}"
        return f"entity {self.entity_id} on {'all resources' if self.resource == DEFAULT_RESOURCE else self.resource}"


SYSTEM = Subject()
LABELS = {"parent_id": "parent", "access": "switch"}
"""What a file calls fields whose stored names are others."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a file states.

    Args:
        levels: By level the fields that are stated: ``limits`` (a tuple, empty for none), ``access``,
            ``cascade``, ``on_unavailable``.
        entities: By entity the fields of its record that are stated: ``name``, ``parent_id``, ``cascade``. Those that
            do not exist are created.
        places: Where the parents of entities are stated.
    """

    levels: Mapping[Subject, Mapping[str, Any]] = field(default_factory=dict)
    entities: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    places: Mapping[str, Place] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Stored:
    """What is stored: configs by level, and entities by id. What is not there is left out."""

    levels: Mapping[Subject, Config] = field(default_factory=dict)
    entities: Mapping[str, Entity] = field(default_factory=dict)

    def read(self, subject: Subject, fields: Iterable[str]) -> dict[str, Any] | None:
        """Return the named fields of a subject; None for an entity that does not exist."""
        if not subject.is_entity:
            return config_fields(self.levels.get(subject, Config()), fields)
        return entity_fields(self.entities.get(str(subject.entity_id)), fields)


class Change(NamedTuple):
    """Fields of one subject before and after. ``before`` is None for an entity that does not exist."""

    subject: Subject
    before: Mapping[str, Any] | None
    after: Mapping[str, Any]

    @property
    def kind(self) -> str:
        """``add``, ``change`` or ``remove``."""
        if self.subject.is_entity:
            return "add" if self.before is None else "change"
        if self.before is None or not _says_something(self.before):
            return "add"
        return "change" if _says_something(self.after) else "remove"


def _says_something(fields: Mapping[str, Any]) -> bool:
    return any(value is not None and value != () for value in fields.values())


class Plan(NamedTuple):
    """Changes in the order in which they can be made, and warnings of what has no effect after them."""

    changes: tuple[Change, ...] = ()
    warnings: tuple[str, ...] = ()

    def count(self, kind: str) -> int:
        """Return how many changes are of a kind."""
        return sum(change.kind == kind for change in self.changes)


def config_fields(config: Config, fields: Iterable[str]) -> dict[str, Any]:
    """Return the named fields of a config, with an empty tuple for no limits."""
    return {field: (config.limits or ()) if field == "limits" else getattr(config, field) for field in fields}


def entity_fields(entity: Entity | None, fields: Iterable[str]) -> dict[str, Any] | None:
    """Return the named fields of an entity, None if it does not exist."""
    return None if entity is None else {field: getattr(entity, field) for field in fields}


def encode_plan(plan: Plan, namespace: str) -> dict[str, Any]:
    """Return a plan for a namespace as JSON types."""
    changes = [
        {
            "kind": change.kind,
            **change.subject._asdict(),
            "before": None if change.before is None else _encode(change.before),
            "after": _encode(change.after),
        }
        for change in plan.changes
    ]
    summary = {kind: plan.count(kind) for kind in ("add", "change", "remove")}
    return {"version": _VERSION, "namespace": namespace, "summary": summary, "changes": changes}


def decode_plan(data: Any, namespace: str) -> Plan:
    """Return the plan of `encode_plan`. Raise `ValidationError` for anything else, and for another namespace."""
    try:
        version, made_for = data["version"], data["namespace"]
        changes = [_decode_change(each) for each in data["changes"]]
    except (KeyError, TypeError, ValueError) as error:
        raise ValidationError("plan", data, f"is not a plan of this version: {error}") from None
    if version != _VERSION:
        raise ValidationError("plan", version, f"has another version than {_VERSION}; make a new plan")
    if made_for != namespace:
        raise ValidationError("plan", made_for, f"was made for another namespace than {namespace!r}")
    return Plan(tuple(changes))


def _decode_change(data: Mapping[str, Any]) -> Change:
    """Return a change. Raise `ValidationError` for one that could not be stored under the names of its subject."""
    before = None if data["before"] is None else _decode(data["before"])
    entity_id, resource = data["entity_id"], data["resource"]
    if resource is not None:
        resource = (names.resource if entity_id is None else names.config_resource)(resource)
    subject = Subject(None if entity_id is None else names.entity_id(entity_id), resource)
    return Change(subject, before, _decode(data["after"]))


def _encode(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: [limit.to_dict() for limit in value] if name == "limits" else value for name, value in fields.items()}


def _decode(fields: Mapping[str, Any]) -> dict[str, Any]:
    if not fields.keys() <= _FIELDS:
        raise ValueError(f"{sorted(fields.keys() - _FIELDS)} are no fields")
    made = dict(fields)
    if "limits" in made:
        made["limits"] = tuple([Limit.from_dict(each) for each in made["limits"]])
    for name, kind in (("access", Access), ("on_unavailable", OnUnavailable)):
        if made.get(name) is not None:
            made[name] = kind(made[name])
    if not isinstance(made.get("cascade"), bool | None):
        raise ValueError("cascade is not true or false")
    return made
