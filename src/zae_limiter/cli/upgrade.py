"""``zae-limiter upgrade``: upgrade an older table, stack or aggregator to this version."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .commands import Command, confirm, pass_shell, yes_option
from .grid import Cell, Grid
from .output import note
from .progress import show_upgrade

if TYPE_CHECKING:
    from ..aws.upgrade.runner import MoveReport
    from ..aws.upgrade.upgrade import UpgradePlan, UpgradeResult
    from ..stores.dynamodb.store import DynamoStore
    from .shell import Shell

_SHOWN = 20
"""How many records that stay are named one by one."""


@click.command(cls=Command)
@click.option("--lambda-only", is_flag=True, help="Only update the aggregator's code.")
@click.option("--force", is_flag=True, help="Check everything, even if the versions match.")
@click.option("--dry-run", is_flag=True, help="Show what would be done and change nothing.")
@yes_option
@pass_shell
def upgrade(shell: Shell, lambda_only: bool, force: bool, dry_run: bool, yes: bool) -> None:
    """Upgrade an older table to this version: shape, stack, aggregator, data.

    Stop clients of older versions first. Rerun an interrupted upgrade to continue it; until it is complete no client
    can open the table. Data from before namespaces are moved to --namespace.

    \b
    Examples:
      zae-limiter upgrade --name my-app --dry-run
      zae-limiter upgrade --name my-app --region us-east-1 --yes
      zae-limiter upgrade --name my-app --lambda-only
    """
    from ..stores.dynamodb.store import DynamoStore

    with shell.repository() as repository:
        store = repository.store
        if isinstance(store, DynamoStore):
            _upgrade(shell, store, lambda_only=lambda_only, force=force, dry_run=dry_run, yes=yes)
        else:
            shell.show(_data(None, None), f"The {store.capabilities.name} store has no older layout: nothing to do.")


def _upgrade(shell: Shell, store: DynamoStore, *, lambda_only: bool, force: bool, dry_run: bool, yes: bool) -> None:
    from ..aws.calls import Aws
    from ..aws.upgrade.upgrade import Upgrade

    options = store.client.options
    with Aws(options.region, options.endpoint_url, options.profile) as aws:
        work = Upgrade(aws, store, shell.namespace)
        with show_upgrade(quiet=shell.as_json) as watch:
            plan = work.plan(force=force, lambda_only=lambda_only, watch=watch)
        if dry_run or plan.is_empty or not shell.as_json:
            _show_plan(shell, plan)
        if dry_run or plan.is_empty:
            return
        confirm(f"Upgrade {options.table!r} in {aws.region}?", yes)
        with show_upgrade(quiet=shell.as_json) as watch:
            done = work.run(plan, lambda_only=lambda_only, watch=watch)
    shell.show(_data(plan, done), _summary(done))


def _show_plan(shell: Shell, plan: UpgradePlan) -> None:
    rows = _rows(plan)
    shell.show(_data(plan, None), Grid(("what", "to do"), rows) if rows else "Everything is up to date: nothing to do.")
    if plan.data is not None and not shell.as_json:
        _note_rejected(plan.data)


def _rows(plan: UpgradePlan) -> list[tuple[object, object]]:
    rows: list[tuple[object, object]] = [("table", step) for step in plan.table]
    if plan.stack:
        rows.append(("stack", "update its template"))
    if plan.code:
        rows.append(("aggregator", "update its code"))
    if plan.data is not None:
        rows += [(kind, f"move {count:,}") for kind, count in plan.data.moved.items()]
    if plan.version:
        rows.append(("version record", "write it"))
    return rows


def _summary(done: UpgradeResult) -> Grid:
    rows: list[tuple[object, object]] = [("table", Cell(step, "green")) for step in done.table]
    rows += [
        (what, Cell(state, "green")) for what, state in (("stack", done.stack), ("aggregator", done.code)) if state
    ]
    if done.data is not None:
        rows += [(kind, Cell(f"{count:,} moved", "green")) for kind, count in done.data.moved.items()]
        if done.data.merged:
            rows.append(("bucket", Cell(f"{done.data.merged:,} merged with one in use", "green")))
        if done.data.superseded:
            rows.append(("record", Cell(f"{done.data.superseded:,} replaced by newer ones", "green")))
        if done.data.refused:
            rows.append(("record", Cell(f"{len(done.data.refused):,} left where they are", "yellow")))
    rows.append(("version", Cell("up to date", "green")))
    return Grid(("what", "done"), rows)


def _note_rejected(report: MoveReport) -> None:
    for key, reason in list(report.refused.items())[:_SHOWN]:
        note(f"{key.pk} {key.sk} stays: {reason}")
    if len(report.refused) > _SHOWN:
        note(f"... and {len(report.refused) - _SHOWN:,} more; --json names all")


def _data(plan: UpgradePlan | None, done: UpgradeResult | None) -> dict[str, Any]:
    return {
        "up_to_date": plan is None or plan.is_empty or done is not None,
        "changed": done is not None,
        "table": list(done.table if done is not None else () if plan is None else plan.table),
        "stack": done.stack if done is not None else plan is not None and plan.stack,
        "aggregator": done.code if done is not None else plan is not None and plan.code,
        **_records(None if plan is None else plan.data if done is None else done.data),
    }


def _records(report: MoveReport | None) -> dict[str, Any]:
    if report is None:
        return {"records": {}, "merged": 0, "superseded": 0, "refused": []}
    refused = [{"pk": key.pk, "sk": key.sk, "reason": reason} for key, reason in report.refused.items()]
    return {"records": report.moved, "merged": report.merged, "superseded": report.superseded, "refused": refused}
