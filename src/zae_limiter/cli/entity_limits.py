"""``zae-limiter entity set-limits`` and related commands: limits of single entities."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ..core.names import DEFAULT_RESOURCE
from .commands import Command, confirm, pass_shell, principal_option, yes_option
from .grid import Grid
from .limits import limits_grid, required_limit_option, spell_limit
from .output import note

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..core.limit import Limit
    from ..sync import SyncRepository
    from .shell import Shell

resource_option = click.option(
    "--resource",
    "-r",
    default=DEFAULT_RESOURCE,
    metavar="NAME",
    show_default="all resources",
    help="The resource they are for.",
)


@click.command("set-limits", cls=Command)
@click.argument("entity_id")
@resource_option
@required_limit_option
@principal_option
@pass_shell
def set_limits(shell: Shell, entity_id: str, resource: str, limits: list[Limit], principal: str | None) -> None:
    """Give an entity limits of its own.

    They replace those it had for the same resource, and hide the defaults.

    \b
    Examples:
      zae-limiter entity set-limits key-1 -l rpm:60/min
      zae-limiter entity set-limits key-1 -r gpt-4 -l rpm:60/min -l tpm:10000/min:15000
    """
    with shell.repository() as repository:
        repository.set_limits(entity_id, limits, resource, principal)
    shell.show({"entity_id": entity_id, "resource": resource, "limits": limits}, limits_grid(limits))


@click.command("get-limits", cls=Command)
@click.argument("entity_id")
@resource_option
@pass_shell
def get_limits(shell: Shell, entity_id: str, resource: str) -> None:
    """Show the limits of the entity itself.

    `explain` shows those in force, wherever they come from.

    \b
    Example:
      zae-limiter entity get-limits key-1 -r gpt-4
    """
    with shell.repository() as repository:
        limits = repository.get_limits(entity_id, resource)
    where = "all resources" if resource == DEFAULT_RESOURCE else resource
    data = {"entity_id": entity_id, "resource": resource, "limits": limits}
    shell.show(data, limits_grid(limits, f"{entity_id} has no limits of its own for {where}."))


@click.command("delete-limits", cls=Command)
@click.argument("entity_id")
@resource_option
@yes_option
@principal_option
@pass_shell
def delete_limits(shell: Shell, entity_id: str, resource: str, yes: bool, principal: str | None) -> None:
    """Let the defaults apply to an entity again.

    \b
    Example:
      zae-limiter entity delete-limits key-1 -r gpt-4 --yes
    """
    confirm(f"Delete the limits of {entity_id!r} for {resource}?", yes)
    with shell.repository() as repository:
        repository.delete_limits(entity_id, resource, principal)
    shell.show({"entity_id": entity_id, "resource": resource, "limits": []}, f"Deleted the limits of {entity_id}.")


@click.command("list", cls=Command)
@click.option("--resource", "-r", metavar="NAME", help=f"Only limits for this resource ({DEFAULT_RESOURCE}: for all).")
@click.option(
    "--most", type=click.IntRange(1), default=1000, show_default=True, metavar="N", help="Show at most N entities."
)
@pass_shell
def list_entities(shell: Shell, resource: str | None, most: int) -> None:
    """List entities with limits of their own.

    \b
    Examples:
      zae-limiter entity list
      zae-limiter entity list -r gpt-4 --json
    """
    with shell.repository() as repository:
        resources = repository.list_resources_with_entity_configs() if resource is None else [resource]
        pairs = ((who, name) for name in resources for who in _entities(repository, name))
        found: list[dict[str, Any]] = []
        more = False
        for who, name in pairs:
            if more := len(found) == most:
                break
            found.append({"entity_id": who, "resource": name, "limits": repository.get_limits(who, name)})
    rows = [(row["entity_id"], row["resource"], ", ".join(map(spell_limit, row["limits"]))) for row in found]
    shell.show(found, Grid(("entity", "resource", "limits"), rows, "No entity has limits of its own."))
    if more:
        note(f"there are more than {most}; raise --most.")


@click.command("list-resources", cls=Command)
@pass_shell
def list_resources(shell: Shell) -> None:
    """List resources that entities have limits for.

    \b
    Example:
      zae-limiter entity list-resources
    """
    with shell.repository() as repository:
        found = repository.list_resources_with_entity_configs()
    rows = [(name, "every resource" if name == DEFAULT_RESOURCE else None) for name in found]
    shell.show(found, Grid(("resource", "meaning"), rows, "No entity has limits of its own."))


def _entities(repository: SyncRepository, resource: str) -> Iterator[str]:
    cursor: str | None = None
    while True:
        ids, cursor = repository.list_entities_with_custom_limits(resource, 100, cursor)
        yield from ids
        if cursor is None:
            return


COMMANDS = (set_limits, get_limits, delete_limits, list_entities, list_resources)
