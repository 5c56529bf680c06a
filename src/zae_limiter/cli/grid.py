"""Tables as values, and text that is safe to print."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple


class Cell(NamedTuple):
    """Text with its own style."""

    text: str
    style: str


class Narrow(NamedTuple):
    """What becomes of a table that is too wide for its terminal, one row a line.

    Columns in ``spared`` are left out, the first of them first; names in the columns ``shortened`` are cut in the
    middle; ``headers`` are shorter headers.
    """

    spared: tuple[str, ...] = ()
    shortened: tuple[str, ...] = ()
    headers: Mapping[str, str] = MappingProxyType({})


@dataclasses.dataclass(frozen=True, slots=True)
class Grid:
    """A table. Numbers are right-aligned and None is a dash.

    Args:
        headers: The headers; empty for a table without.
        rows: The rows.
        empty: The text that is printed if there are no rows.
        title: A line before the table.
        narrow: What to do on a narrow terminal; None to fold texts.
    """

    headers: Sequence[str]
    rows: Sequence[Sequence[object]]
    empty: str = "Nothing there."
    title: Cell | None = None
    narrow: Narrow | None = None

    def without(self, *headers: str) -> Grid:
        """Return the grid without some columns."""
        kept = [place for place, header in enumerate(self.headers) if header not in headers]
        rows = [[row[place] for place in kept] for row in self.rows]
        return dataclasses.replace(self, headers=[self.headers[place] for place in kept], rows=rows)

    def without_empty(self, *headers: str) -> Grid:
        """Return the grid without those of some columns in which no cell says anything."""
        columns = dict(zip(self.headers, zip(*self.rows, strict=True), strict=False))
        return self.without(*(each for each in headers if {*map(str, columns.get(each, ()))} <= {"", "None"}))


def yes_or_no(answer: bool) -> Cell:
    """Return whether something is as it should be."""
    return Cell("yes", "green") if answer else Cell("no", "bold red")


def facts(pairs: Mapping[str, object]) -> Grid:
    """Return a table of one thing, a line per field."""
    return Grid((), list(pairs.items()))


def printable(text: str) -> str:
    """Return the text with control characters escaped: a stored name must not control the terminal."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
