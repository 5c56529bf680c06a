"""``zae-limiter status`` and ``zae-limiter version``."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

import click

from .._version import __version__
from ..core.errors import RateLimiterUnavailable
from .commands import Command, pass_shell
from .errors import CODES
from .output import Cell, facts

if TYPE_CHECKING:
    from .shell import Shell


@click.command(cls=Command)
@pass_shell
@click.pass_context
def status(ctx: click.Context, shell: Shell) -> None:
    """Show whether the store answers.

    The exit code is 5 if it does not.

    \b
    Examples:
      zae-limiter status --url sqlite:///limits.db
      zae-limiter status --json
    """
    with shell.repository() as repository:
        found = repository.status()
    latency = None if found.latency_ms is None else f"{found.latency_ms:g} ms"
    grid = facts(
        {
            "store": found.backend,
            "answers": Cell("yes", "green") if found.available else Cell("no", "bold red"),
            "latency": latency,
            "namespace": found.namespace,
            "schema": found.schema_version,
            "client": found.client_version,
            "clock skew": f"{found.clock_skew_ms} ms",
        }
    )
    shell.show(found, grid)
    if not found.available:
        ctx.exit(CODES[RateLimiterUnavailable])


@click.command(cls=Command)
@pass_shell
def version(shell: Shell) -> None:
    """Show the versions of zae-limiter and of Python.

    \b
    Example:
      zae-limiter version --json
    """
    data = {"zae_limiter": __version__, "python": platform.python_version(), "platform": platform.platform()}
    shell.show(data, f"zae-limiter {__version__} (Python {data['python']}, {data['platform']})")
