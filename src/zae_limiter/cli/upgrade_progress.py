"""Progress of an upgrade, on stderr: a bar on a terminal, lines in a log, nothing where that would disturb."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from .output import console, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console

    from ..aws.events import Event
    from ..aws.upgrade.upgrade import UpgradeProgress

_LINE_EVERY = 10_000


@contextmanager
def watching(*, quiet: bool) -> Iterator[UpgradeProgress]:
    """Tell the steps of an upgrade, the events of its stack, and how many records were looked at."""
    from ..aws.upgrade.upgrade import UpgradeProgress

    screen = console(err=True)
    if quiet:
        yield UpgradeProgress()
    elif screen.is_terminal:
        with _bar(screen) as (say, count):
            yield UpgradeProgress(say, _events(say), count)
    else:
        yield UpgradeProgress(_line, _events(_line), _Lines().count)


@contextmanager
def _bar(screen: Console) -> Iterator[tuple[Callable[[str], None], Callable[[int, int], None]]]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=screen, transient=True) as bar:
        task = bar.add_task("", total=None)

        def say(text: str) -> None:
            bar.update(task, description=printable(text), completed=0, total=None)

        def count(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield say, count


def _events(say: Callable[[str], None]) -> Callable[[Event], None]:
    return lambda event: say(f"{event.resource}: {event.status.lower().replace('_', ' ')}")


def _line(text: str) -> None:
    click.echo(f"{printable(text)} ...", err=True)


class _Lines:
    """A line now and then."""

    def __init__(self) -> None:
        self._next = _LINE_EVERY

    def count(self, done: int, total: int) -> None:
        if done >= self._next:
            click.echo(f"{done:,} of about {total:,} records", err=True)
            self._next = done + _LINE_EVERY
