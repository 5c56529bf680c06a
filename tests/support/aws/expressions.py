"""DynamoDB's expression language, read strictly: what the service documents and refuses, as a list of complaints.

Stricter than the service in one point: attribute names stand in expressions as placeholders only, so that no reserved
word, now or later, can be met by accident.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

TOKEN = re.compile(r"\s*(#\w+|:\w+|[A-Za-z_]\w*|<>|<=|>=|[=<>(),.+\-]|\[\d+\])")
WORDS = frozenset({"AND", "OR", "NOT", "BETWEEN", "IN"})
KEY_WORDS = frozenset({"AND", "BETWEEN"})
CLAUSES = ("SET", "REMOVE", "ADD", "DELETE")
TESTS = frozenset({"attribute_exists", "attribute_not_exists", "attribute_type", "begins_with", "contains", "size"})
VALUES = frozenset({"if_not_exists", "list_append"})
COMPARISONS = frozenset({"=", "<>", "<", "<=", ">", ">="})
CALLS = TESTS | VALUES | {"IN"}
LONGEST = 4096

Path = tuple[str, ...]


class Malformed(Exception):
    """Not an expression at all."""


def tokens(expression: str) -> list[str]:
    """The expression's words and signs."""
    found: list[str] = []
    place = 0
    text = expression.rstrip()
    while place < len(text):
        match = TOKEN.match(text, place)
        if match is None:
            raise Malformed(f"cannot be read at {text[place:]!r}")
        found.append(match[1])
        place = match.end()
    if not found:
        raise Malformed("is empty")
    return found


def placeholders(parts: list[str]) -> tuple[set[str], set[str]]:
    """The names (``#``) and the values (``:``) that are used."""
    return {part for part in parts if part[0] == "#"}, {part for part in parts if part[0] == ":"}


def condition(parts: list[str], values: Mapping[str, Any], *, key: bool = False) -> Iterator[str]:
    """What is wrong with a condition, a filter or a key condition."""
    allowed = KEY_WORDS | {"begins_with"} if key else WORDS | TESTS
    for place, part in enumerate(parts):
        if part[0].isalpha() or part[0] == "_":
            word = part.upper() if part.upper() in WORDS else part
            if word not in allowed:
                yield f"{part} is no placeholder and no word that may stand here"
            elif word in TESTS and parts[place + 1 : place + 2] != ["("]:
                yield f"{part} is not called"
            elif word == "BETWEEN":
                yield from _between(parts[place + 1 : place + 4], values)
        if part in COMPARISONS and parts[place - 1 : place] == parts[place + 1 : place + 2]:
            yield f"both sides of {part} are the same"
    yield from _parentheses(parts)


def _between(bounds: list[str], values: Mapping[str, Any]) -> Iterator[str]:
    if len(bounds) < 3 or bounds[1].upper() != "AND":
        yield "BETWEEN without two bounds"
        return
    low, high = values.get(bounds[0]), values.get(bounds[2])
    if not (isinstance(low, Mapping) and isinstance(high, Mapping)):
        return
    if low.keys() != high.keys():
        yield "the bounds of BETWEEN are of two types"
    elif _comparable(low) > _comparable(high):
        yield f"the bounds of BETWEEN are the wrong way round: {low} and {high}"


def _comparable(value: Mapping[str, Any]) -> Any:
    ((kind, held),) = value.items()
    return Decimal(held) if kind == "N" else str(held).encode()


def _parentheses(parts: list[str]) -> Iterator[str]:
    groups: list[int] = []
    closed: dict[int, int] = {}
    for place, part in enumerate(parts):
        if part == "(":
            groups.append(place)
        elif part == ")":
            if not groups:
                yield "a parenthesis is closed that was not opened"
                return
            closed[groups.pop()] = place
    if groups:
        yield "a parenthesis is not closed"
    for start, end in closed.items():
        called = start > 0 and (parts[start - 1] in CALLS or parts[start - 1].upper() in CALLS)
        if not called and (closed.get(start + 1) == end - 1 or end == start + 1):
            yield "redundant parentheses"


def update(parts: list[str], names: Mapping[str, str], keys: frozenset[str]) -> Iterator[str]:
    """What is wrong with an update expression."""
    seen: list[str] = []
    paths: list[Path] = []
    for clause, actions in _clauses(parts):
        if clause in seen:
            yield f"{clause} stands twice"
        seen.append(clause)
        for action in actions:
            yield from _action(clause, action)
            paths.append(_path(action, names))
    yield from _parentheses(parts)
    yield from (f"{path[0]} is part of the key" for path in paths if path[0] in keys)
    for place, path in enumerate(paths):
        for other in paths[place + 1 :]:
            if path[: len(other)] == other[: len(path)]:
                yield f"the paths {'.'.join(path)} and {'.'.join(other)} overlap"


def _clauses(parts: list[str]) -> Iterator[tuple[str, list[list[str]]]]:
    starts = [place for place, part in enumerate(parts) if part.upper() in CLAUSES]
    if not starts or starts[0] != 0:
        raise Malformed("begins with no clause")
    for start, end in zip(starts, [*starts[1:], len(parts)], strict=True):
        yield parts[start].upper(), list(_split(parts[start + 1 : end]))


def _split(parts: list[str]) -> Iterator[list[str]]:
    depth, current = 0, list[str]()
    for part in parts:
        depth += {"(": 1, ")": -1}.get(part, 0)
        if part == "," and depth == 0:
            yield current
            current = []
        else:
            current.append(part)
    yield current


def _target(action: list[str]) -> list[str]:
    length = 0
    while length < len(action) and (action[length][0] in "#.[" or (action[length][0].isalpha() and length == 0)):
        length += 1
    return action[:length]


def _path(action: list[str], names: Mapping[str, str]) -> Path:
    found = tuple(names.get(part, part) for part in _target(action) if part != ".")
    return found or ("",)


def _action(clause: str, action: list[str]) -> Iterator[str]:
    target = _target(action)
    rest = action[len(target) :]
    if not target or target[0][0] != "#":
        yield f"{clause} without a placeholder to act on: {' '.join(action)}"
    if clause == "REMOVE" and rest:
        yield f"REMOVE takes a path only, not {' '.join(action)}"
    if clause in {"ADD", "DELETE"} and not (len(rest) == 1 and rest[0][0] == ":"):
        yield f"{clause} takes a path and a value, not {' '.join(action)}"
    if clause == "SET":
        if rest[:1] != ["="] or len(rest) < 2:
            yield f"SET takes path = value, not {' '.join(action)}"
        yield from (
            f"{part} is no placeholder and no function" for part in rest if part[0].isalpha() and part not in VALUES
        )


def projection(parts: list[str], names: Mapping[str, str]) -> Iterator[str]:
    """What is wrong with a projection."""
    paths = []
    for each in _split(parts):
        if not each or each[0][0] != "#" or _target(each) != each:
            yield f"{' '.join(each)} is no path of placeholders"
        paths.append(_path(each, names))
    if len(set(paths)) != len(paths):
        yield "a path is projected twice"
