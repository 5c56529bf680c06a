"""Tables as values, and text that is safe to print."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Cell(NamedTuple):
    """Text with its own style."""

    text: str
    style: str


@dataclasses.dataclass(frozen=True, slots=True)
class Grid:
    """A table. Numbers are right-aligned and None is a dash.

    Args:
        headers: The headers; empty for a table without.
        rows: The rows.
        empty: The text that is printed if there are no rows.
        title: A line before the table.
    """

    headers: Sequence[str]
    rows: Sequence[Sequence[object]]
    empty: str = "Nothing there."
    title: Cell | None = None

    def without(self, header: str) -> Grid:
        """Return the grid without a column."""
        gone = self.headers.index(header)
        headers, *rows = ((*row[:gone], *row[gone + 1 :]) for row in (self.headers, *self.rows))
        return dataclasses.replace(self, headers=[str(each) for each in headers], rows=rows)


def facts(pairs: Mapping[str, object]) -> Grid:
    """Return a table of one thing, a line per field."""
    return Grid((), list(pairs.items()))


def printable(text: str) -> str:
    """Return the text with control characters escaped: a stored name must not control the terminal."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
