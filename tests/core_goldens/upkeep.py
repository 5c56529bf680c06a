"""Steps that change the bucket beside charges."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zae_limiter.records.algebra import TTL
from zae_limiter.records.level import BOOKINGS, CHANGES, CREDITS, HOUR_END, MADE, NEWEST, SHARDS

from . import adapter, normal
from .worlds import MILLI

if TYPE_CHECKING:
    from .case import Case
    from .dice import Dice

_FOR_EVER = 2**62


def move_anchor(case: Case, dice: Dice, given: dict[str, Any]) -> Any:
    """Move the anchor of a record."""
    shard = case.spot(dice).shard
    at_ms = case.now_ms - dice.pick((0, 0, 5_000, -100))
    given |= {"image": case.images[shard], "as of": at_ms}
    write = adapter.move_anchor(shard, case.images[shard], at_ms, case.now_ms)
    return [normal.write(write), case.apply(write)]


def stamp(case: Case, dice: Dice, given: dict[str, Any]) -> Any:
    """Stamp a record with a config version, which may be newer than all terms."""
    shard, version = case.spot(dice).shard, case.terms.known_version + dice.pick((-1, 0, 0, 1))
    given |= {"image": case.images[shard], "version": version}
    write = adapter.stamp(shard, case.images[shard], version)
    return [normal.write(write), write is not None and case.apply(write)]


def split(case: Case, dice: Dice, given: dict[str, Any]) -> Any:
    """Split a record in two, up to four in all; later ones are only planned."""
    spot = case.spot(dice)
    image = case.images[spot.shard]
    given |= {"spot": spot, "image": image}
    writes = adapter.split(spot, image, case.now_ms)
    if image.get(SHARDS, 1) < 4 and all(len(each.guards) == 0 or case.apply(each) for each in writes):
        case.apply(writes[1])
    return normal.writes(writes)


def add_credit(case: Case, dice: Dice, given: dict[str, Any]) -> Any:
    """Add credit to some limits, which expires or not."""
    shard = min(case.images, default=0)
    names = dice.some([limit.name for limit in case.terms.limits if not limit.is_concurrency], 0.7) or ["gone"]
    amounts = {name: dice.pick((1, 5, 100, 2**51 // MILLI)) * MILLI for name in names}
    hour = case.now_ms - case.now_ms % 3_600_000
    expires_ms = dice.pick((_FOR_EVER, hour + 3_600_000, hour + 7_200_000, case.now_ms + 1_500, hour + 90_000_000))
    image = case.images.get(shard)
    given |= {"image": image, "amounts": amounts, "expires": expires_ms}
    write = adapter.add_credit(shard, image, amounts, expires_ms, case.now_ms, case.serial)
    return [normal.write(write), case.apply(write)]


def crowd_credits(case: Case, dice: Dice, given: dict[str, Any]) -> Any:
    """Add credit with so many expiries that a limit has no room for another, unless a lot is empty by then."""
    shard = min(case.images, default=0)
    names = [limit.name for limit in case.terms.limits if not limit.is_concurrency]
    amounts, output = {dice.pick(names or ["gone"]): MILLI}, None
    for place in range(1, dice.pick((4, 17, 18))):
        expires_ms, image = case.now_ms + 60_000 * place, case.images.get(shard)
        if place == 17 and image is not None and dice.chance(0.7):
            spent = next((attr for attr in image if attr.startswith("lot_")), CREDITS)
            case.images[shard] = image = {**image, spent: 0}
        write = adapter.add_credit(shard, image, amounts, expires_ms, case.now_ms, case.serial)
        case.apply(write)
        output = normal.write(write)
    given |= {"amounts": amounts}
    return output


def fill_up(case: Case, dice: Dice, given: dict[str, Any]) -> Any:
    """Fill up some or all limits of a record, as a reset does."""
    shard = case.spot(dice).shard
    names = None if dice.chance(0.6) else dice.some([limit.name for limit in case.terms.limits], 0.6)
    given |= {"image": case.images[shard], "names": names, "limits": case.terms.limits}
    output: dict[str, Any] = {}
    moved = adapter.prepare_filling(shard, case.images[shard], case.terms.limits, case.now_ms)
    output["prepared"] = [normal.write(moved), moved is not None and case.apply(moved)]
    before = case.images[shard]
    write, gains = adapter.fill_up(shard, before, names, case.now_ms)
    output["filled"] = [normal.write(write), case.apply(write), dict(gains)]
    more = adapter.free_more(shard, before, case.images[shard], names)
    output["freed"] = [normal.write(more), more is not None and case.apply(more)]
    return output


def book(case: Case, dice: Dice, given: dict[str, Any]) -> Any:
    """Book the usage of a record, its hour closed or left open."""
    shard = case.spot(dice).shard
    image = case.images[shard]
    given |= {"image": image}
    output: list[Any] = [adapter.is_open(image)]
    for name in dice.some(("closed", "open"), 0.7):
        if name == "open" and HOUR_END not in image:
            continue
        write, usage = (adapter.book if name == "closed" else adapter.book_seen)(shard, image, 90)
        output.append([name, normal.write(write), normal.writes(usage), case.apply(write) if dice.chance(0.5) else 0])
    return output


def vanish(case: Case, dice: Dice, given: dict[str, Any]) -> Any:
    """Have the bucket deleted, as an eviction does."""
    case.images = {}
    return "deleted"


def age(case: Case, dice: Dice, given: dict[str, Any]) -> Any:
    """Make records such as earlier versions wrote: without a ledger, the instant of their making, or an expiry."""
    gone = dice.pick(((MADE, NEWEST), (HOUR_END, CHANGES, BOOKINGS), (TTL,)))
    for shard, image in case.images.items():
        case.images[shard] = {attr: value for attr, value in image.items() if attr not in gone}
    return list(gone)
