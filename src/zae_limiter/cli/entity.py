"""``zae-limiter entity``: manage entities."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ..core.errors import EntityNotFoundError
from ..repository.entities import UNSET
from . import buckets, entity_limits
from .commands import Group, confirm, pass_shell, principal_option, yes_option
from .grid import Grid, facts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..core.values import Entity
    from ..sync import SyncRepository
    from .shell import Shell


@click.group(cls=Group)
def entity() -> None:
    """Entities (API keys, projects, tenants), their limits and buckets.

    \b
    Examples:
      zae-limiter entity create acme
      zae-limiter entity create key-1 --parent acme --cascade
      zae-limiter entity set-limits key-1 -r gpt-4 -l rpm:60/min -l tpm:10000/min:15000
    """


def _metadata(ctx: click.Context, param: click.Parameter, texts: Sequence[str]) -> dict[str, str] | None:
    pairs = [text.partition("=") for text in texts]
    for text, (name, equals, _) in zip(texts, pairs, strict=True):
        if not name or not equals:
            raise click.BadParameter(f"{text!r} is not KEY=VALUE, e.g. plan=pro.", ctx, param)
    return {name: value for name, _, value in pairs} or None


metadata_option = click.option(
    "--metadata", "-m", multiple=True, metavar="KEY=VALUE", callback=_metadata, help="Stored with it; may be repeated."
)


@entity.command()
@click.argument("entity_id")
@click.option("--display-name", metavar="TEXT", help="A name for people.")
@click.option("--parent", "parent_id", metavar="ENTITY_ID", help="The entity above it, which must exist.")
@click.option("--cascade", is_flag=True, help="Charge the parent too, and so on up.")
@metadata_option
@principal_option
@pass_shell
def create(
    shell: Shell,
    entity_id: str,
    display_name: str | None,
    parent_id: str | None,
    cascade: bool,
    metadata: dict[str, str] | None,
    principal: str | None,
) -> None:
    """Create an entity.

    \b
    Examples:
      zae-limiter entity create acme --display-name "Acme Inc." -m plan=pro
      zae-limiter entity create key-1 --parent acme --cascade
    """
    with shell.repository() as repository:
        made = repository.create_entity(entity_id, display_name, parent_id, cascade, metadata, principal)
    shell.show(made, _entity_facts(made))


@entity.command()
@click.argument("entity_id")
@click.option("--display-name", metavar="TEXT", help="A new name for people; '' for none.")
@click.option("--parent", "parent_id", metavar="ENTITY_ID", help="A new parent.")
@click.option("--no-parent", is_flag=True, help="Remove the parent.")
@click.option("--cascade/--no-cascade", default=None, help="Whether to charge the parent too.")
@metadata_option
@click.option("--expected-version", type=int, metavar="N", help="Only change it if it is at version N.")
@principal_option
@pass_shell
def update(
    shell: Shell,
    entity_id: str,
    display_name: str | None,
    parent_id: str | None,
    no_parent: bool,
    cascade: bool | None,
    metadata: dict[str, str] | None,
    expected_version: int | None,
    principal: str | None,
) -> None:
    """Change an entity; what is not given stays as it is.

    \b
    Examples:
      zae-limiter entity update key-1 --parent other-project
      zae-limiter entity update key-1 --no-cascade --expected-version 3
    """
    changes: dict[str, Any] = {
        "name": UNSET if display_name is None else display_name or None,
        "parent_id": None if no_parent else UNSET if parent_id is None else parent_id,
        "cascade": UNSET if cascade is None else cascade,
        "metadata": UNSET if metadata is None else metadata,
    }
    if no_parent and parent_id is not None:
        raise click.UsageError("--parent cannot be combined with --no-parent.")
    if all(value is UNSET for value in changes.values()):
        raise click.UsageError("Nothing to change: pass --display-name, --parent, --cascade or --metadata.")
    with shell.repository() as repository:
        new = repository.update_entity(entity_id, **changes, expected_version=expected_version, principal=principal)
    shell.show(new, _entity_facts(new))


@entity.command()
@click.argument("entity_id")
@pass_shell
def show(shell: Shell, entity_id: str) -> None:
    """Show an entity and its place in the hierarchy.

    \b
    Example:
      zae-limiter entity show key-1
    """
    with shell.repository() as repository:
        found = repository.get_entity(entity_id)
        if found is None:
            raise EntityNotFoundError(entity_id)
        above = _ancestors(repository, found)
    grid = _entity_facts(found)
    if len(above) > 1:
        grid = Grid((), [*grid.rows, ("path", " < ".join((found.id, *above)))])
    shell.show(found, grid)


@entity.command()
@click.argument("entity_id")
@yes_option
@principal_option
@pass_shell
def delete(shell: Shell, entity_id: str, yes: bool, principal: str | None) -> None:
    """Delete an entity with its limits and buckets.

    \b
    Example:
      zae-limiter entity delete key-1 --yes
    """
    confirm(f"Delete entity {entity_id!r} with its limits and buckets?", yes)
    with shell.repository() as repository:
        repository.delete_entity(entity_id, principal)
    shell.show({"deleted": entity_id}, f"Deleted {entity_id}.")


@entity.command()
@click.argument("entity_id")
@pass_shell
def children(shell: Shell, entity_id: str) -> None:
    """List the entities right below one.

    \b
    Example:
      zae-limiter entity children acme
    """
    with shell.repository() as repository:
        found = repository.get_children(entity_id)
    rows = [(child.id, child.name, child.cascade, child.version, child.created_at) for child in found]
    headers = ("entity", "name", "cascade", "version", "created")
    shell.show(found, Grid(headers, rows, f"{entity_id} has no children."))


def _entity_facts(found: Entity) -> Grid:
    return facts(
        {
            "entity": found.id,
            "name": found.name,
            "parent": found.parent_id,
            "cascade": found.cascade,
            "metadata": ", ".join(f"{name}={value}" for name, value in found.metadata.items()) or None,
            "created": found.created_at,
            "version": found.version,
        }
    )


def _ancestors(repository: SyncRepository, found: Entity) -> list[str]:
    above: list[str] = []
    step: Entity | None = found
    while step is not None and step.parent_id is not None:
        above.append(step.parent_id)
        step = repository.get_entity(step.parent_id)
    return above


for command in (*entity_limits.COMMANDS, *buckets.COMMANDS):
    entity.add_command(command)
