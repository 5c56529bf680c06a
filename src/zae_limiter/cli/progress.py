"""Show progress on stderr: in place on a terminal, as lines in a log, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING

import click

from .grid import printable
from .output import open_console

if TYPE_CHECKING:
    from ..aws.events import Event
    from ..aws.upgrade.upgrade import UpgradeProgress

_LINE_EVERY = 1000
_UPGRADE_LINE_EVERY = 10_000


def _write_line(text: str) -> None:
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
        _write_line(f"{doing} ...")
        yield lambda event: _write_line(printable(event))
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
                _write_line(f"{doing} ... {done:,} {things}")

        yield show


@contextmanager
def show_upgrade(*, quiet: bool) -> Iterator[UpgradeProgress]:
    """Yield callbacks that show the steps, the stack events and the record count of an upgrade."""
    from ..aws.upgrade.upgrade import UpgradeProgress

    if quiet:
        yield UpgradeProgress()
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    screen = open_console(err=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    bar = Progress(*columns, console=screen, transient=True)
    task = bar.add_task("", total=None)
    next_line = _UPGRADE_LINE_EVERY

    def say(text: str) -> None:
        bar.update(task, description=printable(text), completed=0, total=None)
        if not screen.is_terminal:
            _write_line(f"{printable(text)} ...")

    def say_event(event: Event) -> None:
        say(f"{event.resource}: {event.status.lower().replace('_', ' ')}")

    def count(done: int, total: int) -> None:
        nonlocal next_line
        bar.update(task, completed=done, total=total)
        if done >= next_line and not screen.is_terminal:
            _write_line(f"{done:,} of about {total:,} records")
            next_line = done + _UPGRADE_LINE_EVERY

    with bar if screen.is_terminal else nullcontext():
        yield UpgradeProgress(say, say_event, count)
