"""Cron expressions: the local times at which they fire, each with a number.

An expression fires at the same minutes of every day that it matches. Which days of a year these are depends on the
weekday of New Year's Day and on February alone, so there are fourteen kinds of years, and after 400 years all begins
anew. So the days before any date are counted without looking at them.
"""

from __future__ import annotations

from bisect import bisect_right
from calendar import isleap
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from .validation import MissingCronsim, ValidationError

if TYPE_CHECKING:
    from cronsim import CronSim

_FIRST_YEAR = 1970
_CYCLE_YEARS = 400
_DAY_MINUTES = 1440
_LONGEST_DAYS = 10 * 366
_FORMS = "five fields: minute, hour, day of month, month, day of week, e.g. '0 9 * * 1-5'"


class Cron:
    """The local times of one expression; `parse_cron` keeps those that are in use."""

    def __init__(self, expression: str) -> None:
        simulated = _simulate(expression)
        self.minutes = tuple(sorted(60 * hour + minute for hour in simulated.hours for minute in simulated.minutes))
        """The minutes of a day at which it fires."""
        self._minutes = frozenset(self.minutes)
        kinds: dict[tuple[int, bool], tuple[int, ...]] = {}
        self._years: list[tuple[int, ...]] = []
        """For each year of a cycle: its matching days, counted from New Year's Day."""
        for year in range(_FIRST_YEAR, _FIRST_YEAR + _CYCLE_YEARS):
            kind = date(year, 1, 1).weekday(), isleap(year)
            if kind not in kinds:
                kinds[kind] = _find_days(simulated, year)
            self._years.append(kinds[kind])
        self._days_before = list(accumulate(map(len, self._years), initial=0))
        """The matching days before each year of a cycle."""
        self.longest_minutes = self._find_longest(expression)
        """The longest time between two firings, by a clock that is never changed."""

    def matches_day(self, day: date) -> bool:
        """Return whether it fires on a day."""
        year = self._years[(day.year - _FIRST_YEAR) % _CYCLE_YEARS]
        place = bisect_right(year, _day_of_year(day)) - 1
        return place >= 0 and year[place] == _day_of_year(day)

    def matches(self, day: date, minute: int) -> bool:
        """Return whether it fires at a local time."""
        return minute in self._minutes and self.matches_day(day)

    def covers(self, other: Cron) -> bool:
        """Return whether it fires at every local time at which another one fires."""
        years = zip(self._years, other._years, strict=True)
        return other._minutes <= self._minutes and all({*theirs} <= {*own} for own, theirs in {*years})

    @property
    def is_always(self) -> bool:
        """Whether it fires in every minute."""
        return self.longest_minutes == 1

    def number(self, day: date, minute: int) -> int:
        """Return the number of the last firing at a local time or before it."""
        cycle, year = divmod(day.year - _FIRST_YEAR, _CYCLE_YEARS)
        days = self._years[year]
        found = bisect_right(days, _day_of_year(day))
        place = cycle * self._days_before[-1] + self._days_before[year] + found
        if found and days[found - 1] == _day_of_year(day):
            return (place - 1) * len(self.minutes) + bisect_right(self.minutes, minute) - 1
        return place * len(self.minutes) - 1

    def local_time(self, number: int) -> tuple[date, int]:
        """Return the day and the minute of a firing. Raise ValueError for a year that no date has."""
        place, slot = divmod(number, len(self.minutes))
        cycle, place = divmod(place, self._days_before[-1])
        year = bisect_right(self._days_before, place) - 1
        first = date(_FIRST_YEAR + cycle * _CYCLE_YEARS + year, 1, 1)
        return first + timedelta(self._years[year][place - self._days_before[year]]), self.minutes[slot]

    def _find_longest(self, expression: str) -> int:
        gap = max((late - early for year in set(self._years) for early, late in pairwise(year)), default=0)
        first, last = 0, None
        for number in range(2 * _CYCLE_YEARS):  # the second cycle closes the gap at the end of the first
            year = self._years[number % _CYCLE_YEARS]
            if year:
                gap = gap if last is None else max(gap, first + year[0] - last)
                last = first + year[-1]
            first += 366 if isleap(_FIRST_YEAR + number % _CYCLE_YEARS) else 365
        if not 0 < gap <= _LONGEST_DAYS:
            raise ValidationError("cron", expression, "must fire at least once in ten years")
        within = max((late - early for early, late in pairwise(self.minutes)), default=0)
        return max(within, gap * _DAY_MINUTES - self.minutes[-1] + self.minutes[0])


@lru_cache(maxsize=256)
def parse_cron(expression: str) -> Cron:
    """Return the local times of an expression. Raise `ValidationError` for one that is none, or never fires.

    Raise `MissingCronsim` without the package that reads it.
    """
    return Cron(expression)


def normalize(expression: object) -> str:
    """Return an expression as it is stored: in upper case, with one space between two fields.

    Raise `ValidationError` unless it has five fields.

    >>> normalize(" 0  9 * * mon-fri ")
    '0 9 * * MON-FRI'
    """
    if not isinstance(expression, str) or len(expression.split()) != 5:
        raise ValidationError("cron", expression, f"must have {_FORMS}")
    return " ".join(expression.upper().split())


def _simulate(expression: str) -> CronSim:
    try:
        from cronsim import CronSim, CronSimError
    except ImportError:
        needs = f"The cron expression {expression!r} needs the package cronsim: pip install 'zae-limiter[cron]'."
        raise MissingCronsim(needs) from None
    try:
        return CronSim(expression, datetime(_FIRST_YEAR, 1, 1, tzinfo=UTC))
    except (CronSimError, AssertionError, ValueError) as error:
        raise ValidationError("cron", expression, f"{error or 'is no cron expression'}; it has {_FORMS}") from None


def _find_days(simulated: CronSim, year: int) -> tuple[int, ...]:
    first = date(year, 1, 1)
    days = (first + timedelta(number) for number in range(366 if isleap(year) else 365))
    return tuple((day - first).days for day in days if day.month in simulated.months and simulated.match_day(day))


def _day_of_year(day: date) -> int:
    return day.timetuple().tm_yday - 1
