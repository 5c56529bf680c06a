"""Limits, switches, cascade policies, resets and slots as they are shown to people."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from ..core.errors import spell_duration
from ..core.kinds import kind_of
from ..core.limit import Limit
from ..core.names import DEFAULT_RESOURCE
from ..core.production import MILLI
from .grid import Grid
from .output import note, print_grid, to_jsonable

if TYPE_CHECKING:
    from ..core.reports import SlotState
    from ..core.values import Entity, LimitStatus
    from ..sync import SyncRateLimiter, SyncRepository

_ACCESS = {None: None, True: "disabled", False: "enabled", "bypass": "bypassed"}
_SHOWN = 20
"""How many slots are shown to people; JSON has all of them."""


def spell_rate(limit: Limit) -> str:
    """Return what a limit allows, e.g. ``10,000/min``."""
    return kind_of(limit).spell(limit)


def spell_policy(limit: Limit) -> list[str]:
    """Return what a limit is besides its rate and its capacity."""
    floors = [f"{priority} leaves {100 * part:.4g}%" for priority, part in limit.floors]
    alerts = [f"alert at {', '.join(f'{100 * part:.4g}%' for part in limit.alerts)}"] if limit.alerts else []
    return ["soft"] * limit.soft + floors + alerts + [entry.text for entry in limit.schedule]


def spell_terms(limit: Limit) -> str:
    """Return a limit for people without its name, e.g. ``10,000/min (burst 15,000)``."""
    notes = [kind_of(limit).note(limit)] if limit.capacity != limit.refill_amount else []
    notes += spell_policy(limit)
    return spell_rate(limit) + (f" ({', '.join(notes)})" if notes else "")


def spell_limit(limit: Limit) -> str:
    """Return a limit for people, e.g. ``tpm 10,000/min (burst 15,000)``."""
    return f"{limit.name} {spell_terms(limit)}"


def limits_grid(limits: Sequence[Limit], empty: str = "No limits.") -> Grid:
    """Return limits as a table."""
    rows = [(limit.name, spell_rate(limit), limit.capacity, ", ".join(spell_policy(limit))) for limit in limits]
    return Grid(("limit", "rate", "burst", "policy"), rows, empty).without_empty("policy")


def read_policies(repository: SyncRepository, resource: str | None, entity_id: str | None = None) -> dict[str, object]:
    """Return the stored ``access`` and ``cascade_policy`` of an entity, on a resource or for all; or of a resource."""
    where = None if resource == DEFAULT_RESOURCE else resource
    if entity_id is None:
        assert where is not None  # it is about one of both
        access, cascade = repository.get_resource_disabled(where), repository.get_resource_cascade(where)
    else:
        access = repository.get_entity_disabled(entity_id, where)
        cascade = repository.get_entity_cascade(entity_id, where)
    return {"access": _ACCESS[access], "cascade_policy": cascade}


def spell_policies(whose: str, policies: Mapping[str, object]) -> list[str]:
    """Return a sentence for each policy that is set."""
    sentences = [] if policies["access"] is None else [f"{whose} is {policies['access']}."]
    if policies["cascade_policy"] is not None:
        sentences.append(f"{whose} {spell_cascade(bool(policies['cascade_policy']))} by its cascade policy.")
    return sentences


def spell_cascade(cascade: bool) -> str:
    """Return what a cascade policy does, with a verb."""
    return "charges parents" if cascade else "does not charge parents"


def explain_cascade(limiter: SyncRateLimiter, entity: Entity, resource: str) -> str | None:
    """Return why the parent of an entity is charged or not; None where nothing but its ``cascade`` says that it is."""
    for who, where, cascade in (
        (entity.id, f" on {resource}", limiter.get_entity_cascade(entity.id, resource)),
        (entity.id, "", limiter.get_entity_cascade(entity.id)),
        (resource, "", limiter.get_resource_cascade(resource)),
    ):
        if cascade is not None:
            return f"{who} {spell_cascade(cascade)}{where} by its cascade policy"
    return None if entity.cascade else f"{entity.id} does not cascade"


def find_unknown(repository: SyncRepository, entity_id: str) -> list[str]:
    """Return a note if there is no such entity: nothing requires it to exist, but its id may be misspelt."""
    known = repository.get_entity(entity_id) is not None
    return [] if known else [f"no entity {entity_id!r} exists; this holds for whoever uses that id."]


def spell_reset(status: LimitStatus) -> str | None:
    """Return when the next window of a quota begins, by the clocks of its zone; None for a rate."""
    moment, calendar = status.resets_at, status.limit.calendar
    if moment is None or calendar is None:
        return None
    return f"{moment:%Y-%m-%d %H:%M}{f':{moment:%S}' if moment.second else ''} {calendar.tz}"


class TakenSlots(NamedTuple):
    """The slots of one limit that are taken at an instant; ``where`` are the cells that name the limit."""

    where: tuple[str, ...]
    slots: Sequence[SlotState]
    instant_ms: int


def show_slots(headers: tuple[str, ...], limits: Sequence[TakenSlots]) -> None:
    """Print the holders of slots of some limits, the longest first for each; nothing if there are none."""
    rows = [
        (*each.where, slot.number, *_spell_times(slot, each.instant_ms), slot.holder)
        for each in limits
        for slot in each.slots
    ]
    if rows:
        click.echo()
        print_grid(Grid((*headers, "slot", "held for", "expires in", "holder"), rows[:_SHOWN]))
    if len(rows) > _SHOWN:
        note(f"{len(rows) - _SHOWN:,} more slots are taken; --json shows all.")


def describe_slots(slots: Sequence[SlotState], instant_ms: int) -> list[dict[str, object]]:
    """Return slots for JSON, with the seconds for which they are held at an instant."""
    return [{**to_jsonable(slot), "held_seconds": (instant_ms - slot.since_ms) / MILLI} for slot in slots]


def _spell_times(slot: SlotState, instant_ms: int) -> tuple[str, str]:
    held, left = (max(0, math.ceil(ms / MILLI)) for ms in (instant_ms - slot.since_ms, slot.until_ms - instant_ms))
    return spell_duration(held), spell_duration(left)
