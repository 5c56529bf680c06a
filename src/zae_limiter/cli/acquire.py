"""``zae-limiter acquire``, ``available`` and ``explain``: try a limit, and see which limits decide and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ..core.config import SOURCES
from ..core.errors import spell_duration
from ..core.kinds import kind_of
from ..core.limit import Limit
from ..core.names import DEFAULT_RESOURCE
from ..core.reports import LevelStatus
from ..core.values import Access
from .arguments import amount_option, costs_option, limit_option
from .commands import Command, Shell
from .grid import Cell, Grid
from .output import print_text
from .spelling import TakenSlots, describe_slots, explain_cascade, show_slots, spell_policy, spell_rate, spell_reset

if TYPE_CHECKING:
    from ..sync import SyncLease, SyncRateLimiter


_UNCHECKED = "granted without checking limits, because the store is unavailable and the policy is allow."
priority_option = click.option(
    "--priority", metavar="NAME", help="The priority of the call: it leaves the floors that limits have for it."
)


@click.command(cls=Command)
@click.argument("entity_id")
@click.argument("resource")
@amount_option("--consume", "-c", "cost", required=True, help="What the call costs; may be repeated.")
@costs_option("--also", help="What it costs of another resource, all or nothing; may be repeated.")
@limit_option()
@click.option("--max-wait", type=click.FloatRange(min=0), metavar="S", help="Wait up to S seconds for the tokens.")
@priority_option
@amount_option("--settle", "usage", help="What the call has really used, e.g. tpm:1730.")
@amount_option("--adjust", "adjustment", help="Correct the cost by a difference, e.g. tpm:+1500 or tpm:-200.")
@click.option("--holder", metavar="NAME", help="A name that is shown with the slots that the call holds.")
@click.option(
    "--on-unavailable",
    type=click.Choice(["allow", "block"]),
    help="What to do if the store is unavailable.  [default: as stored, else block]",
)
def acquire(
    shell: Shell,
    entity_id: str,
    resource: str,
    cost: dict[str, int],
    also: dict[str, dict[str, int]],
    limits: list[Limit],
    usage: dict[str, int],
    adjustment: dict[str, int],
    **options: Any,
) -> None:
    """Take tokens; the exit code says whether they were granted.

    They are taken from the entity and, with cascade, from those above it, all or nothing. Slots of concurrency limits
    are free again when the command ends.

    Exit codes: 0 granted, 3 not yet (the message says when), 4 never (above the capacity),
    5 the store is unavailable, 22 switched off, 2 invalid input.

    Examples:
      zae-limiter acquire key-1 gpt-4 -c rpm:1 -c tpm:500
      zae-limiter acquire key-1 gpt-4 -c rpm:1 -c tpm:500 --settle tpm:1730
      zae-limiter acquire key-1 gpt-4 -c rpm:1 --also tools:rpm:1 --also search:rpm:2
      zae-limiter acquire key-1 gpt-4 -c rpm:1 --max-wait 10 && ./call-the-model
      zae-limiter acquire key-1 deploys -c runs:1 -l runs:5/hour
    """
    limiter = shell.limiter()
    with limiter.acquire(entity_id, resource, cost, limits or None, also=also or None, **options) as lease:
        lease.settle(usage)
        lease.adjust(adjustment)
    is_settled = bool(usage or adjustment) and not lease.degraded
    left = limiter.available(entity_id, resource, limits or None) if is_settled else lease.available
    parts = {name: _describe_part(lease.resource(name)) for name in lease.resources}
    data: dict[str, Any] = {
        "granted": True,
        "degraded": lease.degraded,
        "entity_id": entity_id,
        "resource": resource,
        **parts[resource],
        "available": left,
        "bypassed": any(lease.resource(name).bypassed for name in parts),
        "also": {name: parts[name] for name in also},
        "warnings": shell.take_warnings(),
    }
    answer = f"Granted to {entity_id} on {', '.join(parts)}{_spell_excess(data)}."
    if lease.degraded:
        shell.show(data, answer, *data["warnings"], _UNCHECKED)
        return
    rows = _list_rows(data) + [row for name in also for row in _list_rows(parts[name], f"{name}:")]
    shell.show(data, Grid(("limit", "taken", "left"), rows, title=Cell(answer, "green")), *data["warnings"])


def _describe_part(lease: SyncLease) -> dict[str, Any]:
    return {"consumed": lease.consumed, "available": lease.available, "overdrawn": list(lease.overdrawn)}


def _spell_excess(data: Mapping[str, Any]) -> str:
    """Return in brackets whether a switch has admitted a call, and which limits it has overdrawn."""
    beyond = [*data["overdrawn"]]
    beyond += [f"{where}:{name}" for where, part in data["also"].items() for name in part["overdrawn"]]
    remarks = ["bypassed"] * data["bypassed"] + ([f"overdrawn: {', '.join(beyond)}"] if beyond else [])
    return f" ({'; '.join(remarks)})" if remarks else ""


def _list_rows(part: Mapping[str, Any], prefix: str = "") -> list[tuple[object, ...]]:
    return [(f"{prefix}{name}", amount, part["available"].get(name)) for name, amount in part["consumed"].items()]


@click.command(cls=Command)
@click.argument("entity_id")
@click.argument("resource")
@limit_option()
def available(shell: Shell, entity_id: str, resource: str, limits: list[Limit]) -> None:
    """Show what is left now, without taking anything.

    Of each limit the least over all levels that an acquire would charge.

    Example:
      zae-limiter available key-1 gpt-4
    """
    left = shell.limiter().available(entity_id, resource, limits or None)
    data = {"entity_id": entity_id, "resource": resource, "available": left}
    shell.show(data, Grid(("limit", "left"), list(left.items())))


class ExplainedLevel(NamedTuple):
    """One entity of the chain: its limits in force, their source, what that hides, and whether a switch admits all."""

    entity_id: str
    source: str
    hides: list[str]
    bypassed: bool
    limits: list[LevelStatus]


@click.command(cls=Command)
@click.argument("entity_id")
@click.argument("resource")
@amount_option("--consume", "-c", "cost", help="What a call would cost; may be repeated.")
@limit_option()
@priority_option
def explain(
    shell: Shell, entity_id: str, resource: str, cost: dict[str, int], limits: list[Limit], priority: str | None
) -> None:
    """Show which limits decide, and why.

    Level by level: where the limits come from, what is left, and when a cost fits.

    Limits come from the most specific level that has any: entity (for this resource), entity_default (the entity,
    for all resources), resource, system. With cascade the entities above are charged too. Without a cost it says when
    one more of each limit fits.

    Examples:
      zae-limiter explain key-1 gpt-4
      zae-limiter explain key-1 gpt-4 -c rpm:1 -c tpm:5000
      zae-limiter explain key-1 gpt-4 -c tpm:5000 --priority batch
    """
    limiter = shell.limiter()
    statuses = limiter.get_status(entity_id, resource, limits or None, needed=cost or None, priority=priority)
    levels = []
    for (who, source), found in groupby(statuses, key=lambda status: (status.entity_id, status.source)):
        bypassed = limiter.resolve_access(who, resource)[0] is Access.BYPASSED
        hides = _hidden_sources(limiter, who, resource, source)
        levels.append(ExplainedLevel(who, source, hides, bypassed, list(found)))
    remarks = _find_remarks(limiter, entity_id, resource, {level.entity_id for level in levels})
    still = "" if all(level.bypassed for level in levels) else " Those of other levels still decide."
    remarks += [
        f"{level.entity_id} is bypassed: its limits refuse nothing.{still}" for level in levels if level.bypassed
    ]
    asked = set(cost) or {status.limit_name for status in statuses if not status.limit.is_concurrency}
    for level in levels:
        absent = sorted(asked - {status.limit_name for status in level.limits})
        remarks += [f"{level.entity_id}: not charged here: {', '.join(f'`{name}`' for name in absent)}."] * bool(absent)
    waits = [status.retry_after_seconds for status in statuses]
    wait = None if None in waits else max(filter(None, waits), default=0.0)
    described = [{**level._asdict(), "limits": list(map(_describe, level.limits))} for level in levels]
    data = {"entity_id": entity_id, "resource": resource, "cost": cost, "fits_in_seconds": wait, "levels": described}
    shell.show({**data, "remarks": remarks}, _grid(levels, "fits" if cost else "one more"), *remarks)
    if not shell.as_json:
        taken = [TakenSlots((each.entity_id, each.limit_name), each.slots, each.instant_ms) for each in statuses]
        show_slots(("level", "limit"), taken)
        click.echo()
        print_text(_verdict(statuses, wait, cost))


def _describe(status: LevelStatus) -> dict[str, object]:
    shown = {**status.as_dict(), "floor": status.floor, "floors": dict(status.limit.floors)}
    if status.limit.is_concurrency:
        times = {"ttl": status.limit.ttl, "max_hold": status.limit.max_hold or None}
        shown |= {**times, "slots": describe_slots(status.slots, status.instant_ms)}
    return shown


def _verdict(statuses: Sequence[LevelStatus], wait: float | None, cost: Mapping[str, int]) -> str:
    """Return the answer in one sentence; ``wait`` is None for a cost that never fits."""
    asked = ", ".join(f"{name} {amount:,}" for name, amount in cost.items()) or "One more of each limit"
    if wait == 0:
        return f"{asked} fits now."
    late = next(status for status in statuses if status.retry_after_seconds == wait)
    where = f"{late.limit_name} of {late.entity_id}"
    if wait is None:
        most = late.limit.capacity - late.floor
        if late.requested > most + late.credit:  # else the credit expires before the rest is there
            most += late.credit
        kept = f", {late.floor:,} kept for others" if late.floor else ""
        return f"{asked} never fits: above the maximum {most:,} of {where}{kept}."
    return f"{asked} fits in {spell_duration(wait)}{kind_of(late.limit).comeback.format(where)}."


def _hidden_sources(limiter: SyncRateLimiter, entity_id: str, resource: str, source: str) -> list[str]:
    """Return the less specific levels that also have limits, which do not apply."""
    stored = {
        "entity": limiter.get_limits(entity_id, resource),
        "entity_default": limiter.get_limits(entity_id, DEFAULT_RESOURCE),
        "resource": limiter.get_resource_defaults(resource),
        "system": limiter.get_system_defaults()[0],
    }
    below = SOURCES[SOURCES.index(source) + 1 :] if source in SOURCES else SOURCES
    return [name for name in below if stored[name]]


def _find_remarks(limiter: SyncRateLimiter, entity_id: str, resource: str, charged: set[str]) -> list[str]:
    """Return remarks on unknown entities and on parents that are not charged."""
    entity = limiter.get_entity(entity_id)
    if entity is None:
        return [f"{entity_id} was never created: defaults apply, and no parent is charged."]
    remarks = []
    while entity is not None and entity.parent_id is not None:
        reason = explain_cascade(limiter, entity, resource)
        if not limiter.resolve_cascade(entity.id, resource):
            remarks.append(f"{entity.parent_id} is not charged: {reason}.")
            break
        if reason is not None:
            remarks.append(f"{entity.parent_id} is charged: {reason}.")
        if entity.parent_id not in charged:
            remarks.append(f"{entity.parent_id} is not charged: no limits are stored for it at any level.")
        entity = limiter.get_entity(entity.parent_id)
    return remarks


def _grid(levels: Sequence[ExplainedLevel], fitting: str) -> Grid:
    rows: list[tuple[object, ...]] = []
    for level in levels:
        over = f" (over {', '.join(level.hides)})" if level.hides else ""
        names: tuple[object, object] = (Cell(level.entity_id, "bold"), f"{level.source}{over}")
        for status in level.limits:
            limit = (status.limit_name, spell_rate(status.limit), status.limit.capacity)
            policy = ", ".join(["bypassed"] * level.bypassed + spell_policy(status.limit))
            left = (status.in_flight, status.available, status.credit or None, spell_reset(status))
            rows.append((*names, *limit, policy or None, *left, _fit_cell(status)))
            names = ("", "")
    amounts = ("in flight", "left", "of it credit", "resets")
    grid = Grid(("level", "limits from", "limit", "rate", "burst", "policy", *amounts, fitting), rows)
    return grid.without_empty("policy", "in flight", "of it credit", "resets")


def _fit_cell(status: LevelStatus) -> Cell:
    if not status.requested:
        return Cell("-", "dim")
    if status.retry_after_seconds is None:
        return Cell("never", "bold red")
    if status.exceeded:
        return Cell(f"in {spell_duration(status.retry_after_seconds)}", "yellow")
    return Cell("now", "green")
