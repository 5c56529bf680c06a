"""Find where the keys and values of a TOML text are, which `tomllib` does not tell."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TypeAlias

from .problems import Place

Path: TypeAlias = tuple[str, ...]
_TOKEN = re.compile(
    r"""(?P<skip>[ \t]+|\#[^\n]*)|(?P<newline>\n)|(?P<text>\"{3}(?:\\.|[^\\])*?\"{3,5}|'{3}.*?'{3,5})
    |(?P<quoted>"(?:\\.|[^"\\])*"|'[^']*')|(?P<mark>[\[\]{}=,.])|(?P<word>[^\s\[\]{}=,.\#"']+)""",
    re.VERBOSE | re.DOTALL,
)


def find_places(text: str) -> tuple[dict[Path, Place], dict[Path, Place]]:
    """Return the places of all keys and of all values of a valid TOML text, by the keys that lead to them."""
    scanner = _Scanner(text)
    scanner.scan()
    return scanner.keys, scanner.values


class _Scanner:
    """Walks over the tokens of a text that is known to be valid."""

    def __init__(self, text: str) -> None:
        self.keys: dict[Path, Place] = {}
        self.values: dict[Path, Place] = {}
        self._tokens = list(_tokenize(text))
        self._next = 0

    def scan(self) -> None:
        """Read all tables."""
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
            self.keys.setdefault(path, place)
            if self._kind() != ".":
                return path
            self._next += 1

    def _read_value(self, path: Path) -> None:
        kind, _, place = self._tokens[self._next]
        self.values[path] = place
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
            yield "word", _unquote(token), place
        elif kind != "skip":
            yield kind, token, place
        if "\n" in token:
            line += token.count("\n")
            begin = found.start() + token.rindex("\n") + 1
    yield "end", "", Place(line, 1)


def _unquote(token: str) -> str:
    if token[0] == "'":
        return token[1:-1]
    escaped = re.sub(r"\\U([0-9A-Fa-f]{8})", lambda found: chr(int(found[1], 16)), token[1:-1])
    escapes = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r", "e": "\x1b"}
    return re.sub(
        r"\\(?:u([0-9A-Fa-f]{4})|(.))",
        lambda found: chr(int(found[1], 16)) if found[1] else escapes.get(found[2], found[2]),
        escaped,
    )
