"""Running a case: which steps it takes, and what comes out of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from zae_limiter.exceptions import CorruptRecordError, ValidationError

from . import adapter, charging, looking, normal, settling, upkeep
from .case import Case

if TYPE_CHECKING:
    from collections.abc import Callable

    from .dice import Dice

    StepKind: TypeAlias = Callable[[Case, Dice, dict[str, Any]], Any]

CASES, STEPS = 790, 30
"""How many cases there are, and the steps of each."""
_NEEDLESS = {charging.take, charging.create, upkeep.add_credit, looking.refuse, looking.show_statuses, settling.settle}
"""The steps that need no bucket; any other one becomes a `take` while there is none."""


class Step(NamedTuple):
    """One step: what it was, at which instant, with what given, and what came out."""

    name: str
    now_ms: int
    given: dict[str, Any]
    output: Any

    @property
    def line(self) -> str:
        """What came out, as one line."""
        return normal.line([self.name, self.output])


def run(number: int) -> list[Step]:
    """Return all steps of a case."""
    case = Case(number)
    return [_do_step(case, place) for place in range(STEPS)]


def _do_step(case: Case, place: int) -> Step:
    dice = case.begin_step(place)
    do = dice.weigh(_kinds(case))
    if not case.images and do not in _NEEDLESS:
        do = charging.take
    given: dict[str, Any] = {}
    output: Any
    try:
        output = do(case, dice, given)
    except (CorruptRecordError, ValidationError) as error:
        output = normal.error(error)
    except adapter.NewerConfig:
        output = {"error": "newer config"}
    return Step(do.__name__, case.now_ms, given, output)


def _kinds(case: Case) -> list[tuple[StepKind, float]]:
    """Return what can happen in a step of a case, and how often it does."""
    flavour = case.flavour
    return [
        (charging.take, 12),
        (charging.take_across, 20 * flavour.shards * (len(case.images) > 1)),
        (charging.charge, 3),
        (charging.migrate, 2),
        (charging.create, 0.7),
        (charging.draw_in_place, 1.5),
        (settling.settle, 6),
        (settling.undo, 0.8),
        (settling.renew, 6 * flavour.slots),
        (settling.release, 2 * flavour.slots),
        (upkeep.move_anchor, 0.4),
        (upkeep.stamp, 0.6),
        (upkeep.split, 5 * flavour.shards),
        (upkeep.add_credit, 5 * flavour.credits),
        (upkeep.crowd_credits, 0.8 * flavour.credits),
        (upkeep.fill_up, 0.7),
        (upkeep.book, 0.8),
        (upkeep.vanish, 0.3),
        (upkeep.age, 0.4),
        (looking.refuse, 3),
        (looking.show_statuses, 1),
        (looking.fit, 0.7),
        (looking.show_states, 0.8),
        (looking.show_facts, 0.8),
        (looking.inspect, 1),
    ]
