"""Progress of something long, on stderr."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from .output import console, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_LINE_EVERY = 1000


@contextmanager
def counting(doing: str, things: str, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """Count upwards: in place on a terminal, a line now and then in a log, nothing where that would disturb."""
    if quiet:
        yield lambda done: None
        return
    screen = console(err=True)
    if not screen.is_terminal:
        yield lambda done: _line(doing, things, done)
        return
    with screen.status(f"{doing} ...") as status:
        yield lambda done: status.update(f"{doing} ... {done:,} {things}")


@contextmanager
def following(doing: str, *, quiet: bool) -> Iterator[Callable[[str], None]]:
    """Tell what has happened: the last of it in place on a terminal, a line each in a log, nothing to disturb."""
    if quiet:
        yield lambda event: None
        return
    screen = console(err=True)
    if not screen.is_terminal:
        click.echo(f"{doing} ...", err=True)
        yield lambda event: click.echo(printable(event), err=True)
        return
    with screen.status(f"{doing} ...") as status:
        yield lambda event: status.update(f"{doing} ... {printable(event)}")


def _line(doing: str, things: str, done: int) -> None:
    if done % _LINE_EVERY == 0:
        click.echo(f"{doing} ... {done:,} {things}", err=True)
