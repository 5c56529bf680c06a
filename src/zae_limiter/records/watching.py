"""Watching thresholds: a change of a bucket gets the bounds by which one write alone crosses each of them."""

from __future__ import annotations

from ..core.alerts import PARTS, Alert, Crossing, cross_quota, cross_rate
from ..core.change import Change, Drawn
from ..core.tokens import TokenLimit
from .algebra import Image
from .level import ANCHOR, NEWEST, BucketLimits


def watch(level: BucketLimits, image: Image | None, change: Change, now_ms: int) -> tuple[Alert, ...]:
    """Guard a change that takes from a bucket last seen as ``image`` by its thresholds; return those that it crosses.

    A change that only gives back crosses nothing. Of a bucket that is kept under another limit nothing is watched until
    it is moved.
    """
    alerts: list[Alert] = []
    limits = level.token_limits if image is None else level.token_limits_of(image)
    now_ms = change.put.get(NEWEST, now_ms) if ANCHOR in change.put else now_ms
    for limit in level.limits:
        drawn = change.drawn.get(limit.name)
        if drawn is None or (levels := limits[limit.name].alert_levels) is None:
            continue
        mine = limits[limit.name]
        if mine.at.window in change.put:  # its window begins with this change
            mine = mine.begin(change.put[mine.at.window])
        at, capacity, calendar = mine.at, mine.rule.capacity, mine.rule.calendar
        crossing, left = _cross(change, mine, drawn, 0 if image is None else image.get(at.announced, 0), now_ms)
        if crossing.state is not None:
            if image is not None and at.announced in image:
                change.equals[at.announced] = image[at.announced]
            change.put[at.announced] = crossing.state
        used = (capacity - left) * limit.capacity // capacity
        stated = limit if calendar is None else limit.begin_window(calendar.phase_ms)
        thresholds = [levels.thresholds[place] / PARTS for place in crossing.crossed]
        whose = level.entity_id, level.resource, limit.name
        alerts += [Alert(*whose, threshold, used, stated, now_ms) for threshold in thresholds]
    return tuple(alerts)


def find_quiet_bounds(level: BucketLimits, image: Image, now_ms: int) -> dict[str, int]:
    """Return how much a charge has to leave of each limit with thresholds to cross none of them."""
    bounds = {}
    for name, limit in level.token_limits_of(image).items():
        if limit.alert_levels is not None:
            calendar, announced = limit.rule.calendar, 0
            if calendar is not None:
                announced = limit.alert_levels.count_announced(image[limit.at.announced], calendar.identify(now_ms))
            bounds[name] = limit.alert_levels.band(announced)[0]
    return bounds


def _cross(change: Change, limit: TokenLimit, drawn: Drawn, state: int, now_ms: int) -> tuple[Crossing, int]:
    """Narrow the bounds of a draw to the bands that it moves between; return what it crosses, and the level it leaves.

    A draw among others expects that these have taken all that its bounds allow.
    """
    assert limit.alert_levels is not None  # it is watched
    attr, (tokens, since, ceiling, since_after), calendar = limit.at.tokens, drawn, limit.rule.calendar
    since_after = since if since_after is None else since_after
    if attr in change.put:
        after: int = change.put[attr] + since_after
    else:
        low, high = change.bounds[attr]
        tokens, moved = max(low, min(high, tokens)), since_after + change.add.get(attr, 0)  # credits may give all of it
        after = tokens + moved
    if calendar is None:
        crossing = cross_rate(limit.alert_levels, min(ceiling, tokens + since), after)
    else:
        crossing = cross_quota(limit.alert_levels, after, state, calendar.identify(now_ms))
    if attr not in change.put:
        change.bound(attr, crossing.before[0] - since, crossing.before[1] - since)
        change.bound(attr, crossing.after[0] - moved, crossing.after[1] - moved)
    return crossing, after
