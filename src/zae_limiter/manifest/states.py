"""What a file wants, what is stored, and the changes between the two, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..core.names import DEFAULT_RESOURCE
from ..core.values import Entity
from ..records.config import Config
from .problems import Place


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


def config_fields(config: Config, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the named fields of a config, with an empty tuple for no limits."""
    return {field: (config.limits or ()) if field == "limits" else getattr(config, field) for field in fields}


def entity_fields(entity: Entity | None, fields: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the named fields of an entity, None if it does not exist."""
    return None if entity is None else {field: getattr(entity, field) for field in fields}
