"""``zae-limiter local``: a local AWS without Docker."""

from __future__ import annotations

import json
import os
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import click

from ..core.errors import RateLimiterUnavailable, ZAELimiterError, spell_duration
from .commands import Group, pass_shell
from .errors import CODES
from .grid import Cell, Grid, facts, printable
from .output import print_json
from .progress import show_events

if TYPE_CHECKING:
    from ..aws.events import Event
    from ..aws.local.home import Home
    from ..aws.local.lifecycle import EngineHealth, StartResult
    from ..aws.local.lock import Say
    from .shell import Shell


@click.group(cls=Group)
def local() -> None:
    """A local AWS without Docker and without an account.

    It is ministack, installed once into an environment of its own. Every other command reaches it with
    --endpoint-url, or without any flag after `eval "$(zae-limiter local env)"`.

    \b
    Examples:
      zae-limiter local up --name my-app
      eval "$(zae-limiter local env)"
      zae-limiter --name my-app acquire key-1 gpt-4 -c rpm:1 -l rpm:60/min
      zae-limiter local down
    """
    if os.name != "posix":
        raise click.UsageError(
            "A local AWS needs Linux or macOS. Here, use WSL, or LocalStack in Docker with --endpoint-url."
        )


@local.command()
@click.option(
    "--port", type=click.IntRange(1, 65535), envvar="ZAE_LIMITER_LOCAL_PORT", help="Where to listen.  [default: 4566]"
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="S",
    default=60,
    show_default=True,
    help="Seconds to wait until it answers.",
)
@pass_shell
def up(shell: Shell, port: int | None, timeout: float) -> None:
    """Start it, unless it is running.

    With --name the limiter of that name is deployed there too, ready to be used. The first time, ministack is
    installed; to use an installed one, set $ZAE_LIMITER_MINISTACK.

    \b
    Examples:
      zae-limiter local up
      zae-limiter local up --name my-app
      zae-limiter local up --port 4600
    """
    from ..aws.local import home, lifecycle
    from ..core import names

    if shell.stack_name is not None:
        names.stack(shell.stack_name)
        names.namespace(shell.namespace)
    place = home.find()
    with show_events("Local AWS", quiet=shell.as_json) as say:
        found = lifecycle.up(place, lifecycle.StartOptions(port, shell.region, timeout), say)
        if shell.stack_name is not None:
            region = shell.region or found.running.region
            _deploy(place, LocalStack(shell.stack_name, shell.namespace, region, found.running.endpoint), say)
    _show_up(shell, found)


def _show_up(shell: Shell, found: StartResult) -> None:
    running, region = found.running, shell.region or found.running.region
    where = f"--endpoint-url {running.endpoint} --region {region}"
    following = f"zae-limiter deploy --name my-app {where}"
    if shell.stack_name is not None:
        following = f"zae-limiter --name {shell.stack_name} {where} acquire key-1 gpt-4 -c rpm:1 -l rpm:60/min"
    data = {
        "started": found.started,
        "endpoint": running.endpoint,
        "region": region,
        "pid": running.process.pid,
        "version": found.version,
        "stack": shell.stack_name,
        "next": following,
    }
    state = "is up" if found.started else "was up already"
    lines = [
        f"A local AWS {state} at {running.endpoint} (ministack {found.version}, pid {running.process.pid}).",
        *([f"{shell.stack_name} is deployed there."] if shell.stack_name else []),
        f"Next:  {following}",
        'For every command of this shell:  eval "$(zae-limiter local env)"',
    ]
    shell.show(data, "\n".join(map(printable, lines)))


@local.command()
@click.option("--purge", is_flag=True, help="Also remove ministack and the logs.")
@pass_shell
def down(shell: Shell, purge: bool) -> None:
    """Stop it and discard everything in it.

    \b
    Examples:
      zae-limiter local down
      zae-limiter local down --purge
    """
    from ..aws.local import home, lifecycle

    place = home.find()
    with show_events("Local AWS", quiet=shell.as_json) as say:
        stopped = lifecycle.down(place, purge=purge, say=say)
    pid = None if stopped is None else stopped.process.pid
    text = "No local AWS was running." if stopped is None else f"The local AWS (pid {pid}) has stopped."
    removed = f" {place.folder} is cleared." if purge else ""
    shell.show({"stopped": stopped is not None, "pid": pid, "purged": purge}, text + removed)


@local.command()
@pass_shell
@click.pass_context
def status(ctx: click.Context, shell: Shell) -> None:
    """Show whether it is running, where, and with which limiters.

    The exit code is 5 if it is not running or does not answer.

    \b
    Example:
      zae-limiter local status --json
    """
    from ..aws.local import home, lifecycle

    found = lifecycle.read_health(home.find())
    data = _describe_status(found, shell.region)
    shell.show(data, _status_grid(data))
    if not data["answers"]:
        ctx.exit(CODES[RateLimiterUnavailable])


def _describe_status(found: EngineHealth | None, region: str | None) -> dict[str, object]:
    if found is None:
        return {"running": False, "answers": False}
    running = found.running
    region = region or running.region
    answers = found.version is not None
    return {
        "running": True,
        "answers": answers,
        "endpoint": running.endpoint,
        "region": region,
        "pid": running.process.pid,
        "version": found.version,
        "uptime_seconds": round(found.uptime_seconds, 3),
        "stacks": _list_stacks(running.endpoint, region) if answers else None,
    }


def _status_grid(data: dict[str, object]) -> Grid | str:
    if not data["running"]:
        return "No local AWS is running. Start one with: zae-limiter local up"
    there, uptime = data["stacks"], data["uptime_seconds"]
    shown = {
        "answers": Cell("yes", "green") if data["answers"] else Cell("no", "bold red"),
        "endpoint": data["endpoint"],
        "region": data["region"],
        "pid": str(data["pid"]),
        "ministack": data["version"],
        "up for": spell_duration(int(uptime)) if isinstance(uptime, float) else None,
        "stacks": (", ".join(there) or "none") if isinstance(there, list) else None,
    }
    return facts(shown)


@local.command()
@click.option("--follow", "-f", is_flag=True, help="Keep printing until it stops.")
@click.option("--lines", "count", type=click.IntRange(min=0), default=50, show_default=True, help="How many.")
@pass_shell
def logs(shell: Shell, follow: bool, count: int) -> None:
    """Show its log, of this run or of the last one.

    \b
    Examples:
      zae-limiter local logs --lines 100
      zae-limiter local logs --follow
    """
    from ..aws.local import home, logs

    place = home.find()
    if not place.log.exists():
        raise RateLimiterUnavailable("There is no log yet: start a local AWS with `zae-limiter local up`.")
    if follow:
        for line in logs.follow(place, count):
            click.echo(json.dumps(line, ensure_ascii=False) if shell.as_json else printable(line))
        return
    lines = logs.last(place, count)
    shell.show({"log": str(place.log), "lines": lines}, "\n".join(map(printable, lines)))


@local.command()
@click.option("--shell", "dialect", type=click.Choice(["bash", "fish", "powershell"]), help="[default: by $SHELL]")
@pass_shell
def env(shell: Shell, dialect: str | None) -> None:
    """Print the settings that make a shell use it.

    Then every command and every AWS SDK in that shell talks to the local AWS.

    \b
    Examples:
      eval "$(zae-limiter local env)"
      zae-limiter local env --shell fish | source
      zae-limiter local env --shell powershell | Invoke-Expression
    """
    from ..aws.local import exports, home, lifecycle

    running = lifecycle.require_running(home.find())
    settings = exports.variables(running.endpoint, shell.region or running.region)
    if shell.as_json:
        print_json(settings)
        return
    click.echo("\n".join(exports.lines(settings, dialect or exports.detect_shell())))


class LocalStack(NamedTuple):
    """A limiter to deploy on the local AWS."""

    name: str
    namespace: str
    region: str
    endpoint: str


def _deploy(home: Home, stack: LocalStack, say: Say) -> None:
    """Deploy a limiter and register its namespace. An existing one keeps its options."""
    from ..aws import deployment
    from ..aws.calls import Aws
    from ..aws.local import exports
    from ..aws.local.lock import hold_lock
    from ..sync import SyncRepository

    name, namespace, region, endpoint = stack
    with (
        hold_lock(home, say),
        exports.apply(exports.variables(endpoint, region)),
        Aws(region, endpoint) as aws,
        SyncRepository(name=name, region=region, endpoint_url=endpoint) as repository,
    ):
        say(f"Deploying {name}")
        options = deployment.read_options(aws, name)
        deployment.deploy(aws, name, options, progress=partial(_report_event, name, say))
        repository.create_table()  # the engine's CloudFormation forgets the expiry of records
        repository.register_namespace(namespace)


def _report_event(name: str, say: Say, event: Event) -> None:
    if event.status.endswith("_IN_PROGRESS"):
        say(f"Deploying {name}: {event.resource}")


def _list_stacks(endpoint: str, region: str) -> list[str] | None:
    """Return the names of the deployed limiters, or None if they cannot be listed."""
    from ..aws import discovery
    from ..aws.calls import Aws
    from ..aws.local import exports

    try:
        with exports.apply(exports.variables(endpoint, region)), Aws(region, endpoint) as aws:
            return [found.stack_name for found in discovery.find(aws)]
    except ZAELimiterError:
        return None
