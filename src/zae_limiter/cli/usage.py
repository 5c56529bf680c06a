"""``zae-limiter usage``: consumption by hour, day and month, as tables, JSON, CSV and charts."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ..core.errors import ResourceDisabled, ValidationError
from ..core.usage import InFlight, UsageSnapshot
from ..records.usage import WINDOWS
from .arguments import combine, moment_option
from .charts import load_plotext, print_charts, spell_window
from .commands import Group, Shell
from .grid import Cell, Grid
from .output import note
from .spelling import spell_reset

if TYPE_CHECKING:
    from ..sync import SyncRepository

DEFAULT_LIMIT = 100
PAGE = 1_000
SNAPSHOT_COLUMNS = (
    *("entity_id", "resource", "window_type", "window_start", "window_end"),
    *("limit_name", "consumed", "total_events", "overdrawn"),
    *("peak_in_flight", "average_in_flight", "slot_seconds"),
)
SUMMARY_COLUMNS = (
    *("limit_name", "total", "average", "snapshot_count", "min_window_start", "max_window_start"),
    *("overdrawn", "peak_in_flight", "average_in_flight", "slot_seconds"),
)


class UsageQuery(NamedTuple):
    """A query of usage, in the order of the repository's arguments."""

    entity_id: str | None
    resource: str | None
    window_type: str
    """One kind of window: overlapping windows would count the same twice."""
    start_time: datetime | None
    end_time: datetime | None

    @property
    def subject(self) -> str:
        """The entity and the resource, for display."""
        return " on ".join(part for part in (self.entity_id, self.resource) if part is not None)


_KIND = f"The kind of window.  [default: {WINDOWS[0]}]"
_usage_options = combine(
    click.option("--entity", "-e", "entity_id", metavar="ID", help="What this entity consumed."),
    click.option("--resource", "-r", metavar="NAME", help="What was consumed of this resource."),
    click.option("--window", "-w", "window_type", type=click.Choice(WINDOWS), default=WINDOWS[0], help=_KIND),
    moment_option("--start", "start_time", help="Only windows that begin then or later."),
    moment_option("--end", "end_time", help="Only windows that begin before."),
    click.option("--plot", "-p", is_flag=True, help="A chart per limit; needs the extra plot."),
    click.option("--csv", "as_csv", is_flag=True, help="Comma-separated values, for spreadsheets."),
)
"""The options of all usage commands, which `read_options` reads."""


def read_options(shell: Shell, plot: bool, as_csv: bool, **query: Any) -> tuple[UsageQuery, str]:
    """Return the query and the option of its form, "" for a table. Raise `UsageError` for options in conflict."""
    forms = [form for form, given in (("--json", shell.as_json), ("--csv", as_csv), ("--plot", plot)) if given]
    if len(forms) > 1:
        raise click.UsageError(f"{' and '.join(forms)} cannot be combined.")
    if plot:
        load_plotext()
    found = UsageQuery(**query)
    if found.entity_id is None and found.resource is None:
        raise click.UsageError("Pass --entity ID, --resource NAME or both.")
    if found.start_time is not None and found.end_time is not None and found.start_time >= found.end_time:
        raise click.UsageError("--start must be before --end.")
    return found, forms[0] if forms else ""


@click.group(cls=Group)
def usage() -> None:
    """Consumption in windows of an hour, a day or a month.

    Examples:
      zae-limiter usage list --entity key-1 --start 24h
      zae-limiter usage summary --resource gpt-4 --window daily
    """


@usage.command("list", epilog=f"\b\nColumns of --csv, a line per window and limit:\n  {','.join(SNAPSHOT_COLUMNS)}")
@_usage_options
@click.option(
    "--limit",
    "-l",
    type=click.IntRange(min=1),
    metavar="N",
    help=f"Show at most N windows, the newest.  [default: {DEFAULT_LIMIT}; with --plot all]",
)
@click.option("--all", "everything", is_flag=True, help="Show all windows.")
def list_usage(shell: Shell, limit: int | None, everything: bool, **options: Any) -> None:
    """List what was consumed, resource by resource, oldest window first.

    Of an entity, of a resource over all entities, or of an entity on a resource. WHEN is 2026-11-16T12:00:00Z,
    2026-11-16 (midnight UTC) or how long ago, such as 24h or 7d. total_events counts grants and settlements of the
    window, of all limits together. Of a concurrency limit it shows how many were in flight, at most and on average.

    Examples:
      zae-limiter usage list -e key-1 --start 24h
      zae-limiter usage list -e key-1 -r gpt-4 --window daily --start 30d --plot
      zae-limiter usage list -r gpt-4 --start 2026-11-01 --end 2026-12-01 --all --csv > usage.csv
    """
    query, form = read_options(shell, **options)
    if limit is not None and everything:
        raise click.UsageError("--limit cannot be combined with --all.")
    most = None if everything or (limit is None and form == "--plot") else limit or DEFAULT_LIMIT
    repository = shell.repository()
    found, more = _read_snapshots(repository, query, most)
    nothing = _explain_nothing(repository, query)
    if form == "--csv":
        _print_csv(SNAPSHOT_COLUMNS, list(_snapshot_lines(found)), nothing)
    elif form == "--plot" and found:
        print_charts(load_plotext(), found, query.subject)
    else:
        shell.show(found, _snapshot_grid(found, nothing))
    if more and not shell.as_json:
        note(f"{len(found):,} windows are shown, there may be more: use --all, a higher --limit or an earlier --end.")


@usage.command(epilog=f"\b\nColumns of --csv, a line per limit:\n  {','.join(SUMMARY_COLUMNS)}")
@_usage_options
def summary(shell: Shell, **options: Any) -> None:
    """Add up what was consumed.

    Per limit the total and the average of the windows in which anything was consumed; every entity has windows of its
    own. Of a concurrency limit how many were in flight, at most and on average. --plot draws them above it, those of
    all entities added up. WHEN is 2026-11-16T12:00:00Z, 2026-11-16 (midnight UTC) or how long ago, such as 24h or 7d.

    Examples:
      zae-limiter usage summary -e key-1 --start 7d
      zae-limiter usage summary -r gpt-4 --window monthly --json
      zae-limiter usage summary -e key-1 -r gpt-4 --window daily --start 30d --plot
    """
    query, form = read_options(shell, **options)
    repository = shell.repository()
    added = repository.get_usage_summary(*query)
    charted = _read_snapshots(repository, query, None)[0] if form == "--plot" else []
    nothing = _explain_nothing(repository, query)
    limits = sorted({*added.total, *added.in_flight})
    if form == "--csv":
        windows = (added.snapshot_count, added.min_window_start, added.max_window_start)
        lines = []
        for name in limits:
            totals = (added.total.get(name), added.average.get(name), *windows, added.overdrawn.get(name, 0))
            lines.append((name, *totals, *_spread(added.in_flight.get(name))))
        _print_csv(SUMMARY_COLUMNS, lines, nothing)
    else:
        if charted:
            print_charts(load_plotext(), charted, query.subject)
            click.echo()
        starts = (added.min_window_start or "", added.max_window_start or "")
        first, last = (spell_window(start, query.window_type) for start in starts)
        counted = f"{added.snapshot_count:,} {query.window_type} snapshots, from {first} to {last} (UTC)"
        rows = []
        for name in limits:
            tokens = (added.total.get(name), added.average.get(name), added.overdrawn.get(name))
            rows.append((name, *tokens, _spell_in_flight(added.in_flight.get(name))))
        columns = ("limit", "total", "average", "overdrawn", "in flight")
        grid = Grid(columns, rows, nothing, Cell(f"{query.subject}: {counted}", ""))
        shell.show(added, grid.without_empty("overdrawn", "in flight"))
        if not shell.as_json:
            _print_quotas(shell, query)


def _print_quotas(shell: Shell, query: UsageQuery) -> None:
    """Print what is left of the quotas of an entity on a resource, and when they are back."""
    if query.entity_id is None or query.resource is None:
        return
    try:
        found = shell.limiter().get_status(query.entity_id, query.resource)
    except (ValidationError, ResourceDisabled):  # no limits are stored for it, or it is switched off
        return
    for status in found:
        back = spell_reset(status)
        if back is not None and status.entity_id == query.entity_id:
            click.echo(f"{status.limit_name}: {status.available:,} of {status.limit.capacity:,} left, back {back}")


def _read_snapshots(
    repository: SyncRepository, query: UsageQuery, most: int | None
) -> tuple[list[UsageSnapshot], bool]:
    """Return the newest ``most`` snapshots, or all, oldest window first per resource, and if there may be more."""
    found: list[UsageSnapshot] = []
    next_key: str | None = None
    while True:
        size = PAGE if most is None else min(PAGE, most - len(found))
        page, next_key = repository.get_usage_snapshots(*query, limit=size, next_key=next_key)
        found += page
        if next_key is None or len(found) == most:
            found.sort(key=lambda each: (each.resource, each.window_start, each.entity_id))
            return found, next_key is not None


def _explain_nothing(repository: SyncRepository, query: UsageQuery) -> str:
    """Return what to check if nothing was found."""
    missing = f"No {query.window_type} usage of {query.subject} has been recorded for that time."
    if repository.capabilities.change_stream:
        return (
            f"{missing} Usage is counted by the stack's aggregator, usually within seconds: "
            "`zae-limiter status` shows whether it is deployed, and --window must be one that it keeps."
        )
    return (
        f"{missing} `zae-limiter entity buckets` shows whether anything was consumed; "
        "usage is kept for 90 days unless usage_retention_days in the store's URL says otherwise."
    )


def _snapshot_grid(found: Sequence[UsageSnapshot], nothing: str) -> Grid:
    limits = sorted({name for snapshot in found for name in snapshot.counters})
    soft = sorted({name for snapshot in found for name in snapshot.overdrawn})
    held = sorted({name for snapshot in found for name in snapshot.in_flight})
    rows = [
        (
            spell_window(each.window_start, each.window_type),
            each.entity_id,
            each.resource,
            *(each.counters.get(name) for name in limits),
            *(each.overdrawn.get(name) for name in soft),
            *(_spell_in_flight(each.in_flight.get(name)) for name in held),
            each.total_events,
        )
        for each in found
    ]
    beyond, in_flight = (f"{name} overdrawn" for name in soft), (f"{name} in flight" for name in held)
    return Grid(("from (UTC)", "entity", "resource", *limits, *beyond, *in_flight, "events"), rows, nothing)


def _spell_in_flight(slots: InFlight | None) -> str | None:
    if slots is None:
        return None
    average = f"{slots.average:,.0f}" if slots.average >= 100 else f"{slots.average:.3g}"
    return f"peak {slots.peak:,}, average {average}"


def _spread(slots: InFlight | None) -> tuple[int | float | None, ...]:
    """Return the columns of what was in flight, empty for a limit of tokens."""
    return (None, None, None) if slots is None else (slots.peak, slots.average, slots.slot_seconds)


def _snapshot_lines(found: Iterable[UsageSnapshot]) -> Iterable[Sequence[object]]:
    for each in found:
        window = (each.window_type, each.window_start, each.window_end)
        for name in sorted({*each.counters, *each.in_flight}):
            counted = (each.counters.get(name), each.total_events, each.overdrawn.get(name, 0))
            yield each.entity_id, each.resource, *window, name, *counted, *_spread(each.in_flight.get(name))


def _print_csv(columns: Sequence[str], lines: Sequence[Sequence[object]], nothing: str) -> None:
    """Print the lines below their columns, and note ``nothing`` if there are none."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([columns, *lines])
    click.echo(text.getvalue(), nl=False)
    if not lines:
        note(nothing)
