"""``zae-limiter status`` and ``zae-limiter version``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ..core.errors import RateLimiterUnavailable
from .commands import Command, pass_shell
from .errors import CODES
from .health import answers, health_grid
from .output import facts

if TYPE_CHECKING:
    from ..core.values import Status
    from ..sync import SyncRepository
    from .shell import Shell


@click.command(cls=Command)
@pass_shell
@click.pass_context
def status(ctx: click.Context, shell: Shell) -> None:
    """Show whether the store answers, and how it is doing.

    On DynamoDB also its stack, table, stream and aggregator. The exit code is 5 if it does not answer.

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
    shell.show(found, health_grid(found))
    return found.available


def _show_status(shell: Shell, found: Status) -> bool:
    lines: dict[str, object] = {
        "store": found.backend,
        "answers": answers(found.available),
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
