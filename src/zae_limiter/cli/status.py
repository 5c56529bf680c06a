"""``zae-limiter status``: the health of a store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ..core.errors import RateLimiterUnavailable
from ..core.reports import Status
from .commands import Command, Shell
from .deploy import stack_style
from .errors import CODES
from .grid import Cell, facts

if TYPE_CHECKING:
    from ..aws.health import Health


@click.command(cls=Command)
def status(shell: Shell) -> None:
    """Show whether the store is available, its latency and versions.

    On DynamoDB also its stack, table, stream and aggregator. The exit code is 5 if the store is unavailable.

    Examples:
      zae-limiter status --url sqlite:///limits.db
      zae-limiter status --name my-app --region us-east-1
      zae-limiter status --json
    """
    found: Status | Health
    repository = shell.repository()
    if repository.capabilities.name == "dynamodb":
        from ..aws import health

        found = health.check_health(repository.store)
        lines = _describe_health(found)
    else:
        found = repository.status()
        lines = _describe_status(found)
    shell.show(found, facts(lines))
    if not found.available:
        raise click.exceptions.Exit(CODES[RateLimiterUnavailable])


def _describe_answers(found: Status | Health) -> dict[str, object]:
    return {
        "answers": Cell("yes", "green") if found.available else Cell("no", "bold red"),
        "latency": None if found.latency_ms is None else f"{found.latency_ms:g} ms",
    }


def _describe_status(found: Status) -> dict[str, object]:
    return {
        "store": found.backend,
        **_describe_answers(found),
        "namespace": found.namespace,
        "schema": found.schema_version,
        "client": found.client_version,
        "clock skew": f"{found.clock_skew_ms} ms",
        **({} if found.reason is None else {"reason": found.reason}),
    }


def _describe_health(found: Health) -> dict[str, object]:
    """Return one line per part; a part that could not be read shows the reason."""
    lines: dict[str, object] = {
        "name": f"{found.name} in {found.region}",
        **_describe_answers(found),
        "schema": found.versions.schema,
        "client": found.versions.client,
    }
    if found.table is not None or found.stack is not None:
        lines |= {**_describe_stack(found), **_describe_aggregator(found), "namespaces": found.namespaces}
    return lines | {part: Cell(trouble, "yellow") for part, trouble in found.troubles.items()}


def _describe_stack(found: Health) -> dict[str, object]:
    stack, table = found.stack, found.table
    lines: dict[str, object] = {"stack": "none: the table was created without one"}
    if stack is not None:
        reason = f": {stack.reason}" if stack.reason else ""
        lines["stack"] = Cell(f"{stack.status}{reason}", stack_style(stack.status))
    if table is None:
        return lines | {"table": Cell("missing", "bold red")}
    protection = ", protected against deletion" if table.deletion_protection else ""
    return lines | {
        "table": Cell(f"{table.status}{protection}", "green" if table.status == "ACTIVE" else "yellow"),
        "items": f"about {table.items:,}, {table.size_bytes:,} bytes",
        "stream": table.stream,
        "ttl": found.ttl,
        "pitr": found.pitr,
    }


def _describe_aggregator(found: Health) -> dict[str, object]:
    function, letters = found.aggregator, found.dead_letters
    if function is None:
        return {"aggregator": "none"}
    code = "code of this version" if function.code_current else "code of another version: deploy or upgrade"
    version = f", {found.versions.aggregator}" if found.versions.aggregator else ""
    fine = function.state == "Active" and function.code_current
    return {
        "aggregator": Cell(f"{function.state}, {code}{version}", "green" if fine else "yellow"),
        "stream mapping": found.stream_mapping,
        "dead letters": Cell(f"{letters:,}", "red") if letters else letters,
    }
