"""``zae-limiter entity buckets`` and ``reset-bucket``: the stored balances."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ..core.limit import Limit
from .commands import Command, confirm, pass_shell, principal_option, yes_option
from .grid import Grid
from .limits import spell_rate

if TYPE_CHECKING:
    from ..core.reports import BucketState
    from .shell import Shell

_MILLI = 1000


@click.command("buckets", cls=Command)
@click.argument("entity_id")
@click.option("--resource", "-r", metavar="NAME", help="Only the bucket for this resource.")
@pass_shell
def show_buckets(shell: Shell, entity_id: str, resource: str | None) -> None:
    """Show the stored buckets of an entity.

    They are not refilled to now: `available` shows what is left.

    \b
    Example:
      zae-limiter entity buckets key-1 -r gpt-4
    """
    with shell.repository() as repository:
        found = repository.get_buckets(entity_id, resource)
    headers = ("resource", "limit", "stored", "capacity", "rate", "used in all")
    shell.show(found, Grid(headers, [_row(state) for state in found], f"{entity_id} has not used anything yet."))


@click.command("reset-bucket", cls=Command)
@click.argument("entity_id")
@click.argument("resource")
@yes_option
@principal_option
@pass_shell
def reset_bucket(shell: Shell, entity_id: str, resource: str, yes: bool, principal: str | None) -> None:
    """Reset a bucket to full.

    This also repairs a damaged bucket.

    \b
    Example:
      zae-limiter entity reset-bucket key-1 gpt-4 --yes
    """
    confirm(f"Reset the bucket of {entity_id!r} on {resource} to full?", yes)
    with shell.repository() as repository:
        repository.reset_bucket(entity_id, resource, principal)
    shell.show({"reset": {"entity_id": entity_id, "resource": resource}}, f"Reset {entity_id} on {resource}.")


def _row(state: BucketState) -> tuple[object, ...]:
    capacity = state.capacity_milli // _MILLI
    limit = Limit(state.limit_name, capacity, state.refill_amount_milli // _MILLI, state.refill_period_ms // _MILLI)
    left, used = state.tokens_milli // _MILLI, state.total_consumed_milli // _MILLI
    return state.resource, state.limit_name, left, capacity, spell_rate(limit), used


COMMANDS = (show_buckets, reset_bucket)
