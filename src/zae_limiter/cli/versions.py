"""``zae-limiter version`` and ``zae-limiter check``: versions and their compatibility."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any

import click

from .._version import __version__
from .commands import Command, pass_shell
from .errors import exit_code, message
from .grid import Cell, Grid, facts

if TYPE_CHECKING:
    from ..repository.compatibility import Compatibility
    from .shell import Shell


@click.command(cls=Command)
@pass_shell
def version(shell: Shell) -> None:
    """Show the versions of this client and of the store.

    Of the store only where --name or --url names one.

    \b
    Examples:
      zae-limiter version --json
      zae-limiter version --name my-app --region us-east-1
    """
    data: dict[str, Any] = {
        "zae_limiter": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
    }
    text: Grid | str = f"zae-limiter {__version__} (Python {data['python']}, {data['platform']})"
    if shell.url is not None or shell.stack_name is not None:
        deployed = _check_store(shell).deployed
        data |= {
            "schema_version": deployed.schema,
            "client_min_version": deployed.client_min,
            "lambda_version": deployed.aggregator,
        }
        text = facts(
            {
                "zae-limiter": __version__,
                "python": f"{data['python']}, {data['platform']}",
                "schema": deployed.schema,
                "oldest client": deployed.client_min,
                "aggregator": deployed.aggregator,
            }
        )
    shell.show(data, text)


@click.command(cls=Command)
@pass_shell
@click.pass_context
def check(ctx: click.Context, shell: Shell) -> None:
    """Check whether client, data and aggregator are compatible.

    Nothing is changed. The exit code is 12 if the data need `upgrade`, 13 if this client is too old for them.

    \b
    Examples:
      zae-limiter check --name my-app --region us-east-1
      zae-limiter check --url sqlite:///limits.db --json
    """
    found = _check_store(shell)
    problem = None if found.problem is None else message(found.problem)
    warning = _warning(found)
    data = {
        "compatible": found.problem is None,
        "problem": problem,
        "warning": warning,
        "client_version": __version__,
        "schema_version": found.deployed.schema,
        "client_min_version": found.deployed.client_min,
        "lambda_version": found.deployed.aggregator,
    }
    lines: dict[str, object] = {
        "compatible": Cell("yes", "green") if found.problem is None else Cell("no", "bold red"),
        "client": __version__,
        "schema": found.deployed.schema,
        "oldest client": found.deployed.client_min,
        "aggregator": found.deployed.aggregator,
    }
    lines |= {name: text for name, text in (("problem", problem), ("warning", warning)) if text is not None}
    shell.show(data, facts(lines))
    if found.problem is not None:
        ctx.exit(exit_code(found.problem))


def _check_store(shell: Shell) -> Compatibility:
    from ..repository.compatibility import check_compatibility
    from ..runtime.blocking import run

    with shell.repository() as repository:
        return run(check_compatibility(repository.store.read, shell.namespace))


def _warning(found: Compatibility) -> str | None:
    from ..repository.compatibility import aggregator_warning

    return aggregator_warning(found.deployed)
