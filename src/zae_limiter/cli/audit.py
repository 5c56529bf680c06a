"""``zae-limiter audit``: the log of changes."""

from __future__ import annotations

import json
from typing import Any

import click

from ..core.limit import Limit
from ..core.values import AuditEvent
from .arguments import number_option
from .commands import Group, Shell
from .grid import Grid
from .output import to_jsonable
from .spelling import spell_limit


@click.group(cls=Group)
def audit() -> None:
    """The log of changes to entities, limits and namespaces.

    Examples:
      zae-limiter audit list key-1
      zae-limiter audit list --system
    """


@audit.command("list")
@click.argument("entity_id", required=False)
@click.option("--system", "of_system", is_flag=True, help="Changes of the system defaults.")
@click.option("--resource", "-r", "resource", metavar="NAME", help="Changes of a resource's defaults.")
@click.option("--of-namespace", "registered", metavar="NAME", help="Changes of a namespace itself.")
@number_option("--most", most=10_000, default=100, help="At most N.")
@click.option("--before", metavar="EVENT_ID", help="Only changes before this event.")
def list_events(shell: Shell, most: int, before: str | None, **whose: Any) -> None:
    """List changes, newest first.

    Of an entity, or of the system, a resource or a namespace.

    Examples:
      zae-limiter audit list key-1
      zae-limiter audit list --resource gpt-4 --most 10
      zae-limiter audit list --system --json
    """
    forms = {"of_system": "$SYSTEM", "resource": "$RESOURCE:{}", "registered": "$NAMESPACE:{}"}
    given = {option: value for option, value in whose.items() if value not in (None, False)}
    subjects = [forms.get(option, "{}").format(value) for option, value in given.items()]
    if len(subjects) != 1:
        raise click.UsageError("Pass one of ENTITY_ID, --system, --resource NAME and --of-namespace NAME.")
    events = shell.repository().get_audit_events(subjects[0], most, before)
    rows = [
        (e.timestamp.replace("T", " ").removesuffix("Z")[:19], e.action, e.principal, e.resource, _spell_details(e))
        for e in events
    ]
    headers = ("when", "what", "who", "resource", "details")
    more = [f"there may be more: --before {events[-1].event_id}"] if len(events) == most else []
    shell.show(events, Grid(headers, rows, f"No changes of {subjects[0]} have been recorded."), *more)


def _spell_details(event: AuditEvent) -> str:
    """Return the details of an event for a cell, without empty ones."""
    details = {name: value for name, value in to_jsonable(event.details).items() if value not in (None, {}, [])}
    words = [spell_limit(Limit.from_dict(limit)) for limit in details.pop("limits", [])]
    for name, value in details.items():
        words.append(f"{name}={value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}")
    return ", ".join(words)
