"""Markdown tables that can also be read as they are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_NUMBER = re.compile(r"-?[\d,]*(\.\d+)?")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns of one width; a column of numbers, or of nothing, is set to the right.

    >>> print(table(["limiter", "us"], [["one", "7.5"], ["another", "12"]]))
    | limiter |  us |
    |---------|----:|
    | one     | 7.5 |
    | another |  12 |
    """
    body = [list(row) for row in rows]
    columns = list(zip(head, *body, strict=True))
    widths = [max(map(len, column)) for column in columns]
    right = [all(_numeric(cell) for cell in column[1:]) for column in columns]
    ruler = "|".join("-" * (width + 1) + (":" if right else "-") for width, right in zip(widths, right, strict=True))
    return "\n".join([_line(head, widths, right), f"|{ruler}|", *(_line(row, widths, right) for row in body)])


def number(value: float) -> str:
    """As many digits as mean something: three or four, and no more than two behind the point.

    >>> [number(each) for each in (3, 0.0, 0.05, 4.95, 12.34, 1234.5)]
    ['3', '0', '0.05', '4.95', '12.3', '1,234']
    """
    if isinstance(value, int) or value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def ratio(theirs: float, ours: float) -> str:
    """Return the factor relative to ours; a dash if ours needs nothing."""
    return f"{theirs / ours:.2f}" if ours else "-"


def _numeric(cell: str) -> bool:
    return _NUMBER.fullmatch(cell) is not None


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    padded = [
        cell.rjust(width) if to_right else cell.ljust(width)
        for cell, width, to_right in zip(cells, widths, right, strict=True)
    ]
    return f"| {' | '.join(padded)} |"
