"""How much work a regular expression is: steps are counted while it is matched in the way of Python's engine."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from typing import Any

_parser: Any = importlib.import_module("re._parser")


class Steps:
    """One match of a whole text, by trying one thing after the other."""

    def __init__(self, pattern: re.Pattern[str], text: str) -> None:
        self.count = 0
        self._ignores_case = bool(pattern.flags & re.IGNORECASE)
        self._text = text.lower() if self._ignores_case else text
        ends = self._sequence(list(_parser.parse(pattern.pattern, pattern.flags & ~re.UNICODE)), 0)
        self.matched = any(end == len(text) for end in ends)

    def _sequence(self, nodes: list[Any], place: int) -> Iterator[int]:
        """Where a sequence can end, best first."""
        if not nodes:
            yield place
            return
        for end in self._node(nodes[0], place):
            yield from self._sequence(nodes[1:], end)

    def _node(self, node: Any, place: int) -> Iterator[int]:
        self.count += 1
        kind, value = str(node[0]), node[1]
        if kind in ("MAX_REPEAT", "MIN_REPEAT"):
            least, most, inner = value
            yield from self._repeat(least, most, inner, place, shortest_first=kind == "MIN_REPEAT")
        elif kind == "ATOMIC_GROUP":
            yield from self._first(self._sequence(list(value), place))
        elif kind == "SUBPATTERN":
            yield from self._sequence(list(value[3]), place)
        elif kind == "BRANCH":
            for way in value[1]:
                yield from self._sequence(list(way), place)
        elif kind == "ASSERT":
            if any(True for _ in self._sequence(list(value[1]), place)):
                yield place
        elif kind == "AT":
            assert str(value) == "AT_END_STRING"
            if place == len(self._text):
                yield place
        elif place < len(self._text) and self._is_character(kind, value, self._text[place]):
            yield place + 1

    def _first(self, ends: Iterator[int]) -> Iterator[int]:
        for end in ends:
            yield end
            return

    def _repeat(self, least: int, most: Any, inner: Any, place: int, *, shortest_first: bool) -> Iterator[int]:
        nodes = list(inner)
        if len(nodes) == 1 and str(nodes[0][0]) in _CHARACTERS:
            yield from self._repeat_character(least, most, nodes[0], place, shortest_first=shortest_first)
            return
        if (int(least), int(most)) != (0, 1):
            ends = self._sequence(nodes * int(least), place)
            assert int(least) == int(most), "a group that is repeated"
            yield from ends
        elif shortest_first:
            yield place
            yield from self._sequence(nodes, place)
        else:
            yield from self._sequence(nodes, place)
            yield place

    def _repeat_character(self, least: int, most: Any, node: Any, place: int, *, shortest_first: bool) -> Iterator[int]:
        last = min(len(self._text), place + int(most))
        kind, value = str(node[0]), node[1]
        if shortest_first:
            for end in range(place, last + 1):
                self.count += 1
                if end - place >= least:
                    yield end
                if end == last or not self._is_character(kind, value, self._text[end]):
                    return
        end = place
        while end < last and self._is_character(kind, value, self._text[end]):
            self.count += 1
            end += 1
        while end - place >= least:
            self.count += 1
            yield end
            end -= 1

    def _is_character(self, kind: str, value: Any, character: str) -> bool:
        if kind == "ANY":
            return True
        if kind in ("LITERAL", "NOT_LITERAL"):
            wanted = chr(value).lower() if self._ignores_case else chr(value)
            return (character == wanted) == (kind == "LITERAL")
        assert kind == "IN", kind
        return any(low <= ord(character) <= high for _, (low, high) in value)


_CHARACTERS = ("ANY", "LITERAL", "NOT_LITERAL", "IN")
