"""``zae-limiter status``, ``version``, ``check`` and ``upgrade``: how a store is, and whether it fits this version."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any

import click

from .._version import __version__
from ..core.errors import InfrastructureError, RateLimiterUnavailable, VersionError
from ..core.reports import Status
from .commands import Command, Shell, yes_option
from .deploy import stack_style
from .errors import CODES, REFUSED, exit_code, message
from .grid import Cell, Grid, facts, yes_or_no
from .output import note, spell_count
from .progress import show_upgrade

if TYPE_CHECKING:
    from ..aws.health import Health
    from ..aws.upgrade.changes import Change
    from ..aws.upgrade.stragglers import Stragglers
    from ..aws.upgrade.upgrade import UpgradePlan, UpgradeResult
    from ..records.version import Deployed

_REMEDY = (
    "nothing was changed: change or delete them with the version that wrote them, or pass --leave-refused. "
    "What an upgrade has left can also be replaced with this version: set limits again, reset buckets."
)
_OLD_STACK = (
    "the table belongs to stack {name!r} of {version}. When it is upgraded: `zae-limiter upgrade --name {name} "
    "--release-stack` deletes that stack without the table, then `zae-limiter deploy --name {name} --adopt`. Never "
    "delete it otherwise: its template deletes the table."
)
_EXAMPLES = 3
"""How many records are named of those that mean something else afterwards."""
_SHOWN = 20
"""How many records that stay are named one by one."""


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
    return {
        "store": found.backend,
        **_describe_answers(found),
        "namespace": found.namespace,
        "schema": found.schema_version,
        "client": found.client_version,
        "clock skew": f"{found.clock_skew_ms} ms",
        **_describe_eviction(found.eviction_policy),
        **({} if found.reason is None else {"reason": found.reason}),
    }


def _describe_eviction(policy: str | None) -> dict[str, object]:
    if policy is None:
        return {}
    warning = _eviction_warning(policy)
    return {"maxmemory-policy": policy if warning is None else Cell(f"{policy}: {warning}", "yellow")}


def _eviction_warning(policy: str | None) -> str | None:
    """Return what to do about a server that deletes records when its memory is full, or None if it does not."""
    if policy in (None, "noeviction"):
        return None
    return "Redis deletes records when its memory is full, and limits start again full; set it to noeviction."


def _find_eviction_policy(shell: Shell) -> str | None:
    from ..runtime.blocking import run
    from ..stores.port import MayEvict

    store = shell.repository().store
    return run(store.find_eviction_policy()) if isinstance(store, MayEvict) else None


def _describe_health(found: Health) -> dict[str, object]:
    """Return one line per part; a part that could not be read shows the reason."""
    lines: dict[str, object] = {
        "name": f"{found.name} in {found.region}",
        **_describe_answers(found),
        "schema": found.versions.schema,
        "client": found.versions.client,
    }
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
    data: dict[str, Any] = {
        "zae_limiter": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
    }
    text: Grid | str = f"zae-limiter {__version__} (Python {data['python']}, {data['platform']})"
    if shell.url is not None or shell.stack_name is not None:
        _, _, versions, lines = _check_store(shell)
        data |= versions
        text = facts({"zae-limiter": __version__, "python": f"{data['python']}, {data['platform']}", **lines})
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

    deployed, error, versions, lines = _check_store(shell)
    stragglers = _find_stragglers(shell, deployed) if error is None else None
    running = _find_old_functions(shell)
    unmoved = [_describe_left(deployed.records_left or 0), _describe_stragglers(stragglers), _describe_running(running)]
    problem = (" ".join(filter(None, unmoved)) or None) if error is None else message(error)
    policy = _find_eviction_policy(shell)
    warning = aggregator_warning(deployed, __version__) or _eviction_warning(policy)
    data = {
        "compatible": problem is None,
        "problem": problem,
        "warning": warning,
        "client_version": __version__,
        **versions,
        "stragglers": _straggler_data(stragglers),
        "old_functions": running,
        "maxmemory_policy": policy,
    }
    stated = {} if policy is None else {"maxmemory-policy": policy}
    remarks = {name: text for name, text in (("problem", problem), ("warning", warning)) if text is not None}
    shell.show(
        data, facts({"compatible": yes_or_no(problem is None), "client": __version__, **lines, **stated, **remarks})
    )
    if problem is not None:
        raise click.exceptions.Exit(REFUSED if error is None else exit_code(error))


def _describe_left(left: int) -> str | None:
    """Return what to do about records that an upgrade has left, or None if there are none."""
    if not left:
        return None
    return (
        f"An upgrade has left {spell_count(left, 'record')} that it could not move. `zae-limiter upgrade` names what "
        "is left; run it again when that is changed, deleted or set again."
    )


def _find_stragglers(shell: Shell, deployed: Deployed) -> Stragglers | None:
    """Return what older clients have written since an upgrade, or None where the store has had no older layout."""
    from ..stores.dynamodb.store import DynamoStore

    store = shell.repository().store
    if not isinstance(store, DynamoStore):
        return None
    from ..aws.upgrade.stragglers import find_stragglers
    from ..runtime.blocking import run

    return run(find_stragglers(store, deployed))


def _find_old_functions(shell: Shell) -> list[str]:
    """Return the functions of an older version's stack that read the table's stream, as far as that can be read."""
    from ..stores.dynamodb.store import DynamoStore

    store = shell.repository().store
    if not isinstance(store, DynamoStore):
        return []
    from ..aws.calls import Aws
    from ..aws.old_stack import find_old_stack

    options = store.client.options
    try:
        with Aws(options.region, options.endpoint_url, options.profile, hasty=True) as aws:
            old = find_old_stack(aws, options.table)
    except InfrastructureError:
        return []
    return [] if old is None else list(old.running.values())


def _describe_running(functions: list[str]) -> str | None:
    """Return what to do about functions of an older version that go on, or None if there are none."""
    if not functions:
        return None
    return (
        f"The function {', '.join(functions)} of zae-limiter 0.x still writes into the buckets of this table. "
        "`zae-limiter upgrade` stops it."
    )


def _describe_stragglers(found: Stragglers | None) -> str | None:
    """Return what to do about records that older clients have written, or None if there are none."""
    if found is None or not found.records:
        return None
    return (
        f"Clients of zae-limiter 0.x have written {spell_count(found.records, 'record')} since the upgrade, of "
        f"{', '.join(found.examples)}. Stop them and run `zae-limiter upgrade`, which takes over what they set and "
        "subtracts what they took."
    )


def _straggler_data(found: Stragglers | None) -> dict[str, Any]:
    return {} if found is None else {"records": found.records, "examples": list(found.examples)}


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


@click.command(cls=Command)
@click.option("--lambda-only", is_flag=True, help="Only update the aggregator's code.")
@click.option("--force", is_flag=True, help="Check everything, even if the versions match.")
@click.option("--dry-run", is_flag=True, help="Show what would be done and change nothing.")
@click.option("--release-stack", is_flag=True, help="Then delete the stack of an older version, without its table.")
@click.option("--leave-refused", is_flag=True, help="Leave records where they are that cannot be upgraded.")
@yes_option
def upgrade(
    shell: Shell, lambda_only: bool, force: bool, dry_run: bool, release_stack: bool, leave_refused: bool, yes: bool
) -> int:
    """Upgrade an older table to this version: shape, stack, aggregator, data.

    Stop clients of older versions first. Rerun an interrupted upgrade to continue it; until it is complete no client
    can open the table. Data from before namespaces are moved to --namespace. The function of an older version's stack
    is stopped first; --release-stack deletes that stack last and keeps the table, for `deploy --adopt`.

    If a record cannot be upgraded with its meaning, nothing is changed and the exit code is 25; with --leave-refused
    the others are upgraded, and the exit code is the same, also of later upgrades while such records are left.

    Examples:
      zae-limiter upgrade --name my-app --dry-run
      zae-limiter upgrade --name my-app --region us-east-1 --yes
      zae-limiter upgrade --name my-app --lambda-only
    """
    from ..stores.dynamodb.store import DynamoStore

    store = shell.repository().store
    if not isinstance(store, DynamoStore):
        shell.show(_data(None, None), f"The {store.capabilities.name} store has no older layout: nothing to do.")
        return 0
    from ..aws.calls import Aws
    from ..aws.upgrade.upgrade import Upgrade

    options = store.client.options
    with Aws(options.region, options.endpoint_url, options.profile) as aws:
        work = Upgrade(aws, store, shell.namespace)
        with show_upgrade(quiet=shell.as_json) as watch:
            plan = work.plan(force=force, lambda_only=lambda_only, watch=watch, release_stack=release_stack)
        refused = len(plan.refused)
        stops = dry_run or plan.is_empty or bool(refused and not leave_refused)
        if stops or not shell.as_json:
            _show_plan(shell, plan, force)
        if stops:
            if refused and not shell.as_json:
                note(f"{spell_count(refused, 'record')} cannot be upgraded, {_REMEDY}")
            elif not (plan.is_empty or shell.as_json):
                note("nothing was changed: this is what an upgrade would do")
            return REFUSED if refused else 0
        shell.confirm(f"Upgrade {options.table!r} in {aws.region}?", yes)
        with show_upgrade(quiet=shell.as_json) as watch:
            done = work.run(plan, lambda_only=lambda_only, watch=watch)
    left = 0 if done.data is None else len(done.data.refused)
    shell.show(_data(plan, done), _summary(plan, done))
    if left and not shell.as_json:
        note(f"left where they were: {spell_count(left, 'record')}; `zae-limiter check` tells until they are gone")
    return REFUSED if left else 0


def _show_plan(shell: Shell, plan: UpgradePlan, force: bool) -> None:
    rows = [("old function", f"stop {name}: it no longer reads the table's stream") for name in plan.functions]
    rows += [("table", step) for step in plan.table]
    if plan.stack:
        rows.append(("stack", "update its template"))
    if plan.code:
        rows.append(("aggregator", "update its code"))
    if plan.data is not None:
        rows += [(kind, f"move {count:,}") for kind, count in plan.data.moved.items()]
        found = (
            ("bucket", plan.data.merged, "merge"),
            ("record", plan.data.superseded, "delete, as newer ones exist:"),
        )
        rows += [(kind, f"{todo} {count:,}") for kind, count, todo in found if count]
    if plan.version:
        rows.append(("version record", "write it"))
    if plan.release:
        rows.append(("old stack", "delete it, but for the table and the archive"))
    refused = plan.refused
    stragglers = _describe_stragglers(plan.stragglers)
    notes = [] if stragglers is None else [stragglers]
    old = plan.old_stack
    notes += [] if old is None else [_OLD_STACK.format(name=old.stack.name, version=old.version)]
    notes += [_describe_change(change) for change in plan.changes]
    notes += [f"{key.pk} {key.sk} stays: {reason}" for key, reason in list(refused.items())[:_SHOWN]]
    if len(refused) > _SHOWN:
        notes.append(f"... and {len(refused) - _SHOWN:,} more; --json names all")
    idle = (
        "Nothing can be done: what is left cannot be upgraded."
        if refused
        else "Everything is up to date: nothing to do."
    )
    idle += "" if force or refused else " With --force every record is looked at."
    text = Grid(("what", "to do"), rows) if rows else idle
    shell.show(_data(plan, None), text, *notes)


def _describe_change(change: Change) -> str:
    """Return what means something else after an upgrade, with some of the records."""
    more = ", ..." if change.records > _EXAMPLES else ""
    return f"changes: {change.what} ({change.records:,}: {', '.join(change.keys[:_EXAMPLES])}{more})"


def _summary(plan: UpgradePlan, done: UpgradeResult) -> Grid:
    rows = [("old function", f"{name} stopped") for name in plan.functions]
    rows += [("table", step) for step in done.table]
    rows += [(what, state) for what, state in (("stack", done.stack), ("aggregator", done.code)) if state]
    refused = 0
    if done.data is not None:
        rows += [(kind, f"{count:,} moved") for kind, count in done.data.moved.items()]
        if done.data.merged:
            rows.append(("bucket", f"{done.data.merged:,} merged with one in use"))
        if done.data.superseded:
            rows.append(("record", f"{done.data.superseded:,} replaced by newer ones"))
        refused = len(done.data.refused)
    rows += [("old stack", "deleted; next: `zae-limiter deploy --adopt`")] if plan.release else []
    cells = [(what, Cell(text, "green")) for what, text in rows]
    if refused:
        cells.append(("record", Cell(f"{refused:,} left where they are", "yellow")))
    version = Cell("not all of it is up to date", "yellow") if refused else Cell("up to date", "green")
    return Grid(("what", "done"), [*cells, ("version", version)])


def _data(plan: UpgradePlan | None, done: UpgradeResult | None) -> dict[str, Any]:
    """Return what an upgrade has done, or else would do; both None for a store that needs none."""
    state = plan if done is None else done
    report = None if state is None else state.data
    refused = {} if report is None else report.refused
    return {
        "up_to_date": not refused and (plan is None or plan.is_empty or done is not None),
        "changed": done is not None,
        "table": [] if state is None else list(state.table),
        "stack": state is not None and state.stack,
        "aggregator": state is not None and state.code,
        "records": {} if report is None else report.moved,
        "merged": 0 if report is None else report.merged,
        "superseded": 0 if report is None else report.superseded,
        "refused": [{"pk": key.pk, "sk": key.sk, "reason": reason} for key, reason in refused.items()],
        "changes": [] if plan is None else [change._asdict() for change in plan.changes],
        "stragglers": _straggler_data(None if plan is None else plan.stragglers),
        "older_stack": None if plan is None or plan.old_stack is None else plan.old_stack.version,
        "old_functions": [] if plan is None else list(plan.functions),
        "release_stack": plan is not None and plan.release,
    }
