"""The slots that charges have taken: holding, renewing and releasing them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zae_limiter.core.change import Change
from zae_limiter.records import charging, ledger, pressure, slots as slotting
from zae_limiter.records.slot_table import SlotTable

from .levels import Planned, Slot, level_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zae_limiter.records.algebra import Image, Write

    from ..worlds import Spot


def hold(planned: Planned, image: Image, now_ms: int) -> None:
    """Note how many slots were in flight right after a charge took some of them."""
    taken = slotting.find_taken(image, now_ms)
    for slot in planned.slots:
        slot.in_flight = len(taken.get(slot.limit_name, ()))


def find_lost(image: Image, slots: Sequence[Slot]) -> list[Slot]:
    """Return which slots a record does not have any more as they were taken."""
    return [slot for slot in slots if not slot.is_ours(image)]


def renew(spot: Spot, image: Image, slots: Sequence[Slot], now_ms: int) -> tuple[Write, tuple[Write, ...], list[Slot]]:
    """Return the write that renews those slots that are due, the usage that it books, and these slots."""
    level = level_of(spot, now_ms)
    due = [slot for slot in slots if slot.is_due(now_ms, now_ms)]
    change = Change()
    slotting.renew_slots(slotting.SeenSlots(image, SlotTable.parse(image), now_ms), change, due)
    if level.partition_writes:
        pressure.count(level, image, now_ms, change.put, change.add)
    change.expires_ms = now_ms + level.lifetime_ms if charging.is_expiring(level, image) else None
    write, accruals = ledger.with_usage(level, image, charging.write_of(change, level.key, image), now_ms)
    return write, accruals, due


def note_renewed(slots: Sequence[Slot], now_ms: int) -> None:
    """Note that a write has renewed slots."""
    for slot in slots:
        slot.until_ms, slot.counted_ms = slot.renewed_until(now_ms), now_ms


def release(spot: Spot, image: Image, slots: Sequence[Slot], now_ms: int, changes: int) -> Write:
    """Return the write that frees slots and does nothing else."""
    level = level_of(spot, now_ms)
    change = Change()
    seen = slotting.SeenSlots(image, SlotTable.parse(image), now_ms)
    slotting.release_slots(level, seen, change, slots, changes)
    return charging.write_of(change, level.key, image)
