"""Reset schedules of version 0.17 as one cron expression.

There a quota may have several expressions, and is back when one of them *begins* to match: ``* 9 * * *`` at 9:00 only.
"""

from __future__ import annotations

from .cron import parse_cron


def merge_resets(crons: list[str]) -> str:
    """Return the expression that fires whenever one of several begins to match. Raise `ValueError` if there is none."""
    return find_edges(merge_crons(crons))


def merge_crons(crons: list[str]) -> str:
    """Return one expression that fires whenever one of several does. They must differ in one field only.

    >>> merge_crons(["0 0 1 1 *", "0 0 1 7 *"])
    '0 0 1 1,7 *'
    """
    columns = [list(dict.fromkeys(column)) for column in zip(*(cron.split() for cron in crons), strict=True)]
    several = [column for column in columns if len(column) > 1]
    if len(several) > 1 or any("*" in column for column in several):
        raise ValueError(f"it is back at several times that are no single cron expression: {'; '.join(crons)}")
    return " ".join(",".join(column) for column in columns)


def find_edges(cron: str) -> str:
    """Return the expression that fires when another one begins to match: version 0.17 resets a quota only then.

    >>> find_edges("* 9 * * *")
    '0 9 * * *'
    """
    matching = set(parse_cron(cron).minutes)
    first = {minute for minute in matching if minute - 1 not in matching}
    hours, minutes = sorted({each // 60 for each in first}), sorted({each % 60 for each in first})
    if {0, 24 * 60 - 1} <= matching or len(hours) * len(minutes) != len(first):
        raise ValueError(f"it is back when {cron!r} begins to match, which is no cron expression")
    if first == matching:
        return cron
    return " ".join([",".join(map(str, minutes)), ",".join(map(str, hours)), *cron.split()[2:]])
