"""``zae-limiter status``, ``version`` and ``check``: how a store is, and whether it fits this version."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any

import click

from .._version import __version__
from ..core.errors import RateLimiterUnavailable, VersionError
from ..core.reports import Status
from .commands import Command, Shell
from .deploy import stack_style
from .errors import CODES, REFUSED, exit_code, message
from .grid import Cell, Grid, facts, yes_or_no

if TYPE_CHECKING:
    from ..aws.health import Health
    from ..records.version import Deployed


@click.command(cls=Command)
def status(shell: Shell) -> None:
    """Show whether the store is available, its latency and versions.

    On DynamoDB also its stack, table, stream and aggregator. The exit code is 5 if the store is unavailable.

    Examples:
      zae-limiter status --url sqlite:///limits.db
      zae-limiter status --name my-app --region us-east-1
      zae-limiter status --json
    """
    found: Status | Health
    repository = shell.repository()
    if repository.capabilities.name == "dynamodb":
        from ..aws import health

        found = health.check_health(repository.store)
        lines = _describe_health(found)
    else:
        found = repository.status()
        lines = _describe_status(found)
    shell.show(found, facts(lines))
    if not found.available:
        raise click.exceptions.Exit(CODES[RateLimiterUnavailable])


def _describe_answers(found: Status | Health) -> dict[str, object]:
    return {
        "answers": yes_or_no(found.available),
        "latency": None if found.latency_ms is None else f"{found.latency_ms:g} ms",
    }


def _describe_status(found: Status) -> dict[str, object]:
    versions = {"namespace": found.namespace, "schema": found.schema_version, "client": found.client_version}
    lines = {"store": found.backend, **_describe_answers(found), **versions, "clock skew": f"{found.clock_skew_ms} ms"}
    policy, warning = found.eviction_policy, _eviction_warning(found.eviction_policy)
    shown = policy if warning is None else Cell(f"{policy}: {warning}", "yellow")
    return lines | {part: text for part, text in (("maxmemory-policy", shown), ("reason", found.reason)) if text}


def _eviction_warning(policy: str | None) -> str | None:
    """Return what to do about a server that deletes records when its memory is full, or None if it does not."""
    if policy in (None, "noeviction"):
        return None
    return "Redis deletes records when its memory is full, and limits start again full; set it to noeviction."


def _describe_health(found: Health) -> dict[str, object]:
    """Return one line per part; a part that could not be read shows the reason."""
    versions = {"schema": found.versions.schema, "client": found.versions.client}
    lines = {"name": f"{found.name} in {found.region}", **_describe_answers(found), **versions}
    if found.table is not None or found.stack is not None:
        lines |= {**_describe_stack(found), **_describe_aggregator(found), "namespaces": found.namespaces}
    return lines | {part: Cell(trouble, "yellow") for part, trouble in found.troubles.items()}


def _describe_stack(found: Health) -> dict[str, object]:
    stack, table = found.stack, found.table
    lines: dict[str, object] = {"stack": "none: the table was created without one"}
    if stack is not None:
        reason = f": {stack.reason}" if stack.reason else ""
        lines["stack"] = Cell(f"{stack.status}{reason}", stack_style(stack.status))
    if table is None:
        return lines | {"table": Cell("missing", "bold red")}
    protection = ", protected against deletion" if table.deletion_protection else ""
    return lines | {
        "table": Cell(f"{table.status}{protection}", "green" if table.status == "ACTIVE" else "yellow"),
        "items": f"about {table.items:,}, {table.size_bytes:,} bytes",
        "stream": table.stream,
        "ttl": found.ttl,
        "pitr": found.pitr,
    }


def _describe_aggregator(found: Health) -> dict[str, object]:
    function, letters = found.aggregator, found.dead_letters
    if function is None:
        return {"aggregator": "none"}
    code = "code of this version" if function.code_current else "code of another version: deploy or upgrade"
    version = f", {found.versions.aggregator}" if found.versions.aggregator else ""
    fine = function.state == "Active" and function.code_current
    return {
        "aggregator": Cell(f"{function.state}, {code}{version}", "green" if fine else "yellow"),
        "stream mapping": found.stream_mapping,
        "dead letters": Cell(f"{letters:,}", "red") if letters else letters,
    }


@click.command(cls=Command)
def version(shell: Shell) -> None:
    """Show the versions of this client and of the store.

    Of the store only where --name or --url names one.

    Examples:
      zae-limiter version --json
      zae-limiter version --name my-app --region us-east-1
    """
    python, system = platform.python_version(), platform.platform()
    data: dict[str, Any] = {"zae_limiter": __version__, "python": python, "platform": system}
    text: Grid | str = f"zae-limiter {__version__} (Python {python}, {system})"
    if shell.url is not None or shell.stack_name is not None:
        _, _, versions, lines = _check_store(shell)
        data |= versions
        text = facts({"zae-limiter": __version__, "python": f"{python}, {system}", **lines})
    shell.show(data, text)


@click.command(cls=Command)
def check(shell: Shell) -> None:
    """Check whether client, data and aggregator are compatible.

    Nothing is changed. The exit code is 12 if the data need `upgrade`, 13 if this client is too old for them, 25 if an
    upgrade has left records that it could not move, or older clients have written some since.

    Examples:
      zae-limiter check --name my-app --region us-east-1
      zae-limiter check --url sqlite:///limits.db --json
    """
    from ..records.version import aggregator_warning
    from ..runtime.blocking import run
    from ..stores.port import MayEvict
    from ..v017.upgrade.command import find_remains

    deployed, error, versions, lines = _check_store(shell)
    store = shell.repository().store
    remains = find_remains(store, deployed if error is None else None)
    problem = remains.describe(deployed) if error is None else message(error)
    policy = run(store.find_eviction_policy()) if isinstance(store, MayEvict) else None
    warning = aggregator_warning(deployed, __version__) or _eviction_warning(policy)
    remarks = {"problem": problem, "warning": warning}
    data = {"compatible": problem is None, **remarks, "client_version": __version__, **versions, **remains.data}
    stated = {"maxmemory-policy": policy, **remarks}
    known = {name: text for name, text in stated.items() if text is not None}
    text = facts({"compatible": yes_or_no(problem is None), "client": __version__, **lines, **known})
    shell.show({**data, "maxmemory_policy": policy}, text)
    if problem is not None:
        raise click.exceptions.Exit(REFUSED if error is None else exit_code(error))


def _check_store(shell: Shell) -> tuple[Deployed, VersionError | None, dict[str, str | None], dict[str, str | None]]:
    """Return the versions of the store, why this client cannot use it, and the versions for JSON and for people."""
    from ..records.version import BEFORE_NAMESPACES
    from ..repository.backend import check_compatibility
    from ..runtime.blocking import run

    deployed, error = run(check_compatibility(shell.repository().store.read, shell.namespace))
    schema, client_min, aggregator, *_ = deployed
    stated = None if schema == BEFORE_NAMESPACES else schema
    versions = {"schema_version": stated, "client_min_version": client_min, "lambda_version": aggregator}
    return deployed, error, versions, {"schema": schema, "aggregator": aggregator}
