"""Bars: the most that a figure of ours may be, by itself or beside another of the same run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from bench.report.tables import number, table

HEAD = ("case", "ours", "beside", "its figure", "ratio", "at most", "holds")


class Bar(NamedTuple):
    """One figure and what it may be.

    >>> Bar("settled", 3.0, 1.5, beside="two hits", base=2.0).holds
    True
    >>> Bar("calls", 2.06, 2.0).holds
    False
    """

    case: str
    ours: float
    most: float
    beside: str = ""
    base: float | None = None
    """The figure that ours is divided by; None if ours is judged by itself."""

    @property
    def ratio(self) -> float:
        """The judged figure, rounded to hundredths."""
        return round(self.ours / self.base if self.base else self.ours, 2)

    @property
    def holds(self) -> bool:
        """Whether it is within the bar. A store call now and then in the background does not count as one more."""
        return (self.ratio if self.base else round(self.ratio, 1)) <= self.most

    def row(self) -> list[str]:
        """Its cells."""
        base, ratio = (number(self.base), f"{self.ratio:.2f}") if self.base else ("", "")
        return [self.case, number(self.ours), self.beside, base, ratio, f"{self.most:g}", "yes" if self.holds else "NO"]


def section(found: Iterable[Bar]) -> str:
    """Return how many bars hold, and a table of all."""
    bars = list(found)
    return f"{sum(bar.holds for bar in bars)} of {len(bars)} hold.\n\n{table(HEAD, [bar.row() for bar in bars])}"
