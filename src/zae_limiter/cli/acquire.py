"""``zae-limiter acquire`` and ``available``: try a limit from the shell."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ..core.limit import Limit
from .arguments import amount_option, limit_option
from .commands import Command, Shell
from .grid import Cell, Grid
from .output import note

if TYPE_CHECKING:
    from ..sync import SyncLease


@click.command(cls=Command)
@click.argument("entity_id")
@click.argument("resource")
@amount_option("--consume", "-c", "cost", required=True, help="What the call costs; may be repeated.")
@limit_option()
@click.option("--max-wait", type=click.FloatRange(min=0), metavar="S", help="Wait up to S seconds for the tokens.")
@amount_option("--adjust", "adjustment", help="Correct the cost after the call, e.g. tpm:+1500 or tpm:-200.")
@click.option(
    "--on-unavailable",
    type=click.Choice(["allow", "block"]),
    help="What to do if the store is unavailable.  [default: as stored, else block]",
)
def acquire(
    shell: Shell,
    entity_id: str,
    resource: str,
    cost: dict[str, int],
    limits: list[Limit],
    max_wait: float | None,
    adjustment: dict[str, int],
    on_unavailable: str | None,
) -> None:
    """Take tokens; the exit code says whether they were granted.

    They are taken from the entity and, with cascade, from those above it, all or nothing.

    Exit codes: 0 granted, 3 not yet (the message says when), 4 never (above the capacity),
    5 the store is unavailable, 2 invalid input.

    Examples:
      zae-limiter acquire key-1 gpt-4 -c rpm:1 -c tpm:500
      zae-limiter acquire key-1 gpt-4 -c rpm:1 -c tpm:500 --adjust tpm:+1500
      zae-limiter acquire key-1 gpt-4 -c rpm:1 --max-wait 10 && ./call-the-model
      zae-limiter acquire key-1 deploys -c runs:1 -l runs:5/hour
    """
    limiter = shell.limiter()
    with limiter.acquire(entity_id, resource, cost, limits or None, on_unavailable, max_wait) as lease:
        if adjustment:
            lease.adjust(adjustment)
    left = lease.available
    if adjustment and not lease.degraded:
        left = limiter.available(entity_id, resource, limits or None)
    _show_result(shell, entity_id, resource, lease, left)


def _show_result(shell: Shell, entity_id: str, resource: str, lease: SyncLease, left: dict[str, int]) -> None:
    data = {
        "granted": True,
        "degraded": lease.degraded,
        "entity_id": entity_id,
        "resource": resource,
        "consumed": lease.consumed,
        "available": left,
        "warnings": shell.warnings,
    }
    answer = f"Granted to {entity_id} on {resource}."
    rows = [(name, amount, left.get(name)) for name, amount in lease.consumed.items()]
    table = Grid(("limit", "taken", "left"), rows, title=Cell(answer, "green"))
    shell.show(data, answer if lease.degraded else table)
    if shell.as_json:
        return
    for warning in shell.warnings:
        note(warning)
    if lease.degraded:
        note("granted without checking limits, because the store is unavailable and the policy is allow.")


@click.command(cls=Command)
@click.argument("entity_id")
@click.argument("resource")
@limit_option()
def available(shell: Shell, entity_id: str, resource: str, limits: list[Limit]) -> None:
    """Show what is left now, without taking anything.

    Of each limit the least over all levels that an acquire would charge.

    Example:
      zae-limiter available key-1 gpt-4
    """
    left = shell.limiter().available(entity_id, resource, limits or None)
    data = {"entity_id": entity_id, "resource": resource, "available": left}
    shell.show(data, Grid(("limit", "left"), list(left.items())))
