"""Read a limits file. All of its mistakes are found in one go, each with its place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from enum import Enum
from functools import partial
from typing import Any, TypeAlias, TypeVar

from ..core import names
from ..core.kinds import parse_limit
from ..core.limit import Limit
from ..core.names import DEFAULT_RESOURCE, check_ancestry
from ..core.validation import ValidationError
from ..core.values import Access, OnUnavailable
from ..v017.limits_file import read_disabled
from . import fields
from .document import Node, read_document
from .limits import KINDS, find_table, read_limit
from .states import SYSTEM, Manifest, ManifestError, Place, Problem, Subject

E = TypeVar("E", bound=Enum)
Pairs: TypeAlias = Mapping[str, tuple[Place, Node]]


def parse_manifest(text: str, format: str, file: str = "limits", namespace: str = "default") -> Manifest:
    """Return what a text in ``yaml`` or ``toml`` states. Raise `ManifestError` with all of its mistakes.

    ``file`` is the name of the file, for messages; ``namespace`` the one that it is read for.
    """
    try:
        root, problems = read_document(text, format)
    except ManifestError as error:
        raise ManifestError(error.problems, file) from None
    parser = _Parser(namespace, problems)
    parser.read_root(root)
    if parser.problems:
        raise ManifestError(parser.problems, file)
    return Manifest(parser.levels, parser.entities, parser.places)


class _Parser:
    """Collects what is stated, and what is wrong."""

    def __init__(self, namespace: str, problems: list[Problem]) -> None:
        self.problems = problems
        self.levels: dict[Subject, dict[str, Any]] = {}
        self.entities: dict[str, dict[str, Any]] = {}
        self.places: dict[str, Place] = {}
        self._namespace = namespace

    def read_root(self, root: Node) -> None:
        """Read the whole file."""
        given = self._read_pairs(root, "", fields.ROOT)
        if not given and not self.problems:
            self._report(root.place, "", f"states nothing; write {', '.join(fields.ROOT)}")
        if "namespace" in given:
            node = given["namespace"][1]
            if node.text != self._namespace:
                self._report(node.place, "namespace", f"is not {self._namespace!r}, which is chosen with --namespace")
        if "system" in given:
            self._read_level(SYSTEM, self._read_pairs(given["system"][1], "system", fields.SYSTEM), "system")
        for name, _, node in self._read_named(given, "resources", "resources", names.resource):
            path = f"resources.{name}"
            self._read_level(Subject(None, name), self._read_pairs(node, path, fields.SETTINGS), path)
        for name, _, node in self._read_named(given, "entities", "entities", names.entity_id):
            self._read_entity(name, self._read_pairs(node, f"entities.{name}", fields.ENTITY), f"entities.{name}")
        self._add_parents()
        self._check_parents()

    def _add_parents(self) -> None:
        """Let parents be created that the file names with limits or switches only."""
        named = {subject.entity_id for subject in self.levels}
        for parent in [each.get("parent_id") for each in self.entities.values()]:
            if isinstance(parent, str) and parent in named:
                self.entities.setdefault(parent, {})

    def _read_entity(self, entity_id: str, given: Pairs, path: str) -> None:
        stated: dict[str, Any] = {}
        for field in ("name", "parent", "cascade"):
            if field in given:
                stated["parent_id" if field == "parent" else field] = self._read_field(field, given[field][1], path)
        if "parent" in given:
            self.places[entity_id] = given["parent"][1].place
        if stated or not given:
            self.entities[entity_id] = stated
        own = {field: given[field] for field in ("limits", "switch", "disabled") if field in given}
        if own:
            self._read_level(Subject(entity_id, DEFAULT_RESOURCE), own, path)
        for name, place, node in self._read_named(given, "resources", f"{path}.resources", names.config_resource):
            below = f"{path}.resources.{name}"
            pairs = self._read_pairs(node, below, fields.SETTINGS)
            for field in own.keys() & pairs.keys() if name == DEFAULT_RESOURCE else ():
                self._report(place, f"{below}.{field}", "is given for the entity already")
            self._read_level(Subject(entity_id, name), pairs, below)

    def _read_field(self, field: str, node: Node, path: str) -> object:
        if field == "cascade":
            if not isinstance(node.value, bool):
                self._report(node.place, f"{path}.{field}", "must be true or false")
            return node.value
        if node.value is not None:
            check: Callable[[object, str], str] = names.text if field == "name" else names.entity_id
            self._try(node.place, f"{path}.{field}", partial(check, node.value, field))
        return node.value

    def _read_level(self, subject: Subject, given: Pairs, path: str) -> None:
        stated = self.levels.setdefault(subject, {})
        if "limits" in given:
            stated["limits"] = self._read_limits(given["limits"][1], f"{path}.limits")
        if "switch" in given:
            stated["access"] = self._read_word(given["switch"][1], f"{path}.switch", Access, fields.NONE)
        if "disabled" in given and given["disabled"][1].value is not None:
            node = given["disabled"][1]
            stated["access"], reason = read_disabled(node.value)
            if reason is not None:
                self._report(node.place, f"{path}.disabled", reason)
            if "switch" in given:
                self._report(given["disabled"][0], f"{path}.disabled", "cannot be combined with switch")
        if "cascade" in given and given["cascade"][1].value is not None:
            stated["cascade"] = self._read_cascade(given["cascade"][1], f"{path}.cascade")
        if "on_unavailable" in given:
            node, below = given["on_unavailable"][1], f"{path}.on_unavailable"
            stated["on_unavailable"] = None if node.value is None else self._read_word(node, below, OnUnavailable)

    def _read_cascade(self, node: Node, path: str) -> bool | None:
        if not isinstance(node.value, bool) and node.text != fields.NONE:
            self._report(node.place, path, "must be true, false or none")
        return node.value if isinstance(node.value, bool) else None

    def _read_word(self, node: Node, path: str, kind: type[E], *none: str) -> E | None:
        """Return the member of an enum that a word names; None for the word ``none``, and for a wrong one."""
        words = [*(each.value for each in kind), *none]
        if node.text not in words:
            self._report(node.place, path, f"must be one of {', '.join(words)}")
        return kind(node.text) if node.text in words and node.text not in none else None

    def _read_limits(self, node: Node, path: str) -> tuple[Limit, ...]:
        found = []
        for name, (place, each) in sorted(self._read_pairs(node, path, None).items()):
            if not self._try(place, f"{path}.{name}", partial(names.limit_name, name)):
                continue
            limit = self._read_limit(name, each, f"{path}.{name}")
            found += [] if limit is None else [limit]
        return tuple(found)

    def _read_limit(self, name: str, node: Node, path: str) -> Limit | None:
        if isinstance(node.value, dict):
            given = self._read_pairs(self._drop_rivals(node, path), path, find_table(node.value))
            if not given.keys() & KINDS.keys():
                self._report(node.place, path, "needs a rate, a quota or concurrent, a number of slots")
            return read_limit(name, given, lambda place, field, why: self._report(place, f"{path}.{field}", why))
        if isinstance(node.value, bool) or not isinstance(node.value, (str, int)):
            self._report(node.place, path, "must be a limit: 60, 1000/min, or a mapping with rate, quota or concurrent")
            return None
        try:
            return parse_limit(f"{name}:{node.text}")
        except ValueError as error:
            self._report(node.place, path, str(error))
            return None

    def _drop_rivals(self, node: Node, path: str) -> Node:
        """Return the mapping of a limit with one of its kinds only; report the others."""
        kind, *others = [each for each in KINDS if each in node.value] or [""]
        for other in others:
            self._report(node.value[other][0], f"{path}.{other}", f"cannot be combined with {kind}")
        return replace(node, value={key: pair for key, pair in node.value.items() if key not in others})

    def _read_named(
        self, given: Pairs, field: str, path: str, check: Callable[[object], str]
    ) -> list[tuple[str, Place, Node]]:
        """Return the entries of a mapping whose keys are names, without those that are no names."""
        if field not in given:
            return []
        pairs = self._read_pairs(given[field][1], path, None)
        return [
            (name, place, node)
            for name, (place, node) in pairs.items()
            if self._try(place, f"{path}.{name}", partial(check, name))
        ]

    def _read_pairs(self, node: Node, path: str, known: Mapping[str, Any] | None) -> Pairs:
        """Return the pairs of a mapping with ``known`` keys, or (None) with any. Null is an empty one."""
        if node.value is None:
            return {}
        if not isinstance(node.value, dict):
            self._report(node.place, path, "must be a mapping of keys to values")
            return {}
        pairs: Pairs = node.value
        if known is None:
            return pairs
        for name in pairs.keys() - known.keys():
            close = get_close_matches(name, known, 1)
            hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}"
            self._report(pairs[name][0], f"{path}.{name}" if path else name, f"is no known key; {hint}")
        return {name: pair for name, pair in pairs.items() if name in known}

    def _check_parents(self) -> None:
        """Report hierarchies of the file itself that are cycles or too deep."""
        for entity_id, place in self.places.items():
            above: list[str] = []
            parent = self.entities[entity_id].get("parent_id")
            while isinstance(parent, str) and parent not in above:
                above.append(parent)
                parent = self.entities.get(parent, {}).get("parent_id")
            if above:
                self._try(place, f"entities.{entity_id}.parent", partial(check_ancestry, entity_id, above))

    def _try(self, place: Place, path: str, check: Callable[[], object]) -> bool:
        try:
            check()
        except ValidationError as error:
            self._report(place, path, error.reason)
            return False
        return True

    def _report(self, place: Place, path: str, message: str) -> None:
        self.problems.append(Problem(place, path, message))
