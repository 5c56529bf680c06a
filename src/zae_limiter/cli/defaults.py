"""``zae-limiter system`` and ``zae-limiter resource``: the default limits of the system and of resources."""

from __future__ import annotations

from dataclasses import replace

import click

from ..core.limit import Limit
from ..core.values import OnUnavailable
from .arguments import limit_option
from .commands import Group, Shell, confirmed, principal_option
from .grid import Cell, Grid
from .spelling import limits_grid, read_policies, spell_limit, spell_policies
from .switches import add_switches


@click.group(cls=Group)
def system() -> None:
    """Default limits for all entities and resources without limits of their own.

    Examples:
      zae-limiter system set-defaults -l rpm:1000/min -l tpm:100000 --on-unavailable block
      zae-limiter system get-defaults
    """


@system.command("set-defaults")
@limit_option(required=True)
@click.option(
    "--on-unavailable",
    type=click.Choice(["allow", "block"]),
    help="What an acquire does when the store is unavailable.",
)
@principal_option
def set_system_defaults(shell: Shell, limits: list[Limit], on_unavailable: str | None, principal: str | None) -> None:
    """Set the system defaults, in place of those before.

    Example:
      zae-limiter system set-defaults -l rpm:1000/min -l tpm:100000/min --on-unavailable allow
    """
    repository = shell.repository()
    repository.set_system_defaults(limits, on_unavailable, principal)
    _show(shell, *repository.get_system_defaults())


@system.command("get-defaults")
def get_system_defaults(shell: Shell) -> None:
    """Show the system defaults.

    Example:
      zae-limiter system get-defaults
    """
    _show(shell, *shell.repository().get_system_defaults())


@system.command("delete-defaults")
@confirmed
def delete_system_defaults(shell: Shell, yes: bool, principal: str | None) -> None:
    """Delete the system defaults.

    Example:
      zae-limiter system delete-defaults --yes
    """
    shell.confirm("Delete the system defaults?", yes)
    shell.repository().delete_system_defaults(principal)
    shell.show({"limits": [], "on_unavailable": None}, "Deleted the system defaults.")


def _show(shell: Shell, limits: list[Limit], policy: OnUnavailable | None) -> None:
    data = {"limits": limits, "on_unavailable": policy}
    notes = [] if policy is None else [f"when the store is unavailable, calls are {policy.value}ed."]
    shell.show(data, limits_grid(limits, "There are no system defaults."), *notes)


@click.group(cls=Group)
def resource() -> None:
    """Resources (models, endpoints) and their default limits.

    Examples:
      zae-limiter resource set-defaults gpt-4 -l rpm:500/min -l tpm:50000/min
      zae-limiter resource list
      zae-limiter resource capacity gpt-4 --limit tpm
    """


@resource.command("set-defaults")
@click.argument("name", metavar="RESOURCE")
@limit_option(required=True)
@principal_option
def set_resource_defaults(shell: Shell, name: str, limits: list[Limit], principal: str | None) -> None:
    """Set the limits of a resource.

    They hold for every entity that has none of its own.

    Example:
      zae-limiter resource set-defaults gpt-4 -l rpm:500/min -l tpm:50000/min:80000
    """
    shell.repository().set_resource_defaults(name, limits, principal)
    shell.show({"resource": name, "limits": limits}, limits_grid(limits))


@resource.command("get-defaults")
@click.argument("name", metavar="RESOURCE")
def get_resource_defaults(shell: Shell, name: str) -> None:
    """Show the limits stored for a resource, and its switch.

    Example:
      zae-limiter resource get-defaults gpt-4
    """
    repository = shell.repository()
    limits = repository.get_resource_defaults(name)
    policies = read_policies(repository, name)
    grid = limits_grid(limits, f"{name} has no limits of its own.")
    shell.show({"resource": name, "limits": limits, **policies}, grid, *spell_policies(name, policies))


@resource.command("delete-defaults")
@click.argument("name", metavar="RESOURCE")
@confirmed
def delete_resource_defaults(shell: Shell, name: str, yes: bool, principal: str | None) -> None:
    """Let the system defaults apply to a resource again.

    Example:
      zae-limiter resource delete-defaults gpt-4 --yes
    """
    shell.confirm(f"Delete the limits of resource {name!r}?", yes)
    shell.repository().delete_resource_defaults(name, principal)
    shell.show({"resource": name, "limits": []}, f"Deleted the limits of {name}.")


add_switches(
    resource,
    click.argument("resource"),
    "parents",
    (
        ("Refuse every request for a resource.\n\nBut for entities with a switch of their own.", "disable gpt-4"),
        ("Let limits decide for a resource.", "enable gpt-4"),
        ("Admit every request for a resource.\n\nWhat is used is counted.", "bypass gpt-4"),
        ("Remove the switch of a resource.", "clear-disabled gpt-4"),
        (
            "Decide whether a resource charges parents.\n\n"
            "It counts more than what the entities say, but for those with a policy of their own.",
            "set-cascade gpt-4 false",
        ),
        ("Remove what set-cascade has set.", "clear-cascade gpt-4"),
    ),
)


@resource.command("list")
def list_resources(shell: Shell) -> None:
    """List resources with limits of their own.

    Example:
      zae-limiter resource list
    """
    repository = shell.repository()
    names = repository.list_resources_with_defaults()
    limits = {name: repository.get_resource_defaults(name) for name in names}
    rows = [(name, ", ".join(map(spell_limit, limits[name]))) for name in names]
    found = [{"resource": name, "limits": limits[name]} for name in names]
    shell.show(found, Grid(("resource", "limits"), rows, "No resource has limits of its own."))


@resource.command()
@click.argument("name", metavar="RESOURCE")
@click.argument("limit_argument", metavar="[LIMIT]", required=False)
@click.option("--limit", "limit_option", metavar="NAME", help="The limit, e.g. tpm; the same as LIMIT.")
@click.option("--parents-only", is_flag=True, help="Only entities at the top of their hierarchy.")
def capacity(shell: Shell, name: str, limit_argument: str | None, limit_option: str | None, parents_only: bool) -> None:
    """Show the utilization of one limit by entity.

    Every entity with a bucket for the resource is a line, the busiest first; the last line is all of them together.

    Examples:
      zae-limiter resource capacity gpt-4 --limit tpm
      zae-limiter resource capacity gpt-4 --limit tpm --parents-only
    """
    given = [limit for limit in (limit_argument, limit_option) if limit is not None]
    if len(given) != 1:
        raise click.UsageError("Pass the limit once, e.g. --limit tpm.")
    found = shell.limiter().get_resource_capacity(name, given[0], parents_only)
    busiest_first = sorted(found.entities, key=lambda each: (-each.utilization_pct, each.entity_id))
    rows: list[tuple[object, ...]] = [
        (each.entity_id, each.available, each.capacity, f"{each.utilization_pct:.1f} %") for each in busiest_first
    ]
    if len(rows) > 1:
        total = (found.total_available, found.total_capacity, f"{found.utilization_pct:.1f} %")
        rows.append((Cell("all", "bold"), *total))
    headers = ("entity", "left", "capacity", "in use")
    data = replace(found, entities=tuple(busiest_first))
    shell.show(data, Grid(headers, rows, f"No entity has used {given[0]} of {name} yet."))
