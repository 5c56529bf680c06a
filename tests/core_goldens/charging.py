"""Steps that charge the bucket, or plan to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import adapter, normal, worlds
from .case import Case, Charge
from .worlds import MILLI, Asker, Crowd, Spot

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zae_limiter.records.algebra import Image

    from .adapter import Planned
    from .dice import Dice


def take(case: Case, dice: Dice, given: dict[str, Any]) -> Any:
    """Take a cost from one record, for one or several, as it is known or as it was some steps ago."""
    spot = case.spot(dice)
    image = case.images.get(spot.shard)
    if image is not None and dice.chance(case.flavour.crowds / 3):
        image = case.older_image(dice, spot.shard) or image
    askers = _draw_askers(case, dice)
    cost = _add_up([asker.cost for asker in askers])
    crowd, spends_credits = _draw_crowd(case, dice, spot, cost), dice.chance(0.8)
    if dice.chance(0.03):
        spot = spot._replace(terms=spot.terms._replace(known_version=0))
    given |= {"spot": spot, "image": image, "cost": cost, "crowd": crowd, "askers": len(askers)}
    planned = adapter.plan(spot, image, cost, case.now_ms, crowd, askers, spends_credits, case.serial)
    output = _describe(planned)
    if planned is None:
        return output
    output["committed"] = case.apply(planned.write)
    if output["committed"]:
        output["shown"] = _note(case, dice, spot, planned, askers)
    elif dice.chance(0.5):
        output["again"] = _describe(adapter.plan_again(planned, case.images.get(spot.shard), case.now_ms))
    return output


def take_across(case: Case, dice: Dice, given: dict[str, Any]) -> Any:
    """Take a cost from any records of the bucket, or from several of them."""
    asker = _draw_asker(case, dice, 0)
    shards = sorted(case.images)
    spots, images = [case.spot_of(shard) for shard in shards], [case.images[shard] for shard in shards]
    given |= {"spots": spots, "images": images, "cost": asker.cost}
    plans = adapter.plan_across(spots, images, asker, case.now_ms, dice.chance(0.3))
    if plans is None:
        return None
    found = [_describe(planned) | {"committed": case.apply(planned.write)} for planned in plans]
    if not all(described["committed"] for described in found):
        return found
    spots = [case.spot_of(planned.shard) for planned in plans]
    images = [case.images[planned.shard] for planned in plans]
    for planned, image in zip(plans, images, strict=True):
        adapter.hold(planned, image, case.now_ms)
    receipt = adapter.receive(spots, plans, asker.cost, images, case.now_ms, {})
    case.charges.append(Charge(spots[0], plans, receipt, asker.cost, images[0], case.now_ms))
    return [found, adapter.read_receipt(receipt)]


def charge(case: Case, dice: Dice, given: dict[str, Any]) -> Any:
    """Charge a record as it is, by itself: None if it has to be migrated."""
    spot, cost = case.spot(dice), worlds.draw_cost(dice, case.terms)
    image = case.images[spot.shard]
    crowd, changes, spends = _draw_crowd(case, dice, spot, cost), dice.pick((1, 1, 3, 0)), dice.chance(0.8)
    given |= {"spot": spot, "image": image, "cost": cost, "crowd": crowd}
    if not adapter.can_charge(spot, image, case.now_ms):
        return "to be migrated"
    return normal.write(adapter.charge(spot, image, cost, case.now_ms, crowd, changes, spends))


def migrate(case: Case, dice: Dice, given: dict[str, Any]) -> Any:
    """Migrate a record, whether it needs that or not; at times in earnest."""
    spot, cost = case.spot(dice), worlds.draw_cost(dice, case.terms) if dice.chance(0.8) else {}
    image = case.images[spot.shard]
    given |= {"spot": spot, "image": image, "cost": cost}
    write = adapter.migrate(spot, image, cost, case.now_ms, dice.pick((1, 1, 2)), dice.chance(0.8))
    if write is not None and dice.chance(0.3):
        case.apply(write)
    return normal.write(write)


def create(case: Case, dice: Dice, given: dict[str, Any]) -> Any:
    """Plan to make a bucket beside the one that there may be."""
    spot, cost = Spot(case.terms), worlds.draw_cost(dice, case.terms)
    given |= {"spot": spot, "cost": cost}
    return normal.write(adapter.first_charge(spot, cost, case.now_ms, dice.pick((1, 2)), case.serial))


def draw_in_place(case: Case, dice: Dice, given: dict[str, Any]) -> Any:
    """Draw a cost in place, and settle it there, or an earlier charge."""
    spot, cost = case.spot(dice), worlds.draw_cost(dice, case.terms)
    image = case.images[spot.shard]
    given |= {"spot": spot, "image": image, "cost": cost}
    after = adapter.draw_in_place(spot, image, cost, case.now_ms)
    if after is None:
        return None
    charged, charged_ms = after, case.now_ms
    if case.charges and dice.chance(0.5):
        earlier = dice.pick(case.charges)
        charged, charged_ms, cost = earlier.image, earlier.now_ms, {**earlier.cost}
    delta = worlds.draw_delta(dice, {name: need for name, need in cost.items() if name != "other"})
    given |= {"charged": charged, "charged_ms": charged_ms, "delta": delta}
    settled = adapter.settle_in_place(spot, after, charged, charged_ms, delta, case.now_ms)
    return [_difference(image, after), None if settled is None else _difference(after, settled)]


def _difference(before: Image, after: Image) -> dict[str, Any]:
    """Return the attributes that have changed."""
    return {attr: value for attr, value in after.items() if before.get(attr) != value}


def _draw_askers(case: Case, dice: Dice) -> list[Asker]:
    return [_draw_asker(case, dice, place) for place in range(dice.pick((1, 1, 1, 1, 1, 2, 3)))]


def _draw_asker(case: Case, dice: Dice, place: int) -> Asker:
    cost = case.terms.complete(worlds.draw_cost(dice, case.terms))
    order = case.serial * 10 + place
    return Asker(cost, dice.pick(("", "worker", "a.b")), dice.below(2**32), f"{dice.below(2**32):08x}", order)


def _draw_crowd(case: Case, dice: Dice, spot: Spot, cost: Mapping[str, int]) -> Crowd:
    """Return what is known of others: at times that they write some of the limits."""
    names: tuple[str, ...] = ()
    lost = 0
    if dice.chance(case.flavour.crowds):
        names, lost = tuple(dice.some(sorted(cost), 0.7)), dice.pick((0, 1, 1, 20))
    before = case.older_image(dice, spot.shard) if dice.chance(0.2) else None
    return Crowd(names, case.now_ms - dice.pick((0, 0, 3, 40, 100, 5_000)), lost, tuple(case.freed[-4:]), before)


def _add_up(costs: list[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for cost in costs:
        for name, need in cost.items():
            total[name] = total.get(name, 0) + need
    return total


def _describe(planned: Planned | None) -> dict[str, Any]:
    if planned is None:
        return {"write": None}
    found = {
        "write": normal.write(planned.write),
        "usage": normal.writes(planned.accruals),
        "alerts": normal.alerts(planned.alerts),
        "lots": planned.lots,
        "slots": [[slot.limit_name, slot.number, slot.ownership_token, slot.until_ms] for slot in planned.slots],
    }
    return {name: value for name, value in found.items() if value or name == "write"}


def _note(case: Case, dice: Dice, spot: Spot, planned: Planned, askers: list[Asker]) -> list[Any]:
    """Keep the charge of each asker, to be settled later. Return what they are shown."""
    image = case.images[spot.shard]
    adapter.hold(planned, image, case.now_ms)
    case.freed = [slot for slot in case.freed if slot not in [(each.limit_name, each.number) for each in planned.slots]]
    shown: list[Any] = []
    later: dict[str, int] = {}
    if dice.chance(0.1):
        later = dict.fromkeys(askers[0].cost, 2 * MILLI)
    for place, asker in enumerate(reversed(askers)):
        mine = planned
        if place + 1 < len(askers):
            planned, mine = adapter.divide(planned, asker.cost)
        receipt = adapter.receive([spot], [mine], asker.cost, [image], case.now_ms, later)
        shown.append(adapter.read_receipt(receipt) | {"lots": mine.lots, "lots_later": mine.lots_later})
        case.charges.append(Charge(spot, [mine], receipt, asker.cost, image, case.now_ms))
        later = _add_up([later, asker.cost])
    return shown
