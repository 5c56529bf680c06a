"""``zae-limiter usage``: consumption by hour, day and month."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .commands import Group
from .output import note
from .usage_forms import SNAPSHOT_COLUMNS, SUMMARY_COLUMNS, print_snapshots, print_summary
from .usage_query import Output, UsageQuery, read_snapshots, usage_options

if TYPE_CHECKING:
    from .shell import Shell

DEFAULT_LIMIT = 100


@click.group(cls=Group)
def usage() -> None:
    """Consumption in windows of an hour, a day or a month.

    \b
    Examples:
      zae-limiter usage list --entity key-1 --start 24h
      zae-limiter usage summary --resource gpt-4 --window daily
    """


@usage.command("list", epilog=f"\b\nColumns of --csv, a line per window and limit:\n  {','.join(SNAPSHOT_COLUMNS)}")
@usage_options
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    metavar="N",
    help=f"Show at most N windows.  [default: {DEFAULT_LIMIT}; with --plot all]",
)
@click.option("--all", "everything", is_flag=True, help="Show all windows.")
def list_usage(shell: Shell, query: UsageQuery, form: Output, limit: int | None, everything: bool) -> None:
    """List what was consumed, resource by resource, oldest window first.

    Of an entity, of a resource over all entities, or of an entity on a resource. WHEN is 2026-11-16T12:00:00Z,
    2026-11-16 (midnight UTC) or how long ago, such as 24h or 7d. total_events counts grants and settlements of the
    window, of all limits together.

    \b
    Examples:
      zae-limiter usage list -e key-1 --start 24h
      zae-limiter usage list -e key-1 -r gpt-4 --window daily --start 30d --plot
      zae-limiter usage list -r gpt-4 --start 2026-11-01 --end 2026-12-01 --all --csv > usage.csv
    """
    if limit is not None and everything:
        raise click.UsageError("--limit cannot be combined with --all.")
    most = None if everything or (limit is None and form is Output.PLOT) else limit or DEFAULT_LIMIT
    with shell.repository() as repository:
        found, more = read_snapshots(repository, query.with_window(), most)
        counted_by_stream = repository.capabilities.change_stream
    print_snapshots(found, query.with_window(), form, counted_by_stream=counted_by_stream)
    if more and form is not Output.JSON:
        note(f"{len(found):,} windows are shown, there may be more: use --all, a higher --limit or a later --start.")


@usage.command(epilog=f"\b\nColumns of --csv, a line per limit:\n  {','.join(SUMMARY_COLUMNS)}")
@usage_options
def summary(shell: Shell, query: UsageQuery, form: Output) -> None:
    """Add up what was consumed.

    Per limit the total and the average of the windows in which anything was consumed; every entity has windows of its
    own. --plot draws them above it, those of all entities added up. WHEN is 2026-11-16T12:00:00Z, 2026-11-16
    (midnight UTC) or how long ago, such as 24h or 7d.

    \b
    Examples:
      zae-limiter usage summary -e key-1 --start 7d
      zae-limiter usage summary -r gpt-4 --window monthly --json
      zae-limiter usage summary -e key-1 -r gpt-4 --window daily --start 30d --plot
    """
    with shell.repository() as repository:
        added = repository.get_usage_summary(*query.with_window())
        charted = read_snapshots(repository, query.with_window(), None)[0] if form is Output.PLOT else []
        counted_by_stream = repository.capabilities.change_stream
    print_summary(added, charted, query, form, counted_by_stream=counted_by_stream)
