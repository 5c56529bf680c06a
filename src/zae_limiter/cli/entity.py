"""``zae-limiter entity``: entities, their limits and their buckets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from ..core.errors import EntityNotFoundError
from ..core.limit import Limit
from ..core.names import DEFAULT_RESOURCE
from ..core.production import MILLI
from ..core.values import Entity
from .arguments import (
    amount_option,
    combine,
    limit_option,
    moment_option,
    number_option,
    pairs_option,
    parse_expiry,
)
from .commands import Group, Shell, confirmed, principal_option
from .grid import Grid, facts
from .output import note, to_jsonable
from .spelling import (
    TakenSlots,
    find_unknown,
    limits_grid,
    read_policies,
    show_slots,
    spell_limit,
    spell_policies,
    spell_rate,
)
from .switches import add_switches

if TYPE_CHECKING:
    from ..core.reports import BucketOperationResult
    from ..sync import SyncRepository


@click.group(cls=Group)
def entity() -> None:
    """Entities (API keys, projects, tenants), their limits and buckets.

    Examples:
      zae-limiter entity create acme
      zae-limiter entity create key-1 --parent acme --cascade
      zae-limiter entity set-limits key-1 -r gpt-4 -l rpm:60/min -l tpm:10000/min:15000
    """


metadata_option = pairs_option("--metadata", "-m", help="Stored with it; may be repeated.")


@entity.command()
@click.argument("entity_id")
@click.option("--display-name", "name", metavar="TEXT", help="A name for people.")
@click.option("--parent", "parent_id", metavar="ENTITY_ID", help="The entity above it, which must exist.")
@click.option("--cascade", is_flag=True, help="Charge the parent too, and so on up.")
@metadata_option
@principal_option
def create(shell: Shell, **fields: Any) -> None:
    """Create an entity.

    Examples:
      zae-limiter entity create acme --display-name "Acme Inc." -m plan=pro
      zae-limiter entity create key-1 --parent acme --cascade
    """
    made = shell.repository().create_entity(**fields)
    shell.show(made, _entity_facts(made))


@entity.command()
@click.argument("entity_id")
@click.option("--display-name", "name", metavar="TEXT", help="A new name for people; '' for none.")
@click.option("--parent", "parent_id", metavar="ENTITY_ID", help="A new parent.")
@click.option("--no-parent", is_flag=True, help="Remove the parent.")
@click.option("--cascade/--no-cascade", default=None, help="Whether to charge the parent too.")
@metadata_option
@click.option("--expected-version", type=int, metavar="N", help="Only change it if it is at version N.")
@principal_option
def update(shell: Shell, entity_id: str, no_parent: bool, **options: Any) -> None:
    """Change an entity; what is not given stays as it is.

    Examples:
      zae-limiter entity update key-1 --parent other-project
      zae-limiter entity update key-1 --no-cascade --expected-version 3
    """
    given = {name: value for name, value in options.items() if value is not None}
    if no_parent and "parent_id" in given:
        raise click.UsageError("--parent cannot be combined with --no-parent.")
    given |= {"parent_id": None} if no_parent else {}
    given |= {"name": None} if given.get("name") == "" else {}
    if not given.keys() - {"expected_version", "principal"}:
        raise click.UsageError("Nothing to change: pass --display-name, --parent, --cascade or --metadata.")
    new = shell.repository().update_entity(entity_id, **given)
    shell.show(new, _entity_facts(new))


@entity.command()
@click.argument("entity_id")
def show(shell: Shell, entity_id: str) -> None:
    """Show an entity and its place in the hierarchy.

    Example:
      zae-limiter entity show key-1
    """
    repository = shell.repository()
    found = repository.get_entity(entity_id)
    if found is None:
        raise EntityNotFoundError(entity_id)
    path, above = [found.id], found.parent_id
    while above is not None:
        path.append(above)
        parent = repository.get_entity(above)
        above = None if parent is None else parent.parent_id
    policies = read_policies(repository, None, entity_id)
    more = {"switch": policies["access"], "cascade policy": policies["cascade_policy"]}
    more["path"] = " < ".join(path) if len(path) > 2 else None
    known = {field: value for field, value in more.items() if value is not None}
    shell.show({**to_jsonable(found), **policies}, _entity_facts(found, known))


@entity.command()
@click.argument("entity_id")
@confirmed
def delete(shell: Shell, entity_id: str, yes: bool, principal: str | None) -> None:
    """Delete an entity with its limits and buckets.

    Example:
      zae-limiter entity delete key-1 --yes
    """
    shell.confirm(f"Delete entity {entity_id!r} with its limits and buckets?", yes)
    shell.repository().delete_entity(entity_id, principal)
    shell.show({"deleted": entity_id}, f"Deleted {entity_id}.")


@entity.command()
@click.argument("entity_id")
def children(shell: Shell, entity_id: str) -> None:
    """List the entities right below one.

    Example:
      zae-limiter entity children acme
    """
    found = shell.repository().get_children(entity_id)
    rows = [(child.id, child.name, child.cascade, child.version, child.created_at) for child in found]
    headers = ("entity", "name", "cascade", "version", "created")
    shell.show(found, Grid(headers, rows, f"{entity_id} has no children."))


_WHOSE = "The resource they are for."
only_option = click.option("--resource", "-r", metavar="NAME", help="Only for this resource.")
resource_option = click.option(
    "--resource", "-r", default=DEFAULT_RESOURCE, metavar="NAME", show_default="all resources", help=_WHOSE
)


@entity.command("set-limits")
@click.argument("entity_id")
@resource_option
@limit_option(required=True)
@principal_option
def set_limits(shell: Shell, entity_id: str, resource: str, limits: list[Limit], principal: str | None) -> None:
    """Give an entity limits of its own.

    They replace those it had for the same resource, and hide the defaults.

    Examples:
      zae-limiter entity set-limits key-1 -l rpm:60/min
      zae-limiter entity set-limits key-1 -r gpt-4 -l rpm:60/min -l tpm:10000/min:15000
    """
    shell.repository().set_limits(entity_id, limits, resource, principal)
    shell.show({"entity_id": entity_id, "resource": resource, "limits": limits}, limits_grid(limits))


add_switches(
    entity,
    combine(click.argument("entity_id"), only_option),
    "its parent",
    (
        (
            "Refuse every request of an entity.\n\nAlso those of entities below it that charge it.",
            "disable key-1 -r gpt-4",
        ),
        ("Let limits decide for an entity.\n\nAlso on a resource that is disabled.", "enable key-1 -r gpt-4"),
        (
            "Admit every request of an entity.\n\n"
            "What it uses is counted. Entities above it that it charges still refuse.",
            "bypass key-1 -r gpt-4",
        ),
        ("Remove the switch of an entity.\n\nLess specific switches decide then.", "clear-disabled key-1 -r gpt-4"),
        (
            "Decide whether an entity charges its parent.\n\nIt counts more than what the entity and the resource say.",
            "set-cascade key-1 false",
            "set-cascade key-1 true -r gpt-4",
        ),
        ("Remove what set-cascade has set.", "clear-cascade key-1 -r gpt-4"),
    ),
)


@entity.command("get-limits")
@click.argument("entity_id")
@resource_option
def get_limits(shell: Shell, entity_id: str, resource: str) -> None:
    """Show the limits of the entity itself, and its switch.

    `explain` shows those in force, wherever they come from.

    Example:
      zae-limiter entity get-limits key-1 -r gpt-4
    """
    repository = shell.repository()
    limits = repository.get_limits(entity_id, resource)
    policies = read_policies(repository, resource, entity_id)
    where = "all resources" if resource == DEFAULT_RESOURCE else resource
    data = {"entity_id": entity_id, "resource": resource, "limits": limits, **policies}
    grid = limits_grid(limits, f"{entity_id} has no limits of its own for {where}.")
    shell.show(data, grid, *spell_policies(f"{entity_id} on {where}", policies))


@entity.command("delete-limits")
@click.argument("entity_id")
@resource_option
@confirmed
def delete_limits(shell: Shell, entity_id: str, resource: str, yes: bool, principal: str | None) -> None:
    """Let the defaults apply to an entity again.

    Example:
      zae-limiter entity delete-limits key-1 -r gpt-4 --yes
    """
    shell.confirm(f"Delete the limits of {entity_id!r} for {resource}?", yes)
    shell.repository().delete_limits(entity_id, resource, principal)
    shell.show({"entity_id": entity_id, "resource": resource, "limits": []}, f"Deleted the limits of {entity_id}.")


_only_limits = f"Only limits for this resource ({DEFAULT_RESOURCE}: for all)."


@entity.command("list")
@click.option("--resource", "-r", metavar="NAME", help=_only_limits)
@number_option("--most", default=1000, help="Show at most N entities.")
def list_entities(shell: Shell, resource: str | None, most: int) -> None:
    """List entities with limits of their own.

    Examples:
      zae-limiter entity list
      zae-limiter entity list -r gpt-4 --json
    """
    repository = shell.repository()
    resources = repository.list_resources_with_entity_configs() if resource is None else [resource]
    first = list(islice(((who, name) for name in resources for who in _entities(repository, name)), most + 1))
    found = [(who, name, repository.get_limits(who, name)) for who, name in first[:most]]
    data = [dict(zip(("entity_id", "resource", "limits"), each, strict=True)) for each in found]
    rows = [(who, name, ", ".join(map(spell_limit, limits))) for who, name, limits in found]
    where = "" if resource is None else f" for {resource}"
    shell.show(data, Grid(("entity", "resource", "limits"), rows, f"No entity has limits of its own{where}."))
    if len(first) > most:
        note(f"there are more than {most}; raise --most.")


@entity.command("list-resources")
def list_resources(shell: Shell) -> None:
    """List resources that entities have limits for.

    Example:
      zae-limiter entity list-resources
    """
    found = shell.repository().list_resources_with_entity_configs()
    rows = [(name, "every resource" if name == DEFAULT_RESOURCE else None) for name in found]
    shell.show(found, Grid(("resource", "meaning"), rows, "No entity has limits of its own."))


@entity.command("buckets")
@click.argument("entity_id")
@click.option("--resource", "-r", metavar="NAME", help="Only the bucket for this resource.")
def show_buckets(shell: Shell, entity_id: str, resource: str | None) -> None:
    """Show the stored buckets of an entity.

    They are not refilled to now: `available` shows what is left. Of a concurrency limit the free slots are shown, for
    how many seconds slots were held in all, and who holds those that are taken.

    Example:
      zae-limiter entity buckets key-1 -r gpt-4
    """
    found = shell.repository().get_buckets(entity_id, resource)
    rows = []
    for each in found:
        rate, used = spell_rate(Limit.from_bucket_state(each)), each.total_consumed_milli // MILLI
        credit = sum(lot.tokens_milli for lot in each.credits) // MILLI or None
        rows.append((each.resource, each.limit_name, each.in_flight, each.tokens, credit, each.capacity, rate, used))
    headers = ("resource", "limit", "in flight", "stored", "credit", "capacity", "rate", "used in all")
    grid = Grid(headers, rows, f"{entity_id} has not used anything yet.")
    shell.show(found, grid.without_empty("in flight", "credit"))
    if not shell.as_json:
        taken = [TakenSlots((each.resource, each.limit_name), each.slots, each.last_refill_ms) for each in found]
        show_slots(("resource", "limit"), taken)


@entity.command("reset-bucket")
@click.argument("entity_id")
@click.argument("resource")
@confirmed
def reset_bucket(shell: Shell, entity_id: str, resource: str, yes: bool, principal: str | None) -> None:
    """Reset a bucket to full.

    This also repairs a damaged bucket. Slots are freed: whoever holds one loses it.

    Example:
      zae-limiter entity reset-bucket key-1 gpt-4 --yes
    """
    shell.confirm(f"Reset the bucket of {entity_id!r} on {resource} to full?", yes)
    shell.repository().reset_bucket(entity_id, resource, principal=principal)
    shell.show({"reset": {"entity_id": entity_id, "resource": resource}}, f"Reset {entity_id} on {resource}.")


key_option = click.option(
    "--idempotency-key", metavar="KEY", help="Do it only once for this key, for three days at least."
)
bucket_option = click.option("--resource", "-r", required=True, metavar="NAME", help="The resource of the bucket.")


_expiry = "When they expire: 2026-12-31T00:00Z, or how long from now, such as 30d."


@entity.command("top-up")
@click.argument("entity_id")
@bucket_option
@amount_option("--add", "-a", "amounts", required=True, help="How many tokens of which limit; may be repeated.")
@moment_option("--expires", "expires_at", help=_expiry, parse=parse_expiry)
@key_option
@principal_option
def top_up(shell: Shell, **given: Any) -> None:
    """Give an entity credit.

    It is spent when the allowance of a limit is used up, and is not refilled.

    Examples:
      zae-limiter entity top-up key-1 -r gpt-4 --add tpm:50000
      zae-limiter entity top-up key-1 -r gpt-4 --add tpm:50000 --expires 30d --idempotency-key order-7
    """
    repository = shell.repository()
    done = repository.top_up(**given)
    shell.show(done, _result_grid(done, "added"), *find_unknown(repository, done.entity_id))


@entity.command("reset")
@click.argument("entity_id")
@bucket_option
@click.option("--limit", "-l", "limits", multiple=True, metavar="NAME", help="Only this limit; may be repeated.")
@key_option
@principal_option
def reset(shell: Shell, limits: Sequence[str], **given: Any) -> None:
    """Fill the limits of a bucket up.

    Credits stay as they are. Slots of concurrency limits are freed: whoever holds one loses it. Without --limit this
    also repairs a damaged bucket.

    Examples:
      zae-limiter entity reset key-1 -r gpt-4
      zae-limiter entity reset key-1 -r gpt-4 --limit tpm --idempotency-key ticket-12
      zae-limiter entity reset key-1 -r gpt-4 --limit parallel
    """
    repository = shell.repository()
    done = repository.reset_bucket(limits=limits or None, **given)
    shell.show(done, _result_grid(done, "filled up"), *find_unknown(repository, done.entity_id))


def _result_grid(done: BucketOperationResult, header: str) -> Grid:
    rows = [(done.entity_id, done.resource, name, amount) for name, amount in done.amounts.items()]
    return Grid(("entity", "resource", "limit", header), rows, f"{done.entity_id} had nothing to fill up.")


def _entity_facts(found: Entity, more: Mapping[str, object] = {}) -> Grid:
    lines = {"entity": found.id, "name": found.name, "parent": found.parent_id, "cascade": found.cascade}
    metadata = ", ".join(f"{name}={value}" for name, value in found.metadata.items())
    return facts({**lines, "metadata": metadata or None, "created": found.created_at, "version": found.version, **more})


def _entities(repository: SyncRepository, resource: str) -> Iterator[str]:
    cursor: str | None = None
    while True:
        ids, cursor = repository.list_entities_with_custom_limits(resource, 100, cursor)
        yield from ids
        if cursor is None:
            return
