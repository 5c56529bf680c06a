"""Steps that settle, undo and renew what was charged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zae_limiter.records.level import ANCHOR

from . import adapter, normal, worlds
from .worlds import MILLI, Unused

if TYPE_CHECKING:
    from .adapter import Settled
    from .case import Case, Charge
    from .dice import Dice


def settle(case: Case, dice: Dice, given: dict[str, Any]) -> Any:
    """Settle a charge, or a part of it; its bucket may be another one by now."""
    charge = _pick_charge(case, dice)
    if charge is None:
        return "no charge"
    tokens = {name: need for name, need in charge.cost.items() if name not in charge.spot.terms.slot_names}
    delta = worlds.draw_delta(dice, tokens)
    current = case.terms if dice.chance(0.7) else None
    unused = _draw_unused(case, dice, charge, delta)
    given |= {"charge": charge, "delta": delta, "current": current, "unused": unused, "images": dict(case.images)}
    parts = adapter.settle(charge.receipt, delta, case.images, case.now_ms, current, unused)
    output: dict[str, Any] = {"of": adapter.describe_charges(charge.receipt, delta)}
    output["writes"], is_done = _apply(case, parts)
    if not is_done:
        again = adapter.settle(charge.receipt, delta, case.images, case.now_ms, current, unused, meets=True)
        output["again"], is_done = _apply(case, again)
    if is_done and dice.chance(0.3) and all(-amount <= charge.cost.get(name, 0) for name, amount in delta.items()):
        kept = {name: charge.cost.get(name, 0) + amount for name, amount in delta.items()}
        receipt = adapter.add_share(charge.receipt, delta)
        case.charges.append(charge._replace(receipt=receipt, cost={**charge.cost, **kept}))
    case.freed += [(slot.limit_name, slot.number) for slot in charge.slots]
    return output


def undo(case: Case, dice: Dice, given: dict[str, Any]) -> Any:
    """Undo a charge, with all that was planned together."""
    charge = _pick_charge(case, dice)
    if charge is None:
        return "no charge"
    given |= {"charge": charge, "images": dict(case.images)}
    return _apply(case, adapter.undo(charge.plans[0], charge.image, case.images, case.now_ms))[0]


def renew(case: Case, dice: Dice, given: dict[str, Any]) -> Any:
    """Renew slots of a record that are still held."""
    spot = case.spot(dice)
    image = case.images[spot.shard]
    held = [slot for charge in case.charges for slot in charge.slots if not slot.ended]
    lost = adapter.find_lost(image, held)
    mine = dice.some([slot for slot in held if slot not in lost], 0.8)
    given |= {"spot": spot, "image": image, "slots": [slot.ownership_token for slot in mine]}
    if not mine:
        return {"lost": [slot.ownership_token for slot in lost]}
    write, usage, due = adapter.renew(spot, image, mine, case.now_ms)
    committed = case.apply(write)
    if committed:
        adapter.note_renewed(due, case.now_ms)
    return {"write": normal.write(write), "usage": normal.writes(usage), "committed": committed, "due": len(due)}


def release(case: Case, dice: Dice, given: dict[str, Any]) -> Any:
    """Plan to release slots that may be gone, by themselves."""
    spot = case.spot(dice)
    slots = [slot for charge in case.charges for slot in charge.slots][:5]
    given |= {"spot": spot, "image": case.images[spot.shard], "slots": [slot.ownership_token for slot in slots]}
    return normal.write(adapter.release(spot, case.images[spot.shard], slots, case.now_ms, dice.pick((1, -1))))


def _pick_charge(case: Case, dice: Dice) -> Charge | None:
    """Return a charge that is settled now."""
    return case.charges.pop(dice.below(len(case.charges))) if case.charges else None


def _draw_unused(case: Case, dice: Dice, charge: Charge, delta: dict[str, int]) -> list[Unused]:
    """Return what of a give-back was drawn in advance, at times."""
    if charge.plans[0].lots or not dice.chance(0.15):
        return []
    found = []
    for name, amount in delta.items():
        image = case.images.get(charge.spot.shard, charge.image)
        anchor_ms = dice.pick((image[ANCHOR], image[ANCHOR], charge.image[ANCHOR]))
        size = min(-amount, dice.pick((MILLI, 3 * MILLI, -amount)))
        if size > 0:
            found.append(Unused(name, size, dice.pick((0, 500, 2 * MILLI, 50 * MILLI)), charge.now_ms, anchor_ms))
    return found


def _apply(case: Case, parts: list[Settled]) -> tuple[list[Any], bool]:
    """Apply the writes of a settlement, each for itself. Return them, and whether all were committed."""
    found, is_done = [], True
    for part in parts:
        committed = case.apply(part.write)
        is_done = is_done and committed
        described = {
            "write": normal.write(part.write),
            "usage": normal.writes(part.accruals),
            "alerts": normal.alerts(part.alerts),
            "committed": committed,
        }
        found.append({name: value for name, value in described.items() if value != []})
    return found, is_done
