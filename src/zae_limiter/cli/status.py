"""``zae-limiter status``: the health of a store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ..core.errors import RateLimiterUnavailable
from .commands import Command, pass_shell
from .errors import CODES
from .fleet import stack_style
from .grid import Cell, Grid, facts

if TYPE_CHECKING:
    from ..aws.health import Health
    from ..core.reports import Status
    from ..sync import SyncRepository
    from .shell import Shell


@click.command(cls=Command)
@pass_shell
@click.pass_context
def status(ctx: click.Context, shell: Shell) -> None:
    """Show whether the store is available, its latency and versions.

    On DynamoDB also its stack, table, stream and aggregator. The exit code is 5 if the store is unavailable.

    \b
    Examples:
      zae-limiter status --url sqlite:///limits.db
      zae-limiter status --name my-app --region us-east-1
      zae-limiter status --json
    """
    with shell.repository() as repository:
        if repository.capabilities.name == "dynamodb":
            available = _show_health(shell, repository)
        else:
            available = _show_status(shell, repository.status())
    if not available:
        ctx.exit(CODES[RateLimiterUnavailable])


def _show_health(shell: Shell, repository: SyncRepository) -> bool:
    from ..aws import health

    found = health.check_health(repository.store)
    shell.show(found, _health_grid(found))
    return found.available


def _show_status(shell: Shell, found: Status) -> bool:
    lines: dict[str, object] = {
        "store": found.backend,
        "answers": _answers(found.available),
        "latency": None if found.latency_ms is None else f"{found.latency_ms:g} ms",
        "namespace": found.namespace,
        "schema": found.schema_version,
        "client": found.client_version,
        "clock skew": f"{found.clock_skew_ms} ms",
    }
    if found.reason is not None:
        lines["reason"] = found.reason
    shell.show(found, facts(lines))
    return found.available


def _health_grid(found: Health) -> Grid:
    """Return the health as a table, one line per part; a part that could not be read shows the reason."""
    lines: dict[str, object] = {
        "name": f"{found.name} in {found.region}",
        "answers": _answers(found.available),
        "latency": None if found.latency_ms is None else f"{found.latency_ms:g} ms",
        "schema": found.versions.schema,
        "client": found.versions.client,
        **({} if found.table is None and found.stack is None else _parts(found)),
    }
    for part, trouble in found.troubles.items():
        lines[part] = Cell(trouble, "yellow")
    return facts(lines)


def _parts(found: Health) -> dict[str, object]:
    return {**_stack(found), **_table(found), **_aggregator(found), "namespaces": found.namespaces}


def _answers(available: bool) -> Cell:
    """Return a cell that says whether the store is available."""
    return Cell("yes", "green") if available else Cell("no", "bold red")


def _stack(found: Health) -> dict[str, object]:
    if found.stack is None:
        return {"stack": "none: the table was created without one"}
    reason = f": {found.stack.reason}" if found.stack.reason else ""
    return {"stack": Cell(f"{found.stack.status}{reason}", stack_style(found.stack.status))}


def _table(found: Health) -> dict[str, object]:
    table = found.table
    if table is None:
        return {"table": Cell("missing", "bold red")}
    protection = ", protected against deletion" if table.deletion_protection else ""
    return {
        "table": Cell(f"{table.status}{protection}", "green" if table.status == "ACTIVE" else "yellow"),
        "items": f"about {table.items:,}, {table.size_bytes:,} bytes",
        "stream": table.stream,
        "ttl": found.ttl,
        "pitr": found.pitr,
    }


def _aggregator(found: Health) -> dict[str, object]:
    function = found.aggregator
    if function is None:
        return {"aggregator": "none"}
    code = "code of this version" if function.code_current else "code of another version: deploy or upgrade"
    version = f", {found.versions.aggregator}" if found.versions.aggregator else ""
    fine = function.state == "Active" and function.code_current
    letters = found.dead_letters
    return {
        "aggregator": Cell(f"{function.state}, {code}{version}", "green" if fine else "yellow"),
        "stream mapping": found.stream_mapping,
        "dead letters": Cell(f"{letters:,}", "red") if letters else letters,
    }
