"""Show surveys: in place on a terminal, block after block without one, or as JSON lines."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import click

from ..core.errors import spell_duration
from ..records.instants import iso
from .grid import Cell, Grid, printable
from .output import note, open_console, print_grid, print_json_line, spell_count

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console, RenderableType
    from rich.table import Table

    from ..core.reports import Load, Survey
    from .shell import Shell

    Show: TypeAlias = Callable[[Survey, Sequence[Load]], None]

_BAR = 12
_HEAD = 2
"""Lines of a table that are no buckets."""
_NAMES = ("entity", "resource", "limit")
"""Columns that are shortened where there is no room: a name in pieces would take several lines."""
_SPARED = ("in use", "capacity", "full in", "")
"""Columns that a narrow terminal goes without, the first to go first. What is consumed, of what, stays."""
_LEAST_NAMES = (14, 14, 10, 7, 1)
"""How far names are shortened before so many columns of `_SPARED` and one more are left out."""


@contextmanager
def open_view(shell: Shell, resource: str | None) -> Iterator[Show]:
    """Yield the function that shows surveys where stdout goes."""
    where = f"resource {resource}" if resource else f"namespace {shell.namespace}"
    screen = open_console()
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
    above_and_below = sum(len(text.wrap(screen, screen.width)) for text in (title, *remarks))
    shown = loads[: max(1, screen.height - above_and_below - _HEAD - 1)]
    return Group(title, *([_fit(_grid(shown), screen.width)] if shown else []), *remarks)


def _fit(grid: Grid, width: int) -> Table:
    """Return a table with as many columns as fit, one line per bucket, so that it can be redrawn in place."""
    from .tables import GAPS, draw_table, natural_widths, share_width

    tries = [(gap, 0) for gap in GAPS[:2]] + [(gap, gone) for gone in range(1, len(_SPARED) + 1) for gap in GAPS[1:]]
    for gap, gone in tries:
        tried = grid if gap == GAPS[0] else _without(grid, _SPARED[:gone])
        elastic = [header in _NAMES for header in tried.headers]
        room = share_width(natural_widths(tried), elastic, width - gap * (len(elastic) - 1), _LEAST_NAMES[gone])
        if room is not None:
            return draw_table(_shorten_names(tried, room), gap, room)
    return draw_table(tried, gap)


def _without(grid: Grid, spared: Sequence[str]) -> Grid:
    """Return the grid without some columns, and with short headers."""
    for header in spared:
        grid = grid.without(header)
    short = {"per second": "per s", **({"": "used"} if spared else {})}
    return replace(grid, headers=[short.get(header, header) for header in grid.headers])


def _shorten_names(grid: Grid, room: Sequence[int]) -> Grid:
    from .tables import shorten

    def cut(header: str, cell: object, width: int) -> object:
        return shorten(printable(str(cell)), width) if header in _NAMES else cell

    rows = [tuple(map(cut, grid.headers, row, room)) for row in grid.rows]
    return replace(grid, headers=list(map(shorten, grid.headers, room)), rows=rows)


def _print_block(where: str, survey: Survey, loads: Sequence[Load]) -> None:
    click.echo(printable(_title(where, survey)))
    if loads:
        print_grid(_grid(loads))
    click.echo()
    for remark in _remarks(survey):
        note(remark)


def _print_line(survey: Survey, loads: Sequence[Load]) -> None:
    print_json_line(
        {"taken_at": iso(survey.taken_at_ms), "records": survey.records, "complete": survey.complete, "buckets": loads}
    )


def _title(where: str, survey: Survey) -> str:
    moment = iso(survey.taken_at_ms)[:19].replace("T", " ")
    return (
        f"{moment} UTC, {where}: {spell_count(len(survey.loads), 'limit')} in {spell_count(survey.records, 'record')}"
    )


def _remarks(survey: Survey) -> list[str]:
    if not survey.complete:
        read = spell_count(survey.records, "record")
        return [f"only the first {read} were read; use --resource or a higher --max-records."]
    return [] if survey.loads else ["nothing has been consumed yet."]


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
        spell_duration(math.ceil(load.full_in_seconds)) if load.full_in_seconds else Cell("full", "dim"),
    )
