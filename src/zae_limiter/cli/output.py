"""Printing: tables for people, JSON for programs. Rich is loaded only to print a table."""

from __future__ import annotations

import dataclasses
import enum
import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_PIPE_WIDTH = 10_000
"""Where nobody looks at columns, no line is broken."""

_LEAST_WIDTH = 24
"""A terminal that is narrower breaks the lines itself."""

_ASCII = str.maketrans(
    {"─": "-", "│": "|", "├": "|", "└": "`", "·": "-", "…": "~", "✓": "ok", "✗": "X"}
    | dict.fromkeys("┌┐┘┤┬┴┼", "+")
    | dict.fromkeys("█▉▊▋▌", "#")
    | dict.fromkeys("▍▎▏", " ")
)


class Cell(NamedTuple):
    """Text with a style of its own."""

    text: str
    style: str


@dataclasses.dataclass(frozen=True, slots=True)
class Grid:
    """A table: numbers to the right, None as a dash; ``empty`` is said where there are no rows.

    ``title`` is a line before it, its style a colour or nothing.
    """

    headers: Sequence[str]
    rows: Sequence[Sequence[object]]
    empty: str = "Nothing there."
    title: Cell | None = None

    def without(self, header: str) -> Grid:
        """The same with a column less."""
        gone = self.headers.index(header)
        headers, *rows = ((*row[:gone], *row[gone + 1 :]) for row in (self.headers, *self.rows))
        return dataclasses.replace(self, headers=[str(each) for each in headers], rows=rows)


def facts(pairs: Mapping[str, object]) -> Grid:
    """One thing, a line per field."""
    return Grid((), [(name, value) for name, value in pairs.items()])


def plain(value: object) -> Any:
    """Values of the API as JSON has them."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    return value


def print_json(data: object, *, err: bool = False) -> None:
    """Print one JSON document."""
    click.echo(json.dumps(plain(data), indent=2, ensure_ascii=False), err=err)


def print_json_line(data: object) -> None:
    """Print one JSON document on one line, at once: one of many."""
    click.echo(json.dumps(plain(data), ensure_ascii=False))


def note(text: str) -> None:
    """Say something that is not the result."""
    click.echo(styled(f"note: {printable(end_once(text))}", dim=True), err=True)


def end_once(text: str) -> str:
    """A text that ends with one full stop at most: what stands last in it may bring one along."""
    return text[:-1] if text.endswith("..") and not text.endswith("...") else text


def styled(text: str, **style: Any) -> str:
    """Text in a style, unless the user wants none; click leaves the codes out where there is no terminal."""
    return text if os.environ.get("NO_COLOR") else click.style(text, **style)


def printable(text: str) -> str:
    """Text without control characters: a stored name must not drive the terminal."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def console(*, err: bool = False) -> Console:
    """A console on the present stdout or stderr; as wide as needed where it is not a terminal."""
    from rich.console import Console

    made = Console(stderr=err, highlight=False, markup=False, emoji=False)
    if not made.is_terminal:
        made.width = _PIPE_WIDTH
    return made


def print_grid(grid: Grid) -> None:
    """Print a table, its title before it."""
    if not grid.rows:
        note(grid.empty)
        return
    from .tables import fit_table

    if grid.title is not None:
        print_text(*grid.title)
    width = max(_LEAST_WIDTH, console().width)
    echo_trimmed(fit_table(grid, width), width)


def print_text(text: str, style: str = "") -> None:
    """Print a sentence, broken between words where the terminal is narrow."""
    from rich.text import Text

    echo_trimmed(Text(printable(text), style), max(_LEAST_WIDTH, console().width))


def echo_trimmed(renderable: RenderableType, width: int | None = None) -> None:
    """Print something of rich's without the blanks with which it fills its lines.

    Without a ``width`` it is as wide as the terminal, or as its longest word: a number in pieces is none.
    """
    from .tables import measure

    screen = console()
    screen.width = width or max(screen.width, measure(renderable).minimum)
    with screen.capture() as captured:
        screen.print(renderable)
    for line in captured.get().splitlines():
        click.echo(speakable(line.rstrip()))


def speakable(text: str) -> str:
    """Text in characters that stdout can show."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(_ASCII)
    return text
