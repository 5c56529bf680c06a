"""A look at the busiest buckets: drawn in place on a terminal, block after block without one, or a line of JSON."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import click

from ..records.instants import iso
from .output import Cell, Grid, console, duration, note, print_grid, print_json_line, printable, table_of, widths

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console, RenderableType
    from rich.table import Table

    from ..core.survey import Load, Survey
    from .shell import Shell

    Show: TypeAlias = Callable[[Survey, Sequence[Load]], None]

_BAR = 12
_FRAME = 5
"""Lines of the picture that are no buckets."""
_SPARED = ("in use", "capacity", "per second", "resource", "full in")
"""Columns that a narrow terminal goes without, the first to go first."""


@contextmanager
def open_view(shell: Shell, resource: str | None) -> Iterator[Show]:
    """The way to show looks that fits where they go."""
    where = f"resource {resource}" if resource else f"namespace {shell.namespace}"
    screen = console()
    if shell.as_json:
        yield _print_line
    elif not screen.is_terminal or screen.is_dumb_terminal:
        yield partial(_print_block, where)
    else:
        with _live(screen, where) as show:
            yield show


@contextmanager
def _live(screen: Console, where: str) -> Iterator[Show]:
    from rich.live import Live

    with Live(console=screen, auto_refresh=False) as live:
        yield lambda survey, loads: live.update(_picture(screen, where, survey, loads), refresh=True)


def _picture(screen: Console, where: str, survey: Survey, loads: Sequence[Load]) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    title = Text(printable(_title(where, survey)), style="bold")
    remarks = [Text(remark, style="dim") for remark in _remarks(survey)]
    shown = loads[: max(1, screen.height - _FRAME)]
    return Group(title, *([_fitting(_grid(shown), screen.width)] if shown else []), *remarks)


def _fitting(grid: Grid, width: int) -> Table:
    """A table of as many columns as there is room for: a line per bucket, as lines are what is drawn over."""
    table = table_of(grid)
    for name in _SPARED:
        if widths(table).maximum <= width:
            break
        grid = grid.without(name)
        table = table_of(grid)
    return table


def _print_block(where: str, survey: Survey, loads: Sequence[Load]) -> None:
    click.echo(printable(_title(where, survey)))
    if loads:
        print_grid(_grid(loads))
    click.echo()
    for remark in _remarks(survey):
        note(remark)


def _print_line(survey: Survey, loads: Sequence[Load]) -> None:
    print_json_line(
        {
            "taken_at": iso(survey.taken_at_ms),
            "records": survey.records,
            "complete": survey.complete,
            "buckets": loads,
        }
    )


def _title(where: str, survey: Survey) -> str:
    moment = iso(survey.taken_at_ms)[:19].replace("T", " ")
    return f"{moment} UTC, {where}: {len(survey.loads):,} limits in {survey.records:,} records"


def _remarks(survey: Survey) -> list[str]:
    if not survey.complete:
        return [f"only the first {survey.records:,} records were looked at: --resource, or a higher --max-records."]
    return [] if survey.loads else ["nothing was consumed here yet."]


def _grid(loads: Sequence[Load]) -> Grid:
    headers = ("entity", "resource", "limit", "per second", "left", "capacity", "in use", "", "full in")
    return Grid(headers, [_row(load) for load in loads])


def _row(load: Load) -> tuple[object, ...]:
    from .demo.bars import used_bar

    return (
        load.entity_id,
        load.resource,
        load.limit_name,
        load.consumed_per_second,
        load.available,
        load.capacity,
        used_bar(load.available, load.capacity, _BAR),
        f"{load.utilization_pct:4.0f} %",
        duration(math.ceil(load.full_in_seconds)) if load.full_in_seconds else Cell("full", "dim"),
    )
