"""Slots of concurrency limits as they are shown to people: who holds which, and for how long."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from ..core.errors import spell_duration
from ..core.production import MILLI
from .grid import Grid
from .output import note, print_grid, to_jsonable

if TYPE_CHECKING:
    from ..core.reports import SlotState

_SHOWN = 20
"""How many slots are shown to people; JSON has all of them."""


class TakenSlots(NamedTuple):
    """The slots of one limit that are taken at an instant; ``where`` are the cells that name the limit."""

    where: tuple[str, ...]
    slots: Sequence[SlotState]
    instant_ms: int


def show_slots(headers: tuple[str, ...], limits: Sequence[TakenSlots]) -> None:
    """Print who holds slots of some limits, the longest first for each; nothing if nobody does."""
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
