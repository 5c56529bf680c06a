"""``zae-limiter create-table``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .commands import Command, pass_shell

if TYPE_CHECKING:
    from .shell import Shell


@click.command(cls=Command)
@click.option("--deletion-protection", is_flag=True, help="Protect the table against deletion.")
@click.option("--tag", "tags", metavar="KEY=VALUE", multiple=True, help="A tag; may be repeated.")
@pass_shell
def create_table(shell: Shell, deletion_protection: bool, tags: tuple[str, ...]) -> None:
    """Create the DynamoDB table of a store.

    An existing zae-limiter table is left as it is; any other table of that name is an error. Other stores need none.

    \b
    Examples:
      zae-limiter create-table --name my-app --region us-east-1
      zae-limiter create-table --url "dynamodb://my-app?region=us-east-1" --tag team=ml
    """
    with shell.repository() as repository:
        repository.create_table(tags=parse_tags(tags), deletion_protection=deletion_protection)
        name = repository.capabilities.name
    shell.show({"store": name, "ready": True}, f"The {name} store is ready.")


def parse_tags(tags: tuple[str, ...]) -> dict[str, str] | None:
    """Return the tags of a command line, or None. Raise `BadParameter` for anything but KEY=VALUE."""
    found = {}
    for tag in tags:
        key, separator, value = tag.partition("=")
        if not key or not separator:
            raise click.BadParameter(f"{tag!r} is not KEY=VALUE", param_hint="--tag")
        found[key] = value
    return found or None
