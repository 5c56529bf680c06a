"""Thresholds of a limit: which of them a draw crosses, and under which guards it is the only one to do so.

A threshold is a part of the capacity that is used, in thousandths; its *mark* is the highest level at which it is
reached. They divide the levels into bands. A draw that stays in its band is guarded by the ends of that, so draws
within a band commute; one that leaves it is guarded by the levels from which it does.

    rate     A draw crosses a mark that finds a level above it and leaves one at or below it. So a mark is armed again
             as soon as a draw finds more, and no two writes cross it without the level having risen in between.
    quota    Once per window and threshold. ``al`` in the bucket is the last that was crossed, ``window * 1000`` plus
             its thousandths. Who crosses raises it, guarded by what it was: of all who see a threshold reached, one
             writes. It only falls where a crossing is undone, and in a bucket that is filled up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from .limit import Limit
from .production import FAR

if TYPE_CHECKING:
    from datetime import datetime


PARTS = 1000
"""Thresholds are whole thousandths of the capacity."""


class Alert(NamedTuple):
    """A threshold of a limit that was crossed by a write of this process.

    Attributes:
        entity_id: The entity.
        resource: The resource.
        limit_name: The name of the limit.
        threshold: The part of the capacity, one of ``Limit.alerts``.
        used: The whole tokens that were used by then, as far as the writer knew.
        limit: The limit.
        instant_ms: The instant as of which it was crossed, in milliseconds since the epoch.
    """

    entity_id: str
    resource: str
    limit_name: str
    threshold: float
    used: int
    limit: Limit
    instant_ms: int

    @property
    def instant(self) -> datetime:
        """When it was crossed, in UTC."""
        from datetime import UTC, datetime

        return datetime.fromtimestamp(self.instant_ms / 1000, UTC)

    @property
    def resets_at(self) -> datetime | None:
        """When the next window of a quota begins, in its time zone; None for a rate."""
        calendar = self.limit.calendar
        return None if calendar is None else calendar.moment(calendar.start(calendar.index(self.instant_ms) + 1))


class AlertLevels(NamedTuple):
    """The thresholds of a limit in thousandths, rising, and the levels at which they are reached, in millitokens."""

    thresholds: tuple[int, ...]
    levels: tuple[int, ...]

    @classmethod
    def of(cls, alerts: tuple[float, ...], capacity: int) -> AlertLevels:
        """Return the alert_levels of ``Limit.alerts`` in a bucket of ``capacity`` millitokens."""
        thresholds = tuple(round(part * PARTS) for part in alerts)
        return cls(thresholds, tuple(find_mark(capacity, part) for part in thresholds))

    def count_reached(self, level: int) -> int:
        """Return how many thresholds are reached at a level."""
        return sum(level <= mark for mark in self.levels)

    def band(self, reached: int) -> tuple[int, int]:
        """Return the lowest and the highest level at which so many thresholds are reached."""
        levels = (FAR, *self.levels, -FAR)
        return levels[reached + 1] + 1, levels[reached]

    def count_announced(self, state: int, window: int) -> int:
        """Return how many thresholds ``state`` says were crossed in a window; all of them if it is of a later one."""
        last, part = divmod(state, PARTS)  # all of it counts as the beginning of the next window: it is the last
        if last > window:
            return len(self.thresholds)
        return sum(each <= part for each in self.thresholds) if last == window else 0


def find_mark(capacity: int, threshold: int) -> int:
    """Return the highest level at which so many thousandths of a capacity are used."""
    return capacity * (PARTS - threshold) // PARTS


class Crossing(NamedTuple):
    """A draw beside its thresholds: those that it crosses, and the bounds of the level before it and after it."""

    crossed: range
    before: tuple[int, int]
    after: tuple[int, int]
    state: int | None = None
    """What a quota that crosses puts into ``al``."""


def cross_rate(alert_levels: AlertLevels, before: int, after: int) -> Crossing:
    """Return what a draw of a rate crosses that is seen to take it from one level to another."""
    first, last = alert_levels.count_reached(before), alert_levels.count_reached(after)
    return Crossing(range(first, last), alert_levels.band(first), alert_levels.band(last))


def cross_quota(alert_levels: AlertLevels, after: int, state: int, window: int) -> Crossing:
    """Return what a draw of a quota crosses that leaves the level ``after``, where ``al`` is ``state``."""
    announced, reached = alert_levels.count_announced(state, window), alert_levels.count_reached(after)
    anywhere = (-FAR, FAR)
    if reached <= announced:  # as far as the next one that was not announced
        return Crossing(range(0), anywhere, (alert_levels.band(announced)[0], FAR))
    put = window * PARTS + alert_levels.thresholds[reached - 1]
    return Crossing(range(announced, reached), anywhere, alert_levels.band(reached), put)
