"""Read YAML and TOML into one tree, in which every key and every value has its place in the file."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..core.validation import ZAELimiterError
from .states import ManifestError, Place, Problem

Path: TypeAlias = tuple[str, ...]
FORMATS = {".yaml": "yaml", ".yml": "yaml", ".toml": "toml"}
"""The format of a file by the end of its name."""
_TOKEN = re.compile(
    r"""(?P<skip>[ \t]+|\#[^\n]*)|(?P<newline>\n)|(?P<text>\"{3}(?:\\.|[^\\])*?\"{3,5}|'{3}.*?'{3,5})
    |(?P<quoted>"(?:\\.|[^"\\])*"|'[^']*')|(?P<mark>[\[\]{}=,.])|(?P<word>[^\s\[\]{}=,.\#"']+)""",
    re.VERBOSE | re.DOTALL,
)
_AT = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)\Z")


@dataclass(frozen=True, slots=True)
class Node:
    """A scalar with its text as it was written, a list of nodes, or a mapping of keys to their places and nodes."""

    value: Any
    text: str
    place: Place


def read_document(text: str, format: str) -> tuple[Node, list[Problem]]:
    """Return the tree of a text in ``yaml`` or ``toml``, and the problems of its keys and values.

    Raise `ManifestError` if the text is not well formed.
    """
    return _read_yaml(text) if format == "yaml" else (_read_toml(text), [])


def import_yaml() -> Any:
    """Return the module ``yaml``. Raise `ZAELimiterError` that says how to install it."""
    try:
        import yaml
    except ImportError:
        raise ZAELimiterError("YAML needs PyYAML: pip install 'zae-limiter[limits]'. TOML needs nothing.") from None
    return yaml


def _read_yaml(text: str) -> tuple[Node, list[Problem]]:
    yaml = import_yaml()
    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = Place() if mark is None else Place(mark.line + 1, mark.column + 1)
        reason = getattr(error, "problem", None) or " ".join(str(error).split())
        raise ManifestError([Problem(place, "", f"is not YAML: {reason}")]) from None
    reader = _YamlReader(loader, yaml.YAMLError)
    made = Node(None, "", Place()) if root is None else reader.convert(root, "")
    return made, reader.problems


class _YamlReader:
    """Converts composed nodes; an anchor is converted once, and one that holds itself is a problem."""

    def __init__(self, loader: Any, error: type[Exception]) -> None:
        self.problems: list[Problem] = []
        self._loader = loader
        self._error = error
        self._made: dict[int, Node | None] = {}

    def convert(self, node: Any, path: str) -> Node:
        """Return a composed node and all below it."""
        place = _yaml_place(node)
        if id(node) in self._made:
            made = self._made[id(node)]
            if made is None:
                self.problems.append(Problem(place, path, "holds itself"))
            return made or Node(None, "", place)
        self._made[id(node)] = None
        if node.id == "mapping":
            made = Node(self._convert_pairs(node, path), "", place)
        elif node.id == "sequence":
            made = Node([self.convert(each, f"{path}[{n}]") for n, each in enumerate(node.value)], "", place)
        else:
            made = Node(self._construct(node, path), node.value, place)
        self._made[id(node)] = made
        return made

    def _construct(self, node: Any, path: str) -> object:
        try:
            return self._loader.construct_object(node)
        except self._error as error:
            self.problems.append(Problem(_yaml_place(node), path, str(getattr(error, "problem", None) or error)))
        except ValueError:  # a date that does not exist
            pass
        return node.value

    def _convert_pairs(self, node: Any, path: str) -> dict[str, tuple[Place, Node]]:
        """Return the pairs of a mapping. Keys are the texts as written: ``on`` is no boolean, ``007`` no number."""
        pairs: dict[str, tuple[Place, Node]] = {}
        for key, value in node.value:
            place = _yaml_place(key)
            if key.id != "scalar":
                self.problems.append(Problem(place, path, "has a key that is not a text"))
                continue
            below = f"{path}.{key.value}" if path else key.value
            if key.value in pairs:
                first = pairs[key.value][0].line
                self.problems.append(Problem(place, below, f"is given twice, first on line {first}"))
            pairs[key.value] = place, self.convert(value, below)
        return pairs


def _yaml_place(node: Any) -> Place:
    return Place(node.start_mark.line + 1, node.start_mark.column + 1)


def _read_toml(text: str) -> Node:
    text = text.replace("\r\n", "\n")
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = _AT.search(str(error))
        last = text.split("\n")
        end = Place(len(last), len(last[-1]) + 1)
        place = end if found is None or found[1] is None else Place(*map(int, found.groups()))
        raise ManifestError([Problem(place, "", f"is not TOML: {_AT.sub('', str(error))}")]) from None
    return _place_toml(data, (), *_TomlScanner(text).scan())


def _place_toml(value: Any, path: Path, keys: Mapping[Path, Place], values: Mapping[Path, Place]) -> Node:
    place = values.get(path) or keys.get(path) or Place()
    if isinstance(value, dict):
        pairs = {}
        for name, each in value.items():
            node = _place_toml(each, (*path, name), keys, values)
            pairs[name] = keys.get((*path, name), place), node
        return Node(pairs, "", place)
    if isinstance(value, list):
        items = [_place_toml(each, (*path, str(n)), keys, values) for n, each in enumerate(value)]
        return Node(items, "", place)
    return Node(value, str(value), place)


class _TomlScanner:
    """Walks over the tokens of a text that is known to be valid, as `tomllib` tells no places."""

    def __init__(self, text: str) -> None:
        self._keys: dict[Path, Place] = {}
        self._values: dict[Path, Place] = {}
        self._tokens = list(_tokenize(text))
        self._next = 0

    def scan(self) -> tuple[dict[Path, Place], dict[Path, Place]]:
        """Return the places of all keys and of all values, by the keys that lead to them."""
        table: Path = ()
        while self._kind() != "end":
            if self._kind() == "newline":
                self._next += 1
            elif self._kind() == "[":
                while self._kind() == "[":
                    self._next += 1
                table = self._read_key(())
                while self._kind() == "]":
                    self._next += 1
            else:
                self._read_pair(table)
        return self._keys, self._values

    def _kind(self) -> str:
        return self._tokens[self._next][0]

    def _read_pair(self, table: Path) -> None:
        path = self._read_key(table)
        self._next += 1  # the equals sign
        self._read_value(path)

    def _read_key(self, path: Path) -> Path:
        """Read a dotted key, and set the place of each of its parts that was not seen before."""
        while True:
            _, text, place = self._tokens[self._next]
            self._next += 1
            path = (*path, text)
            self._keys.setdefault(path, place)
            if self._kind() != ".":
                return path
            self._next += 1

    def _read_value(self, path: Path) -> None:
        kind, _, place = self._tokens[self._next]
        self._values[path] = place
        if kind not in "[{":
            while self._kind() not in (",", "]", "}", "newline", "end"):
                self._next += 1
            return
        self._next += 1
        count = 0
        while self._kind() not in "]}":
            if self._kind() in (",", "newline"):
                self._next += 1
            elif kind == "[":
                self._read_value((*path, str(count)))
                count += 1
            else:
                self._read_pair(path)
        self._next += 1


def _tokenize(text: str) -> Iterator[tuple[str, str, Place]]:
    line, begin = 1, 0
    for found in _TOKEN.finditer(text):
        kind, token = str(found.lastgroup), found[0]
        place = Place(line, found.start() - begin + 1)
        if kind == "mark":
            yield token, token, place
        elif kind == "quoted":
            yield "word", tomllib.loads(f"text = {token}")["text"], place
        elif kind != "skip":
            yield kind, token, place
        if "\n" in token:
            line += token.count("\n")
            begin = found.start() + token.rindex("\n") + 1
    yield "end", "", Place(line, 1)
