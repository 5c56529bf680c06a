"""Show progress on stderr: in place on a terminal, as lines in a log, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import click

from .grid import printable
from .output import open_console

_LINE_EVERY = 1000


def write_line(text: str) -> None:
    """Write a line for whoever follows the work. It goes on if nobody does any more."""
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
