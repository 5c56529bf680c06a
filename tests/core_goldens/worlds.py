"""Limits, terms, costs and instants as cases have them. Nothing here asks the code under test."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from zae_limiter import Limit, ScheduleEntry

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .dice import Dice

START_MS = 1_740_000_000_000
"""19 February 2025: what happens then is past, so no later rule about clocks changes it."""
NAMES = ("rpm", "tpm", "usd", "parallel")
PRIORITIES = (None, None, "batch", "low")
MILLI = 1000
_TICKS = (
    (0, 6), (1, 3), (5, 2), (37, 2), (50, 1), (999, 2), (1_000, 2), (1_500, 2), (5_000, 2), (30_000, 2), (61_000, 2),
    (300_000, 1), (1_200_000, 1), (3_600_000, 1), (21_600_000, 0.7), (86_400_000, 0.7), (432_000_000, 0.4),
    (3_456_000_000, 0.2), (-1, 0.5), (-20, 0.7), (-1_500, 0.5), (-400_000, 0.3),
)  # fmt: skip
_ALERTS = ((0.8,), (0.5, 0.9), (0.1, 0.25, 1.0), (0.995,))
_PATTERNS = ("* 9-17 * * 1-5", "0-29 * * * *", "*/2 * * * *", "* * 1 * *", "30-59 0-11 * * *")
_ZONES = ("UTC", "UTC", "Europe/Berlin", "America/New_York")


class Flavour(NamedTuple):
    """How often a case has something: each is a probability."""

    name: str
    quotas: float = 0.3
    slots: float = 0.0
    soft: float = 0.1
    floors: float = 0.25
    alerts: float = 0.05
    schedules: float = 0.0
    credits: float = 0.0
    shards: float = 0.0
    crowds: float = 0.2
    changes: float = 0.12
    huge: float = 0.01


FLAVOURS = (
    Flavour("rates", quotas=0.0, crowds=0.5),
    Flavour("quotas", quotas=0.9),
    Flavour("soft", soft=0.8, credits=0.2),
    Flavour("alerts", alerts=0.9, shards=0.1, crowds=0.4),
    Flavour("schedules", schedules=0.7, credits=0.1),
    Flavour("slots", slots=0.7),
    Flavour("credits", credits=0.8, soft=0.2),
    Flavour("shards", shards=0.8, slots=0.2, credits=0.1),
    Flavour("changes", changes=0.5, slots=0.3, soft=0.2, alerts=0.2),
    Flavour("all", slots=0.25, soft=0.25, alerts=0.3, schedules=0.2, credits=0.3, shards=0.3, huge=0.05),
)


class Terms(NamedTuple):
    """What is in force for a bucket. ``since`` says when the config last changed a limit."""

    limits: tuple[Limit, ...]
    version: int | None = 1
    known_version: int = 1
    priority: str | None = None
    bypassed: bool = False
    parent_id: str | None = None
    cascade: bool = False
    lifetime_ms: int = 0
    usage_days: int = 0
    partition_writes: int = 0
    since: tuple[tuple[str, int], ...] = ()

    @property
    def slot_names(self) -> list[str]:
        """The concurrency limits."""
        return [limit.name for limit in self.limits if limit.is_concurrency]

    def complete(self, cost: Mapping[str, int]) -> dict[str, int]:
        """Return a cost with a slot of each concurrency limit that it does not name."""
        return {**cost, **{name: MILLI for name in self.slot_names if name not in cost}}


class Spot(NamedTuple):
    """One record of a bucket under some terms."""

    terms: Terms
    shard: int = 0
    shards: int = 1
    entity_id: str = "key"


class Asker(NamedTuple):
    """One of those who are served by a write, and the numbers by which it chooses slots."""

    cost: Mapping[str, int]
    holder: str
    chance: int
    salt: str
    order: int


class Crowd(NamedTuple):
    """What is known of others who write a record, and of slots: those freed lately, and an image from before."""

    names: tuple[str, ...] = ()
    seen_ms: int = 0
    lost: int = 0
    freed: tuple[tuple[str, int], ...] = ()
    before: Mapping[str, Any] | None = None


class Unused(NamedTuple):
    """Tokens of a give-back that were drawn in advance and never granted."""

    name: str
    amount: int
    room: int
    drawn_ms: int
    anchor_ms: int


def tick(dice: Dice, now_ms: int) -> int:
    """Return the instant of the next step: often the same, at times long after, rarely before."""
    return now_ms + dice.weigh(_TICKS)


def draw_terms(dice: Dice, flavour: Flavour) -> Terms:
    """Return the terms with which a case begins."""
    limits = draw_limits(dice, flavour)
    parent = dice.pick((None, None, "project"))
    return Terms(
        limits,
        priority=dice.pick(PRIORITIES),
        bypassed=dice.chance(0.03),
        parent_id=parent,
        cascade=parent is not None and dice.chance(0.7),
        lifetime_ms=dice.pick((0, 60_000, 3_600_000, 86_400_000)),
        usage_days=dice.pick((0, 90, 90)),
        partition_writes=dice.pick((0, 0, 10)) if not flavour.shards else dice.pick((0, 5, 10)),
    )


def change_terms(dice: Dice, flavour: Flavour, terms: Terms, now_ms: int) -> Terms:
    """Return other terms: limits, the version alone, a parent, a priority or how long things are kept."""
    what = dice.weigh((("limits", 5), ("version", 2), ("given", 1), ("parent", 1), ("priority", 3), ("kept", 2)))
    if what == "limits":
        limits = draw_limits(dice, flavour)
        version = terms.known_version + 1
        since = tuple(
            (limit.name, now_ms - dice.pick((0, 0, 700, 60_000, -50))) for limit in limits if dice.chance(0.7)
        )
        return terms._replace(limits=limits, version=version, known_version=version, since=since)
    if what == "version":
        version = terms.known_version + 1
        return terms._replace(version=version, known_version=version)
    if what == "given":
        return terms._replace(version=None, limits=draw_limits(dice, flavour), since=())
    if what == "parent":
        return terms._replace(parent_id=dice.pick((None, "project", "team")), cascade=dice.chance(0.5))
    if what == "priority":
        return terms._replace(priority=dice.pick(PRIORITIES), bypassed=dice.chance(0.1))
    lifetime_ms, usage_days = dice.pick((0, 60_000, 86_400_000)), dice.pick((0, 90))
    return terms._replace(lifetime_ms=lifetime_ms, usage_days=usage_days, partition_writes=dice.pick((0, 10)))


def draw_limits(dice: Dice, flavour: Flavour) -> tuple[Limit, ...]:
    """Return one to four limits."""
    chosen = dice.some(NAMES, 0.5) or [dice.pick(NAMES)]
    return tuple(draw_limit(dice, flavour, name) for name in sorted(chosen))


def draw_limit(dice: Dice, flavour: Flavour, name: str) -> Limit:
    """Return a limit of some kind."""
    more: dict[str, Any] = {"soft": dice.chance(flavour.soft)}
    if dice.chance(flavour.floors):
        more["floors"] = {"batch": dice.pick((0.1, 0.3, 0.5)), "low": dice.pick((0.0, 0.75))}
    if dice.chance(flavour.slots):
        limit = _draw_slots(dice, name, more)
    else:
        if dice.chance(flavour.alerts):
            more["alerts"] = dice.pick(_ALERTS)
        draw = _draw_quota if dice.chance(flavour.quotas) else _draw_rate
        limit = draw(dice, flavour, name, more)
    return _schedule(dice, limit) if dice.chance(flavour.schedules) else limit


def _draw_slots(dice: Dice, name: str, more: dict[str, Any]) -> Limit:
    slots, ttl = dice.pick((1, 2, 3, 5, 12, 60, 90)), dice.pick((1, 5, 60))
    return Limit.concurrent(name, slots, ttl=ttl, max_hold=dice.pick((None, None, ttl, 2 * ttl)), **more)


def _draw_rate(dice: Dice, flavour: Flavour, name: str, more: dict[str, Any]) -> Limit:
    if dice.chance(flavour.huge):
        return Limit.per_second(name, 1_000_000_000, **more)
    capacity = dice.pick((1, 2, 7, 10, 100, 1_000, 100_000))
    amount = dice.pick((1, 3, capacity, max(1, capacity // 3)))
    return Limit.custom(name, capacity, amount, dice.pick((1, 1, 3, 7, 60, 60, 3_600, 86_400)), **more)


def _draw_quota(dice: Dice, flavour: Flavour, name: str, more: dict[str, Any]) -> Limit:
    capacity, windows = dice.pick((1, 5, 10, 100, 1_000)), dice.below(9)
    more["rollover"] = dice.pick((0, 0, 0, 3, capacity))
    if windows == 0:
        more["reset_after"] = timedelta(milliseconds=dice.pick((1_500, 60_000, 3_600_000)))
    elif windows == 1:
        more["reset_after"] = timedelta(days=1)
    elif windows == 2:
        more |= {"cron": dice.pick(("0 9 * * 1-5", "*/5 * * * *")), "tz": dice.pick(_ZONES)}
    elif windows == 3:
        more["every"] = timedelta(seconds=dice.pick((30, 300)))
    else:
        more |= {"every": dice.pick(("hour", "day", "week", "month", "year")), "tz": dice.pick(_ZONES)}
        if more["every"] in ("day", "month"):
            more["at"] = dice.pick((None, "02:30"))
    return Limit.quota(name, capacity, **more)


def _schedule(dice: Dice, limit: Limit) -> Limit:
    """Return a limit with a schedule of one or two entries."""
    tz, patterns = dice.pick(_ZONES), dice.some(_PATTERNS, 0.3)[:2] or [dice.pick(_PATTERNS)]
    entries = []
    for pattern in patterns:
        numbers: dict[str, Any] = {"capacity": dice.pick((1, 4, 50, limit.capacity * 2))}
        if dice.chance(0.4):
            numbers = {"scale": dice.pick((0.1, 0.5, 2, 3.5))}
        elif limit.kind == "rate" and dice.chance(0.4):
            numbers |= {"refill_amount": dice.pick((1, 20)), "refill_period_seconds": dice.pick((1, 90))}
        if limit.is_concurrency and "scale" not in numbers:
            numbers["capacity"] = min(numbers["capacity"], 100)
        entries.append(ScheduleEntry(pattern, tz, **numbers))
    return limit.with_schedule(entries)


def draw_cost(dice: Dice, terms: Terms) -> dict[str, int]:
    """Return what a request costs: of most limits something, of some nothing, and some it does not name."""
    limits = dice.some(terms.limits, 0.8) or list(terms.limits[:1])
    cost = {limit.name: draw_amount(dice, limit) for limit in limits}
    if dice.chance(0.03):
        cost["other"] = 5 * MILLI
    return cost


def draw_amount(dice: Dice, limit: Limit) -> int:
    """Return a cost of one limit."""
    capacity = limit.capacity
    if limit.is_concurrency:
        return min(dice.pick((1, 1, 1, 1, 0, 2, 3, capacity, capacity + 1)), 50) * MILLI
    if dice.chance(0.02):
        return dice.below(capacity * MILLI)
    return dice.pick((0, 1, 1, 1, 2, 3, capacity // 4, capacity // 2, capacity - 1, capacity, capacity + 1)) * MILLI


def draw_delta(dice: Dice, cost: Mapping[str, int]) -> dict[str, int]:
    """Return how a charge is corrected: some of it back, all of it, or more on top."""
    found = {}
    for name, taken in cost.items():
        back = -dice.below(taken // MILLI + 1) * MILLI
        amount = dice.pick((0, -taken, back, back, -taken // 2, MILLI, 5 * MILLI, taken, 40 * taken))
        if amount:
            found[name] = amount
    return found


class View(NamedTuple):
    """One bucket of a chain as it was last seen: its records, and the end of its limits' names in costs.

    ``held`` are tokens that the process has drawn in advance: how many, how many of them were there when it drew, how
    many are left, and how many milliseconds ago.
    """

    records: tuple[tuple[Spot, dict[str, Any] | None], ...]
    qualifier: str = ""
    held: tuple[int, int, int, int] | None = None
