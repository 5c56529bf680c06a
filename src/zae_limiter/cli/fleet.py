"""``zae-limiter list``: the limiters of an account."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .commands import Command, pass_shell
from .deploy import connect_aws
from .grid import Cell, Grid

if TYPE_CHECKING:
    from ..core.reports import LimiterInfo
    from .shell import Shell


@click.command("list", cls=Command)
@pass_shell
def list_limiters(shell: Shell) -> None:
    """List the stacks of zae-limiter in a region.

    \b
    Examples:
      zae-limiter list --region us-east-1
      zae-limiter list --json
    """
    from ..aws import discovery

    with connect_aws(shell) as aws:
        found = discovery.find(aws)
        empty = (
            f"No limiter is deployed in {aws.region}. Choose another region with --region, or deploy one here: "
            f"zae-limiter deploy --name my-app --region {aws.region}"
        )
    rows = [(each.stack_name, each.region, _status(each), each.version, each.schema_version) for each in found]
    shell.show(found, Grid(("name", "region", "status", "version", "schema"), rows, empty))


def _status(found: LimiterInfo) -> Cell:
    return Cell(found.status, stack_style(found.status))


def stack_style(status: str) -> str:
    """Return the colour of a stack's status: green, yellow while it changes, red if it needs attention."""
    if status in ("CREATE_COMPLETE", "UPDATE_COMPLETE"):
        return "green"
    return "yellow" if status.endswith("_IN_PROGRESS") else "red"
