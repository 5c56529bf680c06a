"""Print tables for people and JSON for programs, on a checked stdout, and progress on stderr.

Rich is loaded only to print a table, or to ask whether stderr is a terminal.
"""

from __future__ import annotations

import dataclasses
import enum
import io
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import click

from ..core.limit import Limit
from .grid import Grid, printable

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer
    from rich.console import Console, RenderableType

_PIPE_WIDTH = 10_000
"""Width of output that is no terminal: no line is broken."""

_LINE_EVERY = 1000
"""How far a count grows from one line of a log to the next."""

_LEAST_WIDTH = 24
"""A terminal that is narrower breaks the lines itself."""

_ASCII = str.maketrans(
    {"─": "-", "│": "|", "├": "|", "└": "`", "·": "-", "…": "~", "✓": "ok", "✗": "X"}
    | dict.fromkeys("┌┐┘┤┬┴┼", "+")
    | dict.fromkeys("█▉▊▋▌", "#")
    | dict.fromkeys("▍▎▏", " ")
)


def to_jsonable(value: object) -> Any:
    """Return a value of the API as JSON types."""
    if isinstance(value, Limit):
        return value.to_dict()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_jsonable(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(name): to_jsonable(part) for name, part in value.items()}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (list, tuple)):
        return [to_jsonable(part) for part in value]
    return value


def print_json(data: object, *, indent: int | None = 2, err: bool = False) -> None:
    """Print one JSON document, on one line if ``indent`` is None."""
    click.echo(json.dumps(to_jsonable(data), indent=indent, ensure_ascii=False), err=err)


def note(text: str) -> None:
    """Print a note to stderr."""
    click.echo(style(f"note: {printable(drop_double_stop(text))}", dim=True), err=True)


def spell_count(number: int, thing: str) -> str:
    """Return a number with its noun, e.g. ``1 record`` and ``1,200 records``."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def drop_double_stop(text: str) -> str:
    """Return the text with at most one full stop at its end."""
    return text[:-1] if text.endswith("..") and not text.endswith("...") else text


def style(text: str, **style: Any) -> str:
    """Return the text in a style, unless ``NO_COLOR`` is set; click drops styles if stdout is not a terminal."""
    return text if os.environ.get("NO_COLOR") else click.style(text, **style)


def open_console(*, err: bool = False) -> Console:
    """Return a console on the present stdout or stderr, of unlimited width if it is not a terminal."""
    from rich.console import Console

    made = Console(stderr=err, highlight=False, markup=False, emoji=False)
    if not made.is_terminal:
        made.width = _PIPE_WIDTH
    return made


def print_grid(grid: Grid) -> None:
    """Print a table and its title."""
    if not grid.rows:
        note(grid.empty)
        return
    from .tables import fit_table

    if grid.title is not None:
        print_text(*grid.title)
    width = max(_LEAST_WIDTH, open_console().width)
    echo_trimmed(fit_table(grid, width), width)


def print_text(text: str, style: str = "") -> None:
    """Print a sentence, wrapped to the width of the terminal."""
    from rich.text import Text

    echo_trimmed(Text(printable(text), style), max(_LEAST_WIDTH, open_console().width))


def echo_trimmed(renderable: RenderableType, width: int | None = None) -> None:
    """Print a renderable of rich without trailing blanks.

    Without ``width`` it is as wide as the terminal, or as its longest word, so that no number is broken.
    """
    from .tables import measure

    screen = open_console()
    screen.width = width or max(screen.width, measure(renderable).minimum)
    with screen.capture() as captured:
        screen.print(renderable)
    for line in captured.get().splitlines():
        click.echo(encodable(line.rstrip()))


def encodable(text: str) -> str:
    """Return the text with characters that stdout can encode."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(_ASCII)
    return text


def write_line(text: str) -> None:
    """Write a line of progress. The work goes on if stderr is closed."""
    with suppress(OSError):
        click.echo(text, err=True)


@contextmanager
def show_events(doing: str, *, quiet: bool) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows events."""
    if quiet:
        yield lambda event: None
        return
    screen = open_console(err=True)
    if not screen.is_terminal:
        write_line(f"{doing} ...")
        yield lambda event: write_line(printable(event))
        return
    with screen.status(f"{doing} ...") as status:
        yield lambda event: status.update(f"{doing} ... {printable(event)}")


@contextmanager
def show_count(doing: str, things: str, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """Yield a function that shows a growing count."""
    in_place = not quiet and open_console(err=True).is_terminal
    with show_events(doing, quiet=not in_place) as tell:

        def show(done: int) -> None:
            tell(f"{done:,} {things}")
            if not quiet and not in_place and done % _LINE_EVERY == 0:
                write_line(f"{doing} ... {done:,} {things}")

        yield show


class OutputError(click.ClickException):
    """The output could not be written: the disk is full, or its reader is gone."""

    exit_code = 21

    def __init__(self, reason: str) -> None:
        super().__init__(f"The output could not be written: {reason}.")


class CheckedOutput(io.FileIO):
    """The file behind stdout. A failing write raises `OutputError`, however it was buffered."""

    def write(self, data: ReadableBuffer, /) -> int:
        """Write to the file. Raise `OutputError` if that fails."""
        try:
            return super().write(data)
        except OSError as error:
            with suppress(OSError):  # Python tries to write buffered output again on exit: send it nowhere
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, self.fileno())
                os.close(nowhere)
            reason = f"{error.strerror or error}. Whatever the command has changed stays changed"
            raise OutputError(reason) from None


def prepare_streams() -> None:
    """Make stdout raise `OutputError`, and let both streams replace what they cannot encode.

    Raise `OutputError` if stdout is closed: no command could show its result.
    """
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")
    if sys.stdout is None:
        raise OutputError("stdout is closed. Nothing was done; > /dev/null throws the output away")
    buffer: Any = getattr(sys.stdout, "buffer", None)
    file = getattr(buffer, "raw", buffer)
    if isinstance(file, io.FileIO):
        checked = io.BufferedWriter(CheckedOutput(file.fileno(), "wb", closefd=False))
        sys.stdout = io.TextIOWrapper(checked, sys.stdout.encoding, errors="replace", line_buffering=True)
