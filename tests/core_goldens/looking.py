"""Steps that look at the bucket and change nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zae_limiter.records.algebra import TTL

from . import adapter, normal, worlds
from .worlds import MILLI, View

if TYPE_CHECKING:
    from zae_limiter.records.algebra import Image

    from .case import Case
    from .dice import Dice

_TEXTS = (
    "x",
    "",
    "day@UTC",
    "day@Nowhere",
    "cron(* * *)@UTC",
    "1,2,3",
    "5,5,0,1,1000,1000,0,,",
    "5,5,0,1,1,1,1,,day@UTC",
)
_DAMAGES: tuple[Any, ...] = (None, 1.5, True, -1, 0, 2**62, 2**63, *_TEXTS)
_FOREIGN = (
    *("s_parallel_x", "s_parallel_3", "f_parallel_3", "lot_rpm_x", "lot_rpm_5", "lots"),
    *("b_rpm_ca", "b_rpm_ca", "b_rpm_pt", "b_rpm_pt", "b_rpm_tl", "b_rpm_ws"),
)


def refuse(case: Case, dice: Dice, given: dict[str, Any]) -> Any:
    """Ask why a cost is refused, and when it fits."""
    views, cost = _draw_views(case, dice), case.terms.complete(worlds.draw_cost(dice, case.terms))
    cost = _qualify(cost, views)
    given |= {"views": views, "cost": cost}
    return [
        normal.refusal(adapter.refusal(views, cost, case.now_ms)),
        adapter.wait_for(views, cost, case.now_ms),
    ]


def show_statuses(case: Case, dice: Dice, given: dict[str, Any]) -> Any:
    """Ask for the status of every limit."""
    views, cost = _draw_views(case, dice), worlds.draw_cost(dice, case.terms)
    cost = _qualify(cost, views)
    given |= {"views": views, "cost": cost}
    return [normal.status(status) for status in adapter.statuses(views, cost, case.now_ms)]


def fit(case: Case, dice: Dice, given: dict[str, Any]) -> Any:
    """Ask which of several costs fit, one after the other."""
    views = _draw_views(case, dice)
    costs = [_qualify(worlds.draw_cost(dice, case.terms), views) for _ in range(4)]
    given |= {"views": views, "costs": costs}
    return adapter.find_fitting(views, costs, case.now_ms)


def show_states(case: Case, dice: Dice, given: dict[str, Any]) -> Any:
    """Ask for what is stored, and until when it has to be."""
    cost = worlds.draw_cost(dice, case.terms)
    given |= {"images": dict(case.images), "cost": cost}
    ends = []
    for shard, image in sorted(case.images.items()):
        expiring = {**image, TTL: case.now_ms // 1000}
        ends.append([shard, adapter.full_at(image), adapter.required_expiry(expiring), adapter.required_expiry(image)])
    return {
        "states": [repr(state) for state in adapter.describe_states(case.images, case.now_ms)],
        "ends": ends,
        "balances": adapter.describe_balances(case.terms, case.images, cost, case.now_ms),
    }


def show_facts(case: Case, dice: Dice, given: dict[str, Any]) -> Any:
    """Ask for what further use is made of a record's numbers."""
    spot, cost = case.spot(dice), worlds.draw_cost(dice, case.terms)
    image, before = case.images[spot.shard], case.older_image(dice, spot.shard)
    given |= {"spot": spot, "image": image, "before": before, "cost": cost}
    found = adapter.facts(spot, image, before, cost, case.now_ms)
    return found | {"merged": adapter.merge_slots(case.images, dice.some(case.terms.slot_names, 0.2))}


def inspect(case: Case, dice: Dice, given: dict[str, Any]) -> Any:
    """Ask whether a record is sound that was damaged, mostly."""
    image: Image = dict(case.images[case.spot(dice).shard])
    for _ in range(dice.pick((0, 1, 1, 1, 2))):
        numbers = sorted(attr for attr, value in image.items() if not attr.startswith("GSI"))
        attr, value = dice.pick((*numbers, *_FOREIGN)), dice.pick(_DAMAGES)
        image[attr] = value
        if value is None:
            del image[attr]
    given |= {"image": image}
    adapter.inspect(image)
    return "sound"


def _draw_views(case: Case, dice: Dice) -> list[View]:
    """Return what was last seen of the bucket, and at times of one above it."""
    shards = sorted(case.images)
    if dice.chance(0.2):
        shards = shards[:1]
    qualifier = dice.pick(("", "", "", "@model"))
    held = None
    if dice.chance(0.1):
        size = dice.pick((5, 40)) * MILLI
        held = (size, dice.below(size), dice.below(size), dice.pick((0, 700, 60_000, -5)))
    records = [(case.spot_of(shard), case.images[shard]) for shard in shards]
    views = [View(tuple(records) or ((case.spot_of(0), None),), qualifier, held)]
    if dice.chance(0.4):
        above = case.spot_of(0)._replace(entity_id="project", shards=1)
        image = case.older_image(dice, 0) if dice.chance(0.7) else None
        if image is not None:
            above = above._replace(shards=image.get("shard_count", 1))
        views.append(View(((above, image),), qualifier))
    return views


def _qualify(cost: dict[str, int], views: list[View]) -> dict[str, int]:
    """Return a cost that names limits as the views do."""
    return {name + views[0].qualifier: need for name, need in cost.items()}
