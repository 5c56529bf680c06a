"""Print usage as tables, JSON, CSV and charts."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

import click

from .charts import load_plotext, print_charts
from .grid import Cell, Grid
from .moments import spell_window
from .output import note, print_grid, print_json
from .usage_query import Output

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..core.reports import UsageSnapshot, UsageSummary
    from .usage_query import UsageQuery

SNAPSHOT_COLUMNS = (
    *("entity_id", "resource", "window_type", "window_start", "window_end"),
    *("limit_name", "consumed", "total_events"),
)
SUMMARY_COLUMNS = ("limit_name", "total", "average", "snapshot_count", "min_window_start", "max_window_start")


def print_snapshots(
    found: Sequence[UsageSnapshot], query: UsageQuery, form: Output, *, counted_by_stream: bool
) -> None:
    """Print snapshots in the requested form."""
    nothing = _empty_message(query, counted_by_stream=counted_by_stream)
    if form is Output.JSON:
        print_json(found)
    elif form is Output.TABLE:
        print_grid(_snapshot_grid(found, nothing))
    elif not found:
        _print_empty(nothing, SNAPSHOT_COLUMNS if form is Output.CSV else ())
    elif form is Output.CSV:
        _print_csv(SNAPSHOT_COLUMNS, _snapshot_lines(found))
    else:
        print_charts(load_plotext(), found, query.subject)


def print_summary(
    added: UsageSummary, charted: Sequence[UsageSnapshot], query: UsageQuery, form: Output, *, counted_by_stream: bool
) -> None:
    """Print a summary in the requested form, below charts of ``charted``."""
    nothing = _empty_message(query, counted_by_stream=counted_by_stream)
    if form is Output.JSON:
        print_json(added)
    elif form is Output.CSV and added.total:
        _print_csv(SUMMARY_COLUMNS, _summary_lines(added))
    elif form is Output.CSV:
        _print_empty(nothing, SUMMARY_COLUMNS)
    else:
        if charted:
            print_charts(load_plotext(), charted, query.subject)
            click.echo()
        print_grid(_summary_grid(added, query, nothing))


def _snapshot_grid(found: Sequence[UsageSnapshot], nothing: str) -> Grid:
    limits = sorted({name for snapshot in found for name in snapshot.counters})
    rows = [
        (
            spell_window(each.window_start, each.window_type),
            each.entity_id,
            each.resource,
            *(each.counters.get(name) for name in limits),
            each.total_events,
        )
        for each in found
    ]
    return Grid(("from (UTC)", "entity", "resource", *limits, "events"), rows, nothing)


def _summary_grid(added: UsageSummary, query: UsageQuery, nothing: str) -> Grid:
    kind = query.with_window().window_type or ""
    first, last = (spell_window(start or "", kind) for start in (added.min_window_start, added.max_window_start))
    title = f"{query.subject}: {added.snapshot_count:,} {kind} snapshots, from {first} to {last} (UTC)"
    rows = [(name, total, added.average[name]) for name, total in sorted(added.total.items())]
    return Grid(("limit", "total", "average"), rows, nothing, Cell(title, ""))


def _snapshot_lines(found: Iterable[UsageSnapshot]) -> Iterable[Sequence[object]]:
    for each in found:
        window = (each.window_type, each.window_start, each.window_end)
        for name, amount in sorted(each.counters.items()):
            yield each.entity_id, each.resource, *window, name, amount, each.total_events


def _summary_lines(added: UsageSummary) -> Iterable[Sequence[object]]:
    for name, total in sorted(added.total.items()):
        windows = (added.snapshot_count, added.min_window_start, added.max_window_start)
        yield name, total, added.average[name], *windows


def _print_csv(columns: Sequence[str], lines: Iterable[Sequence[object]]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(lines)
    click.echo(text.getvalue(), nl=False)


def _print_empty(nothing: str, columns: Sequence[str]) -> None:
    if columns:
        _print_csv(columns, ())
    note(nothing)


def _empty_message(query: UsageQuery, *, counted_by_stream: bool) -> str:
    """Return what to check if nothing was found."""
    missing = f"No {query.with_window().window_type} usage of {query.subject} has been recorded for that time."
    if counted_by_stream:
        return (
            f"{missing} Usage is counted by the stack's aggregator, usually within seconds: "
            "`zae-limiter status` shows whether it is deployed, and --window must be one that it keeps."
        )
    return (
        f"{missing} `zae-limiter entity buckets` shows whether anything was consumed; "
        "usage is kept for 90 days unless usage_retention_days in the store's URL says otherwise."
    )
