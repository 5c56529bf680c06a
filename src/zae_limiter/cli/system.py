"""``zae-limiter system``: default limits of the system."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .commands import Group, confirm, pass_shell, principal_option, yes_option
from .limits import limits_grid, required_limit_option
from .output import note

if TYPE_CHECKING:
    from ..core.limit import Limit
    from ..core.values import OnUnavailable
    from .shell import Shell

_DONE = {"allow": "allowed", "block": "blocked"}


@click.group(cls=Group)
def system() -> None:
    """Default limits for all entities and resources without limits of their own.

    \b
    Examples:
      zae-limiter system set-defaults -l rpm:1000/min -l tpm:100000 --on-unavailable block
      zae-limiter system get-defaults
    """


@system.command("set-defaults")
@required_limit_option
@click.option(
    "--on-unavailable",
    type=click.Choice(["allow", "block"]),
    help="What an acquire does when the store is unavailable.",
)
@principal_option
@pass_shell
def set_defaults(shell: Shell, limits: list[Limit], on_unavailable: str | None, principal: str | None) -> None:
    """Set the system defaults, in place of those before.

    \b
    Example:
      zae-limiter system set-defaults -l rpm:1000/min -l tpm:100000/min --on-unavailable allow
    """
    with shell.repository() as repository:
        repository.set_system_defaults(limits, on_unavailable, principal)
        stored = repository.get_system_defaults()
    _show(shell, *stored)


@system.command("get-defaults")
@pass_shell
def get_defaults(shell: Shell) -> None:
    """Show the system defaults.

    \b
    Example:
      zae-limiter system get-defaults
    """
    with shell.repository() as repository:
        stored = repository.get_system_defaults()
    _show(shell, *stored)


@system.command("delete-defaults")
@yes_option
@principal_option
@pass_shell
def delete_defaults(shell: Shell, yes: bool, principal: str | None) -> None:
    """Delete the system defaults.

    \b
    Example:
      zae-limiter system delete-defaults --yes
    """
    confirm("Delete the system defaults?", yes)
    with shell.repository() as repository:
        repository.delete_system_defaults(principal)
    shell.show({"limits": [], "on_unavailable": None}, "Deleted the system defaults.")


def _show(shell: Shell, limits: list[Limit], policy: OnUnavailable | None) -> None:
    data = {"limits": limits, "on_unavailable": policy}
    shell.show(data, limits_grid(limits, "There are no system defaults."))
    if policy is not None and not shell.as_json:
        note(f"when the store is unavailable, calls are {_DONE[policy.value]}.")
