"""Stacks on AWS: ``zae-limiter deploy``, ``delete`` and ``list``, and ``create-table`` for a table without one."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from ..core import names
from ..core.errors import ValidationError
from ..core.reports import StackOptions
from .commands import Command, Shell, yes_option
from .grid import Cell, Grid, facts
from .output import note
from .progress import show_events
from .stack_flags import merge_options, parse_tags, stack_flags

if TYPE_CHECKING:
    from ..aws.calls import Aws
    from ..aws.events import Event


@click.command(cls=Command)
@stack_flags
@click.option("--adopt", is_flag=True, help="Import a table of that name, made with create-table, into the stack.")
@click.option("--wait/--no-wait", default=True, help="Wait until the deployment is complete.  [wait]")
def deploy(shell: Shell, wait: bool, adopt: bool, **given: Any) -> None:
    """Create or change a stack on AWS.

    It holds the table, the function that counts usage, alarms and policies. On an existing stack, options that you do
    not pass keep their values. Repeating a deployment changes nothing, and an interrupted one can be rerun.

    \b
    Examples:
      zae-limiter deploy --name my-app --region us-east-1
      zae-limiter deploy --name my-app --no-aggregator --no-alarms
      zae-limiter deploy --name my-app --permission-boundary arn:aws:iam::123456789012:policy/dev \\
          --role-name-format "pb-{}"
      zae-limiter deploy --name my-app --endpoint-url http://localhost:4566 --region us-east-1
    """
    from ..aws import deployment

    name = _require_name(shell)
    names.namespace(shell.namespace)
    with _connect(shell) as aws:
        _check_values(name, given)
        options = merge_options(deployment.read_options(aws, name), given)
        with show_events(f"Deploying {name} to {aws.region}", quiet=shell.as_json) as tell:
            done = deployment.deploy(aws, name, options, progress=_event_printer(tell), wait=wait, adopt=adopt)
            if wait:
                _register(shell, aws.region)
    endpoint = f" --endpoint-url {shlex.quote(shell.endpoint_url)}" if shell.endpoint_url else ""
    place = f"--name {done.name} --region {done.region}{endpoint}"
    if wait:
        code = {} if done.code is None else {"aggregator code": done.code}
        stack = f"{done.name} in {done.region}, {done.stack}"
        shell.show(done._asdict(), facts({"stack": stack, **code, **done.resources}))
        following = f"zae-limiter {place} acquire key-1 gpt-4 -c rpm:1 -l rpm:60/min"
    else:
        state = done.stack if done.stack == "unchanged" else f"being {done.stack} in the background"
        shell.show(done._asdict(), f"The stack {done.name} is {state}.")
        following = f"zae-limiter deploy {place}  (completes the deployment)"
    if not shell.as_json:
        note(f"next: {following}")


@click.command(cls=Command)
@yes_option
def delete(shell: Shell, yes: bool) -> None:
    """Delete a stack with everything in it.

    Table, limits, usage, audit events and their archive are lost for good. A protected table is refused.

    \b
    Example:
      zae-limiter delete --name my-app --region us-east-1
    """
    from ..aws import deployment

    name = _require_name(shell)
    with _connect(shell) as aws:
        deployment.check_unprotected(aws, deployment.require_stack(aws, name))
        lost = "Its table with all limits and balances, usage, audit events and their archive are lost for good."
        shell.confirm(f"Delete stack {name!r} in {aws.region}? {lost}", yes)
        with show_events(f"Deleting {name}", quiet=shell.as_json) as tell:
            deployment.delete(aws, name, progress=_event_printer(tell))
    shell.show({"name": name, "deleted": True}, f"Deleted {name} and everything in it.")


@click.command("list", cls=Command)
def list_limiters(shell: Shell) -> None:
    """List the stacks of zae-limiter in a region.

    \b
    Examples:
      zae-limiter list --region us-east-1
      zae-limiter list --json
    """
    from ..aws import stack

    with _connect(shell) as aws:
        found = stack.find_limiters(aws)
        empty = (
            f"No limiter is deployed in {aws.region}. Choose another region with --region, or deploy one here: "
            f"zae-limiter deploy --name my-app --region {aws.region}"
        )
    rows = [
        (each.stack_name, each.region, Cell(each.status, stack_style(each.status)), each.version, each.schema_version)
        for each in found
    ]
    shell.show(found, Grid(("name", "region", "status", "version", "schema"), rows, empty))


def stack_style(status: str) -> str:
    """Return the colour of a stack's status: green, yellow while it changes, red if it needs attention."""
    if status in ("CREATE_COMPLETE", "UPDATE_COMPLETE"):
        return "green"
    return "yellow" if status.endswith("_IN_PROGRESS") else "red"


@click.command(cls=Command)
@click.option("--deletion-protection", is_flag=True, help="Protect the table against deletion.")
@click.option("--tag", "tags", metavar="KEY=VALUE", multiple=True, help="A tag; may be repeated.")
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


def _require_name(shell: Shell) -> str:
    """Return the name of the stack. Raise `UsageError` if it was not passed."""
    if shell.stack_name is None:
        raise click.UsageError("No stack was given. Name it with --name my-app.")
    return names.stack(shell.stack_name)


def _connect(shell: Shell) -> Aws:
    from ..aws.calls import Aws

    return Aws(shell.region, shell.endpoint_url)


def _check_values(name: str, given: dict[str, Any]) -> None:
    """Raise `ValidationError` for an invalid value before any call; combinations are checked later."""
    from ..aws.template import check_options

    try:
        check_options(name, merge_options(StackOptions(), given))
    except ValidationError as error:
        if not isinstance(given.get(error.field), bool | None):
            raise


def _event_printer(tell: Callable[[str], object]) -> Callable[[Event], object]:
    def print_event(event: Event) -> None:
        reason = f": {event.reason}" if event.has_failed and event.reason else ""
        tell(f"{event.status.lower().replace('_', ' ')}: {event.resource} ({event.type}){reason}")

    return print_event


def _register(shell: Shell, region: str) -> None:
    """Register the namespace of the store options."""
    from ..sync import SyncRepository

    with SyncRepository(name=shell.stack_name, region=region, endpoint_url=shell.endpoint_url) as repository:
        repository.register_namespace(shell.namespace)
