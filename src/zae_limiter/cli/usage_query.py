"""The options of all usage commands: which usage, and in which form."""

from __future__ import annotations

import enum
import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ..records.usage import WINDOWS
from .charts import load_plotext
from .commands import pass_shell
from .moments import moment_option

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from ..core.reports import UsageSnapshot
    from ..sync import SyncRepository
    from .shell import Shell

PAGE = 1_000


class Output(enum.Enum):
    """The form of a result."""

    TABLE = "a table"
    JSON = "--json"
    CSV = "--csv"
    PLOT = "--plot"


class UsageQuery(NamedTuple):
    """A query of usage, in the order of the repository's arguments."""

    entity_id: str | None
    resource: str | None
    window_type: str | None
    start_time: datetime | None
    end_time: datetime | None

    @property
    def subject(self) -> str:
        """The entity and the resource, for display."""
        return " on ".join(part for part in (self.entity_id, self.resource) if part is not None)

    def with_window(self) -> UsageQuery:
        """Return the query with one kind of window: overlapping windows would count the same twice."""
        return self._replace(window_type=self.window_type or WINDOWS[0])


_OPTIONS = (
    click.option("--entity", "-e", "entity_id", metavar="ID", help="What this entity consumed."),
    click.option("--resource", "-r", metavar="NAME", help="What was consumed of this resource."),
    click.option(
        "--window", "window_type", type=click.Choice(WINDOWS), help=f"The kind of window.  [default: {WINDOWS[0]}]"
    ),
    moment_option("--start", help="Only windows that begin then or later."),
    moment_option("--end", help="Only windows that begin before."),
    click.option("--plot", is_flag=True, help="A chart per limit; needs the extra plot."),
    click.option("--csv", "as_csv", is_flag=True, help="Comma-separated values, for spreadsheets."),
)


def usage_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the usage options. The command receives ``query`` and ``form``."""

    def run_command(
        shell: Shell,
        *,
        entity_id: str | None,
        resource: str | None,
        window_type: str | None,
        start: datetime | None,
        end: datetime | None,
        plot: bool,
        as_csv: bool,
        **others: Any,
    ) -> None:
        form = _choose_form({Output.JSON: shell.as_json, Output.CSV: as_csv, Output.PLOT: plot})
        query = _check(UsageQuery(entity_id, resource, window_type, start, end))
        command(shell, query=query, form=form, **others)

    named: Callable[..., None] = functools.wraps(command)(run_command)
    made = pass_shell(named)
    for option in reversed(_OPTIONS):
        made = option(made)
    return made


def read_snapshots(repository: SyncRepository, query: UsageQuery, most: int | None) -> tuple[list[UsageSnapshot], bool]:
    """Return the first ``most`` snapshots, or all, oldest window first per resource, and if there may be more."""
    found: list[UsageSnapshot] = []
    next_key: str | None = None
    while True:
        size = PAGE if most is None else min(PAGE, most - len(found))
        page, next_key = repository.get_usage_snapshots(*query, limit=size, next_key=next_key)
        found += page
        if next_key is None or len(found) == most:
            found.sort(key=lambda each: (each.resource, each.window_start, each.entity_id))
            return found, next_key is not None


def _choose_form(requested: dict[Output, bool]) -> Output:
    forms = [form for form, given in requested.items() if given]
    if len(forms) > 1:
        raise click.UsageError(f"{' and '.join(form.value for form in forms)} cannot be combined.")
    if forms == [Output.PLOT]:
        load_plotext()
    return forms[0] if forms else Output.TABLE


def _check(query: UsageQuery) -> UsageQuery:
    if query.entity_id is None and query.resource is None:
        raise click.UsageError("Pass --entity ID, --resource NAME or both.")
    if query.start_time is not None and query.end_time is not None and query.start_time >= query.end_time:
        raise click.UsageError("--start must be before --end.")
    return query
