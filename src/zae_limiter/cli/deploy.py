"""``zae-limiter deploy`` and ``zae-limiter delete``: a stack on AWS."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import click

from ..core import names
from ..core.errors import ValidationError
from .commands import Command, confirm, pass_shell, yes_option
from .grid import Grid, facts
from .output import note
from .progress import show_events
from .stack_flags import merge_options, stack_flags

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..aws.calls import Aws
    from ..aws.deployment import Deployment
    from ..aws.events import Event
    from ..core.reports import StackOptions
    from .shell import Shell


@click.command(cls=Command)
@stack_flags
@click.option("--adopt", is_flag=True, help="Import a table of that name, made with create-table, into the stack.")
@click.option("--wait/--no-wait", default=True, help="Wait until the deployment is complete.  [wait]")
@pass_shell
def deploy(shell: Shell, /, wait: bool, adopt: bool, **given: Any) -> None:
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

    name = require_name(shell)
    names.namespace(shell.namespace)
    with connect_aws(shell) as aws:
        options = _resolve_options(aws, name, given)
        with show_events(f"Deploying {name} to {aws.region}", quiet=shell.as_json) as tell:
            done = deployment.deploy(aws, name, options, progress=_event_printer(tell), wait=wait, adopt=adopt)
            if wait:
                _register(shell, aws.region)
    shell.show(done._asdict(), _report(done) if wait else _describe_begun(done))
    if not shell.as_json:
        note(f"next: {_next_command(shell, done) if wait else _rerun_command(shell, done)}")


def _describe_begun(done: Deployment) -> str:
    state = done.stack if done.stack == "unchanged" else f"being {done.stack} in the background"
    return f"The stack {done.name} is {state}."


@click.command(cls=Command)
@yes_option
@pass_shell
def delete(shell: Shell, yes: bool) -> None:
    """Delete a stack with everything in it.

    Table, limits, usage, audit events and their archive are lost for good. A protected table is refused.

    \b
    Example:
      zae-limiter delete --name my-app --region us-east-1
    """
    from ..aws import removal

    name = require_name(shell)
    with connect_aws(shell) as aws:
        removal.check_unprotected(aws, removal.require_stack(aws, name))
        confirm(_deletion_question(aws, name), yes)
        with show_events(f"Deleting {name}", quiet=shell.as_json) as tell:
            removal.delete(aws, name, progress=_event_printer(tell))
    shell.show({"name": name, "deleted": True}, f"Deleted {name} and everything in it.")


def require_name(shell: Shell) -> str:
    """Return the name of the stack. Raise `UsageError` if it was not passed."""
    if shell.stack_name is None:
        raise click.UsageError("No stack was given. Name it with --name my-app.")
    return names.stack(shell.stack_name)


def connect_aws(shell: Shell) -> Aws:
    """Return the account of the store options."""
    from ..aws.calls import Aws

    return Aws(shell.region, shell.endpoint_url)


def _resolve_options(aws: Aws, name: str, given: dict[str, Any]) -> StackOptions:
    """Return the options of the existing stack, overridden by those that were passed."""
    from ..aws import deployment
    from ..core.reports import StackOptions

    _check_values(name, merge_options(StackOptions(), given), given)
    return merge_options(deployment.read_options(aws, name), given)


def _check_values(name: str, options: StackOptions, given: dict[str, Any]) -> None:
    """Raise `ValidationError` for an invalid value before any call; combinations are checked later."""
    from ..aws.options import check

    try:
        check(name, options)
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


def _report(done: Deployment) -> Grid:
    code = {} if done.code is None else {"aggregator code": done.code}
    return facts({"stack": f"{done.name} in {done.region}, {done.stack}", **code, **done.resources})


def _place(shell: Shell, done: Deployment) -> str:
    endpoint = f" --endpoint-url {shlex.quote(shell.endpoint_url)}" if shell.endpoint_url else ""
    return f"--name {done.name} --region {done.region}{endpoint}"


def _next_command(shell: Shell, done: Deployment) -> str:
    return f"zae-limiter {_place(shell, done)} acquire key-1 gpt-4 -c rpm:1 -l rpm:60/min"


def _rerun_command(shell: Shell, done: Deployment) -> str:
    return f"zae-limiter deploy {_place(shell, done)}  (completes the deployment)"


def _deletion_question(aws: Aws, name: str) -> str:
    return (
        f"Delete stack {name!r} in {aws.region}? Its table with all limits and balances, usage, audit events and "
        "their archive are lost for good."
    )
