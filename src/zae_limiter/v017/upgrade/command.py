"""``zae-limiter upgrade``, and what ``zae-limiter check`` says about data that older clients have left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ...aws.calls import Aws
from ...aws.events import Event
from ...cli.commands import Command, Shell, yes_option
from ...cli.errors import REFUSED
from ...cli.grid import Cell, Grid, printable
from ...cli.output import note, open_console, spell_count, write_line
from ...core.errors import InfrastructureError
from ...records.version import Deployed
from ...runtime.blocking import run
from ...stores.dynamodb.store import DynamoStore
from ..old_stack import find_old_stack
from .runner import MoveReport
from .stragglers import Stragglers, find_stragglers
from .upgrade import Upgrade, UpgradePlan, UpgradeProgress, UpgradeResult

if TYPE_CHECKING:
    from ...stores.port import Store

_REMEDY = (
    "nothing was changed: change or delete them with the version that wrote them, or pass --leave-refused. "
    "What an upgrade has left can also be replaced with this version: set limits again, reset buckets."
)
_OLD_STACK = (
    "the table belongs to stack {name!r} of {version}. When it is upgraded: `zae-limiter upgrade --name {name} "
    "--release-stack` deletes that stack without the table, then `zae-limiter deploy --name {name} --adopt`. Never "
    "delete it otherwise: its template deletes the table."
)
_EXAMPLES = 3
"""How many records are named of those that mean something else afterwards."""
_SHOWN = 20
"""How many records that stay are named one by one."""
_LINE_EVERY = 10_000
"""Number of records between two lines of a log."""


class Remains(NamedTuple):
    """What versions before 1.0 have left in a store, or still do to it."""

    stragglers: Stragglers | None
    """None if it has had no older layout, or cannot be read."""
    functions: list[str]
    """Functions of an older stack that write into its buckets."""

    @property
    def data(self) -> dict[str, Any]:
        """The same for JSON."""
        stragglers = {} if self.stragglers is None else self.stragglers.to_dict()
        return {"stragglers": stragglers, "old_functions": self.functions}

    def describe(self, deployed: Deployed) -> str | None:
        """Return what to do about it and about records that an upgrade has left; None if there is nothing."""
        remarks = []
        if deployed.records_left:
            remarks.append(
                f"An upgrade has left {spell_count(deployed.records_left, 'record')} that it could not move. "
                "`zae-limiter upgrade` names what is left; run it again when that is changed, deleted or set again."
            )
        if self.stragglers is not None and self.stragglers.records:
            remarks.append(_describe_stragglers(self.stragglers))
        if self.functions:
            remarks.append(
                f"The function {', '.join(self.functions)} of zae-limiter 0.x still writes into the buckets of this "
                "table. `zae-limiter upgrade` stops it."
            )
        return " ".join(remarks) or None


def find_remains(store: Store, deployed: Deployed | None) -> Remains:
    """Look for what older versions have left, as far as that can be read. ``deployed`` is None for unusable data."""
    if not isinstance(store, DynamoStore):
        return Remains(None, [])
    stragglers = None if deployed is None else run(find_stragglers(store, deployed))
    options = store.client.options
    try:
        with Aws.of(options, hasty=True) as aws:
            old = find_old_stack(aws, options.table)
    except InfrastructureError:
        old = None
    return Remains(stragglers, [] if old is None else list(old.running.values()))


def _describe_stragglers(found: Stragglers) -> str:
    """Return what to do about records that older clients have written."""
    return (
        f"Clients of zae-limiter 0.x have written {spell_count(found.records, 'record')} since the upgrade, of "
        f"{', '.join(found.examples)}. Stop them and run `zae-limiter upgrade`, which takes over what they set and "
        "subtracts what they took."
    )


@contextmanager
def show_upgrade(*, quiet: bool) -> Iterator[UpgradeProgress]:
    """Yield callbacks that show the steps, the stack events and the record count of an upgrade."""
    if quiet:
        yield UpgradeProgress()
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    screen = open_console(err=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    bar = Progress(*columns, console=screen, transient=True)
    task = bar.add_task("", total=None)
    next_line = _LINE_EVERY

    def say(text: str) -> None:
        bar.update(task, description=printable(text), completed=0, total=None)
        if not screen.is_terminal:
            write_line(f"{printable(text)} ...")

    def say_event(event: Event) -> None:
        say(f"{event.resource}: {event.status.lower().replace('_', ' ')}")

    def count(done: int, total: int) -> None:
        nonlocal next_line
        bar.update(task, completed=done, total=total)
        if done >= next_line and not screen.is_terminal:
            write_line(f"{done:,} of about {total:,} records")
            next_line = done + _LINE_EVERY

    with bar if screen.is_terminal else nullcontext():
        yield UpgradeProgress(say, say_event, count)


@click.command(cls=Command)
@click.option("--lambda-only", is_flag=True, help="Only update the aggregator's code.")
@click.option("--force", is_flag=True, help="Check everything, even if the versions match.")
@click.option("--dry-run", is_flag=True, help="Show what would be done and change nothing.")
@click.option("--release-stack", is_flag=True, help="Then delete the stack of an older version, without its table.")
@click.option("--leave-refused", is_flag=True, help="Leave records where they are that cannot be upgraded.")
@yes_option
def upgrade(
    shell: Shell, lambda_only: bool, force: bool, dry_run: bool, release_stack: bool, leave_refused: bool, yes: bool
) -> int:
    """Upgrade an older table to this version: shape, stack, aggregator, data.

    Stop clients of older versions first. Rerun an interrupted upgrade to continue it; until it is complete no client
    can open the table. Data from before namespaces are moved to --namespace. The function of an older version's stack
    is stopped first; --release-stack deletes that stack last and keeps the table, for `deploy --adopt`.

    If a record cannot be upgraded with its meaning, nothing is changed and the exit code is 25; with --leave-refused
    the others are upgraded, and the exit code is the same, also of later upgrades while such records are left.

    Examples:
      zae-limiter upgrade --name my-app --dry-run
      zae-limiter upgrade --name my-app --region us-east-1 --yes
      zae-limiter upgrade --name my-app --lambda-only
    """
    store = shell.repository().store
    if not isinstance(store, DynamoStore):
        shell.show(
            {**_data(UpgradePlan(), None), "stragglers": {}},
            f"The {store.capabilities.name} store has no older layout: nothing to do.",
        )
        return 0
    options = store.client.options
    with Aws.of(options) as aws:
        work = Upgrade(aws, store, shell.namespace)
        with show_upgrade(quiet=shell.as_json) as watch:
            plan = work.plan(force=force, lambda_only=lambda_only, watch=watch, release_stack=release_stack)
        refused = len(plan.report.refused)
        stops = dry_run or plan.is_empty or bool(refused and not leave_refused)
        if stops or not shell.as_json:
            _show_plan(shell, plan, force)
        if stops:
            if refused and not shell.as_json:
                note(f"{spell_count(refused, 'record')} cannot be upgraded, {_REMEDY}")
            elif not (plan.is_empty or shell.as_json):
                note("nothing was changed: this is what an upgrade would do")
            return REFUSED if refused else 0
        shell.confirm(f"Upgrade {options.table!r} in {aws.region}?", yes)
        with show_upgrade(quiet=shell.as_json) as watch:
            done = work.run(plan, lambda_only=lambda_only, watch=watch)
    left = len(done.report.refused)
    shell.show(_data(plan, done), _summary(plan, done))
    if left and not shell.as_json:
        note(f"left where they were: {spell_count(left, 'record')}; `zae-limiter check` tells until they are gone")
    return REFUSED if left else 0


def _show_plan(shell: Shell, plan: UpgradePlan, force: bool) -> None:
    rows = [("old function", f"stop {name}: it no longer reads the table's stream") for name in plan.functions]
    rows += [("table", step) for step in plan.table]
    rows += [("stack", "update its template")] if plan.stack else []
    rows += [("aggregator", "update its code")] if plan.code else []
    rows += _list_moved(plan.report, "move {:,}", "merge {:,}", "delete, as newer ones exist: {:,}")
    rows += [("version record", "write it")] if plan.version else []
    rows += [("old stack", "delete it, but for the table and the archive")] if plan.release else []
    old, refused = plan.old_stack, plan.report.refused
    notes = [_describe_stragglers(plan.stragglers)] if plan.stragglers.records else []
    notes += [] if old is None else [_OLD_STACK.format(name=old.stack.name, version=old.version)]
    for change in plan.report.changes:
        more = ", ..." if change.records > _EXAMPLES else ""
        notes.append(f"changes: {change.what} ({change.records:,}: {', '.join(change.keys[:_EXAMPLES])}{more})")
    notes += [f"{key.pk} {key.sk} stays: {reason}" for key, reason in list(refused.items())[:_SHOWN]]
    if len(refused) > _SHOWN:
        notes.append(f"... and {len(refused) - _SHOWN:,} more; --json names all")
    idle = "Nothing can be done: what is left cannot be upgraded."
    if not refused:
        idle = "Everything is up to date: nothing to do." + (
            "" if force else " With --force every record is looked at."
        )
    shell.show(_data(plan, None), Grid(("what", "to do"), rows) if rows else idle, *notes)


def _list_moved(report: MoveReport, moved: str, merged: str, superseded: str) -> list[tuple[str, str]]:
    rows = [(kind, moved.format(count)) for kind, count in report.moved.items()]
    others = (("bucket", merged, report.merged), ("record", superseded, report.superseded))
    return rows + [(what, text.format(count)) for what, text, count in others if count]


def _summary(plan: UpgradePlan, done: UpgradeResult) -> Grid:
    rows = [("old function", f"{name} stopped") for name in plan.functions]
    rows += [("table", step) for step in done.table]
    rows += [(what, state) for what, state in (("stack", done.stack), ("aggregator", done.code)) if state]
    rows += _list_moved(done.report, "{:,} moved", "{:,} merged with one in use", "{:,} replaced by newer ones")
    rows += [("old stack", "deleted; next: `zae-limiter deploy --adopt`")] if plan.release else []
    cells = [(what, Cell(text, "green")) for what, text in rows]
    refused = len(done.report.refused)
    if refused:
        cells.append(("record", Cell(f"{refused:,} left where they are", "yellow")))
    version = Cell("not all of it is up to date", "yellow") if refused else Cell("up to date", "green")
    return Grid(("what", "done"), [*cells, ("version", version)])


def _data(plan: UpgradePlan, done: UpgradeResult | None) -> dict[str, Any]:
    """Return what an upgrade has done, or else would do."""
    state = plan if done is None else done
    report = state.report
    return {
        "up_to_date": not report.refused and (plan.is_empty or done is not None),
        "changed": done is not None,
        "table": list(state.table),
        "stack": state.stack,
        "aggregator": state.code,
        "records": report.moved,
        "merged": report.merged,
        "superseded": report.superseded,
        "refused": [{"pk": key.pk, "sk": key.sk, "reason": reason} for key, reason in report.refused.items()],
        "changes": [change._asdict() for change in plan.report.changes],
        "stragglers": plan.stragglers.to_dict(),
        "older_stack": None if plan.old_stack is None else plan.old_stack.version,
        "old_functions": list(plan.functions),
        "release_stack": plan.release,
    }
