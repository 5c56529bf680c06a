"""``zae-limiter local``: a local AWS without Docker."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import click

from ..core import names
from ..core.errors import RateLimiterUnavailable, ZAELimiterError, spell_duration
from .arguments import number_option
from .commands import Group, Shell
from .errors import CODES
from .grid import facts, printable, yes_or_no
from .output import show_events

if TYPE_CHECKING:
    from ..aws.events import Event
    from ..aws.local.home import Home, RunningEngine, Say


@click.group(cls=Group)
def local() -> None:
    """A local AWS without Docker and without an account.

    It is ministack, installed once into an environment of its own. Every other command reaches it with
    --endpoint-url, or without any flag after `eval "$(zae-limiter local env)"`.

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


_PATIENCE = click.FloatRange(min=0, min_open=True)


@local.command()
@click.option(
    "--port", type=click.IntRange(1, 65535), envvar="ZAE_LIMITER_LOCAL_PORT", help="Where to listen.  [default: 4566]"
)
@number_option("--timeout", kind=_PATIENCE, metavar="S", default=60, help="Seconds to wait until it answers.")
def up(shell: Shell, port: int | None, timeout: float) -> None:
    """Start it, unless it is running.

    With --name the limiter of that name is deployed there too, ready to be used. The first time, ministack is
    installed; to use an installed one, set $ZAE_LIMITER_MINISTACK.

    Examples:
      zae-limiter local up
      zae-limiter local up --name my-app
      zae-limiter local up --port 4600
    """
    from ..aws.local import home, lifecycle

    name = shell.stack_name
    if name is not None:
        names.stack(name)
        names.namespace(shell.namespace)
    place = home.find_home()
    with show_events("Local AWS", quiet=shell.as_json) as say:
        found = lifecycle.up(place, say, port=port, region=shell.region, patience=timeout)
        endpoint, region = found.running.endpoint, shell.region or found.running.region
        if name is not None:
            _deploy(place, name, shell, found.running, say)
    where, pid = f"--endpoint-url {endpoint} --region {region}", found.running.process.pid
    following = f"zae-limiter deploy --name my-app {where}"
    if name is not None:
        following = f"zae-limiter --name {name} {where} acquire key-1 gpt-4 -c rpm:1 -l rpm:60/min"
    state = "is up" if found.started else "was up already"
    lines = [
        f"A local AWS {state} at {endpoint} (ministack {found.version}, pid {pid}).",
        *([f"{name} is deployed there."] if name else []),
        f"Next:  {following}",
        'For every command of this shell:  eval "$(zae-limiter local env)"',
    ]
    data = {"started": found.started, "endpoint": endpoint, "region": region, "pid": pid, "version": found.version}
    shell.show({**data, "stack": name, "next": following}, "\n".join(map(printable, lines)))


@local.command()
@click.option("--purge", is_flag=True, help="Also remove ministack and the logs.")
def down(shell: Shell, purge: bool) -> None:
    """Stop it and discard everything in it.

    Examples:
      zae-limiter local down
      zae-limiter local down --purge
    """
    from ..aws.local import home, lifecycle

    place = home.find_home()
    with show_events("Local AWS", quiet=shell.as_json) as say:
        stopped = lifecycle.down(place, purge=purge, say=say)
    pid = None if stopped is None else stopped.process.pid
    text = "No local AWS was running." if stopped is None else f"The local AWS (pid {pid}) has stopped."
    removed = f" {place.folder} is cleared." if purge else ""
    shell.show({"stopped": stopped is not None, "pid": pid, "purged": purge}, text + removed)


@local.command()
def status(shell: Shell) -> None:
    """Show whether it is running, where, and with which limiters.

    The exit code is 5 if it is not running or does not answer.

    Example:
      zae-limiter local status --json
    """
    from ..aws.local import engine, home

    found = home.find_running(home.find_home())
    if found is None:
        text = "No local AWS is running. Start one with: zae-limiter local up"
        shell.show({"running": False, "answers": False}, text)
        raise click.exceptions.Exit(CODES[RateLimiterUnavailable])
    uptime, version = round(found.uptime_seconds, 3), engine.version(found.port)
    answers, where = version is not None, {"endpoint": found.endpoint, "region": shell.region or found.region}
    stacks = _list_stacks(**where) if answers else None
    data = {"running": True, "answers": answers, **where, "pid": found.process.pid, "version": version}
    lines = {"answers": yes_or_no(answers), **where, "pid": str(found.process.pid), "ministack": version}
    lines |= {"up for": spell_duration(int(uptime)), "stacks": None if stacks is None else ", ".join(stacks) or "none"}
    shell.show({**data, "uptime_seconds": uptime, "stacks": stacks}, facts(lines))
    if not answers:
        raise click.exceptions.Exit(CODES[RateLimiterUnavailable])


@local.command()
@click.option("--follow", "-f", is_flag=True, help="Keep printing until it stops.")
@number_option("--lines", "count", least=0, default=50, metavar=None, help="How many.")
def logs(shell: Shell, follow: bool, count: int) -> None:
    """Show its log, of this run or of the last one.

    Examples:
      zae-limiter local logs --lines 100
      zae-limiter local logs --follow
    """
    from ..aws.local import engine, home

    place = home.find_home()
    if not place.log.exists():
        raise RateLimiterUnavailable("There is no log yet: start a local AWS with `zae-limiter local up`.")
    if follow:
        for line in engine.follow_log(place, count):
            click.echo(json.dumps(line, ensure_ascii=False) if shell.as_json else printable(line))
        return
    lines = engine.read_log(place, count)
    shell.show({"log": str(place.log), "lines": lines}, "\n".join(map(printable, lines)))


@local.command()
@click.option("--shell", "dialect", type=click.Choice(["bash", "fish", "powershell"]), help="[default: by $SHELL]")
def env(shell: Shell, dialect: str | None) -> None:
    """Print the settings that make a shell use it.

    Then every command and every AWS SDK in that shell talks to the local AWS.

    Examples:
      eval "$(zae-limiter local env)"
      zae-limiter local env --shell fish | source
      zae-limiter local env --shell powershell | Invoke-Expression
    """
    from ..aws.local import home, lifecycle

    running = lifecycle.require_running(home.find_home())
    settings = lifecycle.variables(running.endpoint, shell.region or running.region)
    chosen = dialect or lifecycle.detect_shell()
    shell.show(settings, "\n".join(lifecycle.export_lines(settings, chosen)))


def _deploy(home: Home, name: str, shell: Shell, running: RunningEngine, say: Say) -> None:
    """Deploy a limiter and register its namespace. An existing one keeps its options."""
    from ..aws import deployment
    from ..aws.calls import Aws
    from ..aws.local import lifecycle
    from ..aws.local.home import hold_lock
    from ..sync import SyncRepository

    endpoint, region = running.endpoint, shell.region or running.region

    def report(event: Event) -> None:
        if event.status.endswith("_IN_PROGRESS"):
            say(f"Deploying {name}: {event.resource}")

    with (
        hold_lock(home, say),
        lifecycle.apply_variables(lifecycle.variables(endpoint, region)),
        Aws(region, endpoint) as aws,
        SyncRepository(name=name, region=region, endpoint_url=endpoint) as repository,
    ):
        say(f"Deploying {name}")
        options = deployment.read_options(aws, name)
        deployment.deploy(aws, name, options, progress=report)
        repository.create_table()  # the engine's CloudFormation forgets the expiry of records
        repository.register_namespace(shell.namespace)


def _list_stacks(endpoint: str, region: str) -> list[str] | None:
    """Return the names of the deployed limiters, or None if they cannot be listed."""
    from ..aws.calls import Aws
    from ..aws.local import lifecycle
    from ..aws.stack import find_limiters

    try:
        with lifecycle.apply_variables(lifecycle.variables(endpoint, region)), Aws(region, endpoint) as aws:
            return [found.stack_name for found in find_limiters(aws)]
    except ZAELimiterError:
        return None
