"""``zae-limiter create-table``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .commands import Command, pass_shell

if TYPE_CHECKING:
    from .shell import Shell


@click.command(cls=Command)
@click.option("--deletion-protection", is_flag=True, help="Let nobody delete the table by accident.")
@click.option("--tag", "tags", metavar="KEY=VALUE", multiple=True, help="A tag; may be given several times.")
@pass_shell
def create_table(shell: Shell, deletion_protection: bool, tags: tuple[str, ...]) -> None:
    """Create the DynamoDB table of a store.

    A table that is there and fits is left as it is, one that does not fit is refused. Other stores need none.

    \b
    Examples:
      zae-limiter create-table --name my-app --region us-east-1
      zae-limiter create-table --url "dynamodb://my-app?region=us-east-1" --tag team=ml
    """
    with shell.repository() as repository:
        repository.create_table(tags=pairs(tags), deletion_protection=deletion_protection)
        name = repository.capabilities.name
    shell.show({"store": name, "ready": True}, f"The {name} store is ready.")


def pairs(tags: tuple[str, ...]) -> dict[str, str] | None:
    """Tags as they are given on the command line; None for none."""
    found = {}
    for tag in tags:
        key, separator, value = tag.partition("=")
        if not key or not separator:
            raise click.BadParameter(f"{tag!r} is not KEY=VALUE", param_hint="--tag")
        found[key] = value
    return found or None
