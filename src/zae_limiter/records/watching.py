"""Watching thresholds: a change of a bucket gets the bounds by which one write alone crosses each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..core.alerts import PARTS, Alert, cross_quota, cross_rate
from .bucket import carry_over, latest_instant, stored_rule
from .level import ANCHOR, NEWEST
from .parked import first_level

if TYPE_CHECKING:
    from ..core.alerts import Crossing
    from ..core.change import Change
    from ..core.limit import Limit
    from ..core.tokens import TokenLimit
    from .algebra import Image
    from .level import Level


def watch(level: Level, image: Image | None, change: Change, now_ms: int) -> tuple[Alert, ...]:
    """Guard a change that takes from a bucket last seen as ``image`` by its thresholds; return those that it crosses.

    A change that only gives back crosses nothing. Of a bucket that is kept under another limit nothing is watched until
    it is moved.
    """
    alerts: list[Alert] = []
    limits = level.token_limits if image is None else level.token_limits_of(image)
    now_ms = change.put.get(NEWEST, now_ms) if ANCHOR in change.put else now_ms
    for limit in level.limits:
        if limit.is_concurrency:
            continue
        mine = limits[limit.name]
        if mine.at.window in change.put:  # its window begins with this change
            mine = mine.begin(change.put[mine.at.window])
        if mine.marks is None or not _is_taken(change, image, mine):
            continue
        seen = _find_levels(level, image, change, limit.name, mine, now_ms)
        if seen is None:
            continue
        crossing = _cross(mine, image, seen, now_ms)
        if seen.is_added:
            change.bound(mine.at.tokens, crossing.before[0] - seen.since, crossing.before[1] - seen.since)
            change.bound(mine.at.tokens, crossing.after[0] - seen.change, crossing.after[1] - seen.change)
        if crossing.state is not None:
            if image is not None and mine.at.announced in image:
                change.equals[mine.at.announced] = image[mine.at.announced]
            change.put[mine.at.announced] = crossing.state
        alerts += _describe(level, limit, mine, crossing, seen.after, now_ms)
    return tuple(alerts)


def find_quiet_bounds(level: Level, image: Image, now_ms: int) -> dict[str, int]:
    """Return how much a charge has to leave of each limit with thresholds to cross none of them."""
    bounds = {}
    for name, limit in level.token_limits_of(image).items():
        if limit.marks is not None:
            calendar, announced = limit.rule.calendar, 0
            if calendar is not None:
                announced = limit.marks.count_announced(image[limit.at.announced], calendar.identify(now_ms))
            bounds[name] = limit.marks.band(announced)[0]
    return bounds


def _is_taken(change: Change, image: Image | None, limit: TokenLimit) -> bool:
    """Return whether a change takes something of a limit."""
    attr = limit.at.consumed
    before: int = 0 if image is None else image.get(attr, 0)
    after: int = change.put.get(attr, before)
    return change.add.get(attr, 0) > 0 or after > before


class _Levels(NamedTuple):
    """The level before a change and after it, as seen.

    ``since`` makes the level before of the tokens, and ``change`` the level after, if the change adds to them.
    """

    before: int
    after: int
    since: int = 0
    change: int = 0
    is_added: bool = False


def _find_levels(
    level: Level, image: Image | None, change: Change, name: str, limit: TokenLimit, now_ms: int
) -> _Levels | None:
    """Return what a change does to a limit; None if the bucket is kept under another limit, and stays so."""
    rule, attr, put = limit.rule, limit.at.tokens, change.put
    old = None if image is None else stored_rule(image, name, level.shard)
    if image is None or old is None:
        before = first_level(image, attr, rule, now_ms)
        return _Levels(before, put[attr] + rule.produced_between(put.get(ANCHOR, now_ms), now_ms))
    since = since_after = old.produced_between(image[ANCHOR], now_ms)
    ceiling = rule.capacity
    if ANCHOR in put:
        now_ms = latest_instant(image, now_ms)  # as `migrate` decides
        since_after = rule.produced_between(put[ANCHOR], now_ms)
        since, ceiling = carry_over(level, image, name, old, rule, now_ms)
    elif old != rule:
        return None
    if attr in put:
        return _Levels(min(ceiling, image[attr] + since), put[attr] + since_after)
    low, high = change.bounds[attr]
    tokens = max(low, min(high, image[attr]))  # a draw among others expects that these have taken since
    moved = since_after + change.add.get(attr, 0)  # all of it may come from credits
    return _Levels(min(ceiling, tokens + since), tokens + moved, since, moved, is_added=True)


def _cross(limit: TokenLimit, image: Image | None, seen: _Levels, now_ms: int) -> Crossing:
    assert limit.marks is not None  # it is watched
    calendar = limit.rule.calendar
    if calendar is None:
        return cross_rate(limit.marks, seen.before, seen.after)
    state = 0 if image is None else image.get(limit.at.announced, 0)
    return cross_quota(limit.marks, seen.after, state, calendar.identify(now_ms))


def _describe(level: Level, limit: Limit, mine: TokenLimit, crossing: Crossing, after: int, now_ms: int) -> list[Alert]:
    assert mine.marks is not None  # it is watched
    used = (mine.rule.capacity - after) * limit.capacity // mine.rule.capacity
    whose = (level.entity_id, level.resource, limit.name)
    if mine.rule.calendar is not None:
        limit = limit.begin_window(mine.rule.calendar.phase_ms)
    thresholds = [mine.marks.thresholds[place] / PARTS for place in crossing.crossed]
    return [Alert(*whose, threshold, used, limit, now_ms) for threshold in thresholds]
