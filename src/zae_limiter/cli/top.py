"""``zae-limiter top``: watch the busiest buckets, in place on a terminal, else block after block or as JSON lines."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from ..core.errors import spell_duration
from ..core.usage import ORDERS, Load, Survey
from ..records.fields import iso
from ..repository.buckets import MAX_RECORDS
from .arguments import number_option
from .commands import Command, Shell
from .grid import Cell, Grid, Narrow, printable
from .output import note, open_console, print_grid, print_json, spell_count

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

Show: TypeAlias = Callable[[Survey, Sequence[Load]], None]

_BAR = 12
_HEAD = 2
"""Lines of a table that are no buckets."""
_NARROW = Narrow(
    spared=("in use", "capacity", "full in", ""),
    shortened=("entity", "resource", "limit"),
    headers={"per second": "per s"},
)
"""Names are shortened, as one in pieces would take several lines. What is consumed, of what, always stays."""


_PAUSE, _ORDER = click.FloatRange(min=0.01, max=86_400), click.Choice(ORDERS)
_SORT = "Sort by share in use, by tokens left, or by tokens a second."


@click.command(cls=Command)
@click.option("--resource", "-r", metavar="NAME", help="Only buckets of this resource.  [default: the namespace]")
@number_option("--interval", kind=_PAUSE, default=2, metavar="S", help="Seconds between two surveys.")
@number_option("--count", help="Stop after N surveys.")
@click.option("--once", is_flag=True, help="Survey once, without rates.")
@number_option("--limit", "rows", most=10_000, default=20, metavar="ROWS")
@number_option("--sort", "by", kind=_ORDER, default=ORDERS[0], help=_SORT)
@number_option("--max-records", most=1_000_000, default=MAX_RECORDS, help="Read at most N records.")
def top(shell: Shell, resource: str | None, count: int | None, once: bool, interval: float, **given: Any) -> None:
    """Watch the busiest buckets.

    Shows one line per limit of a bucket: the net consumption per second since the previous survey, the tokens left, and
    when it will be full again. Of a concurrency limit it is how many slots were held on average, how many are free, and
    how many are in flight. Press Ctrl-C to stop. Without a terminal each survey is printed below the last; with
    --json it is one line.

    Every survey reads every bucket of the resource, or of the namespace. On DynamoDB that costs about one read unit per
    bucket: 10,000 buckets every 2 seconds are 18 million read units an hour. Use --resource, a longer --interval or
    --max-records there.

    Examples:
      zae-limiter top
      zae-limiter top --resource gpt-4 --sort rate --interval 5
      zae-limiter top --once --limit 5
      zae-limiter top --count 10 --json > surveys.jsonl
    """
    if once and count is not None:
        raise click.UsageError("--once cannot be combined with --count.")
    last = 1 if once else count
    before: Survey | None = None
    repository = shell.repository()
    with suppress(KeyboardInterrupt), _open_view(shell, resource) as show:
        for number in itertools.count(1):
            survey = repository.survey_buckets(resource, given["max_records"])
            show(survey, survey.busiest(given["rows"], given["by"], before))
            before = survey
            if number == last:
                break
            time.sleep(interval)


@contextmanager
def _open_view(shell: Shell, resource: str | None) -> Iterator[Show]:
    """Yield the function that shows surveys where stdout goes."""
    where = f"resource {resource}" if resource else f"namespace {shell.namespace}"
    screen = open_console()
    if shell.as_json:
        yield _print_line
    elif not screen.is_terminal or screen.is_dumb_terminal:
        yield lambda survey, loads: _print_block(where, survey, loads)
    else:
        from rich.live import Live

        with Live(console=screen, auto_refresh=False) as live:
            yield lambda survey, loads: live.update(_picture(screen, where, survey, loads), refresh=True)


def _print_line(survey: Survey, loads: Sequence[Load]) -> None:
    taken_at = iso(survey.taken_at_ms)
    data = {"taken_at": taken_at, "records": survey.records, "complete": survey.complete, "buckets": loads}
    print_json(data, indent=None)


def _print_block(where: str, survey: Survey, loads: Sequence[Load]) -> None:
    click.echo(printable(_title(where, survey)))
    if loads:
        print_grid(_grid(loads))
    click.echo()
    for remark in _remarks(survey):
        note(remark)


def _picture(screen: Console, where: str, survey: Survey, loads: Sequence[Load]) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    from .tables import fit_table

    title = Text(printable(_title(where, survey)), style="bold")
    remarks = [Text(remark, style="dim") for remark in _remarks(survey)]
    above_and_below = sum(len(text.wrap(screen, screen.width)) for text in (title, *remarks))
    shown = loads[: max(1, screen.height - above_and_below - _HEAD - 1)]
    return Group(title, *([fit_table(_grid(shown), screen.width)] if shown else []), *remarks)


def _title(where: str, survey: Survey) -> str:
    moment = iso(survey.taken_at_ms)[:19].replace("T", " ")
    limits, records = spell_count(len(survey.loads), "limit"), spell_count(survey.records, "record")
    return f"{moment} UTC, {where}: {limits} in {records}"


def _remarks(survey: Survey) -> list[str]:
    if not survey.complete:
        read = spell_count(survey.records, "record")
        return [f"only the first {read} were read; use --resource or a higher --max-records."]
    return [] if survey.loads else ["nothing has been consumed yet."]


def _grid(loads: Sequence[Load]) -> Grid:
    from .tables import used_bar

    headers = ("entity", "resource", "limit", "per second", "left", "capacity", "in use", "", "full in")
    rows = []
    for load in loads:
        amounts = (load.consumed_per_second, load.available, load.capacity)
        used = (used_bar(load.available, load.capacity, _BAR), f"{load.utilization_pct:4.0f} %")
        rows.append((load.entity_id, load.resource, load.limit_name, *amounts, *used, _spell_full(load)))
    return Grid(headers, rows, narrow=_NARROW)


def _spell_full(load: Load) -> str | Cell:
    if load.in_flight:
        return f"{load.in_flight:,} in flight"
    return spell_duration(math.ceil(load.full_in_seconds)) if load.full_in_seconds else Cell("full", "dim")
