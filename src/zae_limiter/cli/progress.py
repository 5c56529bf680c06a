"""Show progress on stderr: in place on a terminal, as lines in a log, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from .grid import printable
from .output import open_console

if TYPE_CHECKING:
    from ..aws.events import Event
    from ..aws.upgrade.upgrade import UpgradeProgress

_LINE_EVERY = 1000
_UPGRADE_LINE_EVERY = 10_000


@contextmanager
def show_events(doing: str, *, quiet: bool) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows events."""
    if quiet:
        yield lambda event: None
        return
    screen = open_console(err=True)
    if not screen.is_terminal:
        click.echo(f"{doing} ...", err=True)
        yield lambda event: click.echo(printable(event), err=True)
        return
    with screen.status(f"{doing} ...") as status:
        yield lambda event: status.update(f"{doing} ... {printable(event)}")


@contextmanager
def show_count(doing: str, things: str, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """Yield a function that shows a growing count."""
    if quiet:
        yield lambda done: None
        return
    screen = open_console(err=True)
    if screen.is_terminal:
        with screen.status(f"{doing} ...") as status:
            yield lambda done: status.update(f"{doing} ... {done:,} {things}")
        return

    def print_count(done: int) -> None:
        if done % _LINE_EVERY == 0:
            click.echo(f"{doing} ... {done:,} {things}", err=True)

    yield print_count


@contextmanager
def show_upgrade(*, quiet: bool) -> Iterator[UpgradeProgress]:
    """Yield callbacks that show the steps, the stack events and the record count of an upgrade."""
    from ..aws.upgrade.upgrade import UpgradeProgress

    screen = open_console(err=True)
    if quiet:
        yield UpgradeProgress()
        return
    if not screen.is_terminal:
        yield _print_upgrade()
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=screen, transient=True) as bar:
        task = bar.add_task("", total=None)

        def say(text: str) -> None:
            bar.update(task, description=printable(text), completed=0, total=None)

        def count(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield UpgradeProgress(say, _event_teller(say), count)


def _print_upgrade() -> UpgradeProgress:
    """Return callbacks that print a line per step and event, and every so many records."""
    from ..aws.upgrade.upgrade import UpgradeProgress

    next_line = _UPGRADE_LINE_EVERY

    def say(text: str) -> None:
        click.echo(f"{printable(text)} ...", err=True)

    def count(done: int, total: int) -> None:
        nonlocal next_line
        if done >= next_line:
            click.echo(f"{done:,} of about {total:,} records", err=True)
            next_line = done + _UPGRADE_LINE_EVERY

    return UpgradeProgress(say, _event_teller(say), count)


def _event_teller(say: Callable[[str], None]) -> Callable[[Event], None]:
    return lambda event: say(f"{event.resource}: {event.status.lower().replace('_', ' ')}")
