"""Which usage is asked for and how it is to be shown: the options that all commands over usage have."""

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

    from ..core.values import UsageSnapshot
    from ..sync import SyncRepository
    from .shell import Shell

PAGE = 1_000


class Form(enum.Enum):
    """How a result is shown."""

    TABLE = "a table"
    JSON = "--json"
    CSV = "--csv"
    PLOT = "--plot"


class Wanted(NamedTuple):
    """Which usage, in the order in which the repository is asked."""

    entity_id: str | None
    resource: str | None
    window_type: str | None
    start_time: datetime | None
    end_time: datetime | None

    @property
    def subject(self) -> str:
        """Whose usage, of what."""
        return " on ".join(part for part in (self.entity_id, self.resource) if part is not None)

    def with_window(self) -> Wanted:
        """With one kind of window: those that overlap would count the same twice."""
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
    """Options that say which usage and in what form; the command is given ``wanted`` and ``form``."""

    def asked(
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
        form = _form({Form.JSON: shell.as_json, Form.CSV: as_csv, Form.PLOT: plot})
        wanted = _checked(Wanted(entity_id, resource, window_type, start, end))
        command(shell, wanted=wanted, form=form, **others)

    named: Callable[..., None] = functools.wraps(command)(asked)
    made = pass_shell(named)
    for option in reversed(_OPTIONS):
        made = option(made)
    return made


def read_snapshots(repository: SyncRepository, wanted: Wanted, most: int | None) -> tuple[list[UsageSnapshot], bool]:
    """The first ``most`` snapshots or all, by resource, oldest window first, and whether there may be more."""
    found: list[UsageSnapshot] = []
    next_key: str | None = None
    while True:
        size = PAGE if most is None else min(PAGE, most - len(found))
        page, next_key = repository.get_usage_snapshots(*wanted, limit=size, next_key=next_key)
        found += page
        if next_key is None or len(found) == most:
            found.sort(key=lambda each: (each.resource, each.window_start, each.entity_id))
            return found, next_key is not None


def _form(asked: dict[Form, bool]) -> Form:
    forms = [form for form, given in asked.items() if given]
    if len(forms) > 1:
        raise click.UsageError(f"Give one of {', '.join(form.value for form in forms)}: the output has one form.")
    if forms == [Form.PLOT]:
        load_plotext()
    return forms[0] if forms else Form.TABLE


def _checked(wanted: Wanted) -> Wanted:
    if wanted.entity_id is None and wanted.resource is None:
        raise click.UsageError("Give --entity ID, --resource NAME or both.")
    if wanted.start_time is not None and wanted.end_time is not None and wanted.start_time >= wanted.end_time:
        raise click.UsageError("--start must be before --end.")
    return wanted
