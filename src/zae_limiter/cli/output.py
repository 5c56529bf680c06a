"""Printing: tables for people, JSON for programs. Rich is loaded only to print a table."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

if TYPE_CHECKING:
    from rich.console import Console, JustifyMethod, RenderableType
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

_PIPE_WIDTH = 10_000
"""Where nobody looks at columns, no line is broken."""

_ASCII = str.maketrans(
    {"─": "-", "│": "|", "├": "|", "└": "`", "·": "-", "✓": "ok", "✗": "X"}
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
    click.echo(styled(f"note: {printable(text)}", dim=True), err=True)


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
    if grid.title is not None:
        click.echo(styled(printable(grid.title.text), fg=grid.title.style or None))
    echo_trimmed(table_of(grid))


def table_of(grid: Grid) -> Table:
    """A table as rich draws it, without its title."""
    from rich import box
    from rich.table import Table

    table = Table(
        box=box.SIMPLE_HEAD if grid.headers else None,
        show_header=bool(grid.headers),
        show_edge=False,
        pad_edge=False,
        header_style="bold",
    )
    for number, header in enumerate(grid.headers or grid.rows[0]):
        cells = [row[number] for row in grid.rows]
        style = "" if number or grid.headers else "bold"
        side: JustifyMethod = "right" if grid.headers and _are_numbers(cells) else "left"
        table.add_column(str(header), justify=side, style=style, overflow="fold")
    for row in grid.rows:
        table.add_row(*(_shown(value) for value in row))
    return table


def widths(renderable: RenderableType) -> Measurement:
    """How wide it is at least without a word broken, and at most, whatever the terminal."""
    from rich.measure import Measurement

    screen = console()
    return Measurement.get(screen, screen.options.update(max_width=_PIPE_WIDTH), renderable)


def echo_trimmed(renderable: RenderableType) -> None:
    """Print something of rich's without the blanks with which it fills its lines.

    A terminal that is too narrow for its words breaks the lines itself: a number in pieces is none.
    """
    screen = console()
    screen.width = max(screen.width, widths(renderable).minimum)
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


def _are_numbers(cells: Sequence[object]) -> bool:
    given = [cell for cell in cells if cell is not None]
    return bool(given) and all(isinstance(cell, int | float) and not isinstance(cell, bool) for cell in given)


def _shown(value: object) -> Text:
    from rich.text import Text

    match value:
        case Text():
            return value
        case None:
            return Text("-", style="dim")
        case bool():
            return Text("yes" if value else "no")
        case int():
            return Text(f"{value:,}", style="red" if value < 0 else "")
        case float():
            return Text(f"{value:,.1f}", style="red" if value < 0 else "")
        case Cell(text, style):
            return Text(printable(text), style=style)
        case _:
            return Text(printable(str(value)))


def duration(seconds: float) -> str:
    """A time span as people say it, in two units; rounded up, so that what is promised has come by then."""
    if seconds < 60:
        return f"{seconds:.3f}".rstrip("0").rstrip(".") + " s"
    for size, unit, part, small in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= size:
            whole, rest = divmod(math.ceil(seconds / part), size // part)
            return f"{whole} {unit}" + (f" {rest} {small}" if rest else "")
    raise AssertionError  # 60 seconds or more have a unit above
