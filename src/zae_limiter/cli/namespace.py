"""``zae-limiter namespace``: manage namespaces, which isolate tenants in one store."""

from __future__ import annotations

from collections.abc import Sequence

import click

from ..core.values import Namespace
from .commands import Group, Shell, confirmed, principal_option
from .grid import Cell, Grid, facts
from .output import show_count, spell_count

_STYLES = {"active": "green", "deleted": "yellow", "purging": "red"}


@click.group(cls=Group)
def namespace() -> None:
    """Namespaces: each has its own entities, limits and buckets.

    A deleted namespace frees its name; its data stay until they are purged and can be recovered until then.

    Examples:
      zae-limiter namespace register staging
      zae-limiter -N staging entity create key-1
      zae-limiter namespace delete staging
      zae-limiter namespace orphans
    """


@namespace.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@principal_option
def register(shell: Shell, names: tuple[str, ...], principal: str | None) -> None:
    """Register namespaces; one that exists stays as it is.

    Example:
      zae-limiter namespace register staging production
    """
    found = shell.repository().register_namespaces(names, principal)
    shell.show(found, _grid(found))


@namespace.command("list")
def list_namespaces(shell: Shell) -> None:
    """List the namespaces in use.

    Example:
      zae-limiter namespace list
    """
    found = shell.repository().list_namespaces()
    shell.show(found, _grid(found, "No namespace is registered yet."))


@namespace.command()
@click.argument("name")
def show(shell: Shell, name: str) -> None:
    """Show one namespace.

    Example:
      zae-limiter namespace show staging
    """
    found = shell.repository().get_namespace(name)
    shell.show(found, _facts(found))


@namespace.command()
@click.argument("name")
@confirmed
def delete(shell: Shell, name: str, yes: bool, principal: str | None) -> None:
    """Delete a namespace but keep its data.

    It can be recovered until it is purged.

    Example:
      zae-limiter namespace delete staging --yes
    """
    shell.confirm(f"Delete namespace {name!r}? It cannot be used until it is recovered.", yes)
    found = shell.repository().delete_namespace(name, principal)
    shell.show(found, f"Deleted {name}. Its data are kept under the id {found.id}, to be recovered or purged.")


@namespace.command()
@click.argument("namespace_id")
@principal_option
def recover(shell: Shell, namespace_id: str, principal: str | None) -> None:
    """Bring a deleted namespace back.

    `orphans` shows the ids.

    An id that starts with a hyphen goes after two hyphens: recover -- -2fK...

    Example:
      zae-limiter namespace recover 4fJ2kQx0aZc
    """
    found = shell.repository().recover_namespace(namespace_id, principal)
    shell.show(found, _facts(found))


@namespace.command()
@click.argument("namespace_id")
@confirmed
def purge(shell: Shell, namespace_id: str, yes: bool, principal: str | None) -> None:
    """Delete the data of a deleted namespace for good.

    An id that starts with a hyphen goes after two hyphens: purge --yes -- -2fK...

    Example:
      zae-limiter namespace purge 4fJ2kQx0aZc
    """
    shell.confirm(f"Delete all data of {namespace_id} for good? This cannot be undone.", yes)
    repository = shell.repository()
    with show_count("purging", "records", quiet=shell.as_json) as progress:
        count = repository.purge_namespace(namespace_id, principal, progress)
    done = f"Purged {namespace_id}, {spell_count(count, 'record')}."
    shell.show({"namespace_id": namespace_id, "purged": count}, done)


@namespace.command()
def orphans(shell: Shell) -> None:
    """List deleted namespaces whose data are still there.

    Example:
      zae-limiter namespace orphans
    """
    found = shell.repository().list_orphan_namespaces()
    shell.show(found, _grid(found, "No deleted namespace has data left."))


_HEADERS = ("namespace", "id", "status", "created", "deleted")


def _row(each: Namespace) -> tuple[object, ...]:
    return each.name, each.id, Cell(each.status, _STYLES.get(each.status, "")), each.created_at, each.deleted_at


def _grid(found: Sequence[Namespace], empty: str = "") -> Grid:
    return Grid(_HEADERS, list(map(_row, found)), empty)


def _facts(found: Namespace) -> Grid:
    return facts(dict(zip(_HEADERS, _row(found), strict=True)))
