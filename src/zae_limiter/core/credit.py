"""Credits: balances beside the allowance of a limit, spent after it.

A credit is made of lots, each with an expiry of its own. With the allowance's level L (negative in debt) and the live
lots K a cost c is granted if ``L + K - c >= least``. It takes ``max(0, min(c, L))`` from the allowance and the rest
from the lots, those that expire first before others. So debt has to be covered, too: credits never add to it.

Where the allowance alone has ``c + least`` this is not asked: the draw is that of a limit without credits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from .draw import SOFT, draw

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .draw import AnchoredLimit, Changes, Guard

HeldLots: TypeAlias = "Sequence[tuple[str, int]]"
"""The attributes of lots and the millitokens that they hold, in the order in which they are spent."""
SpentLots: TypeAlias = tuple[tuple[str, str, int], ...]
"""What was taken from lots, in the order of taking: the limit, the attribute of the lot, the millitokens."""


class Division(NamedTuple):
    """A cost divided between allowance and lots, in millitokens, and what has to be there for it.

    ``covered`` is what the allowance must hold, ``needed`` what each lot must hold: together the cost and what it has
    to leave. A soft limit needs no more than is taken.
    """

    allowance: int
    covered: int
    taken: dict[str, int]
    needed: dict[str, int]


def divide(cost: int, least: int, level: int, lots: HeldLots) -> Division | None:
    """Divide a cost that the allowance alone, which holds ``level``, does not have; None if it does not fit.

    >>> divide(50, 0, 20, [("a", 10), ("b", 100)])
    Division(allowance=20, covered=20, taken={'a': 10, 'b': 20}, needed={'a': 10, 'b': 20})
    >>> divide(50, 0, -20, [("a", 60)]) is None
    True
    """
    allowance = max(0, min(cost, level))
    taken, missing = _take(lots, cost - allowance)
    if least == SOFT:
        return Division(allowance + missing, SOFT, taken, taken)
    covered = min(level, cost + least)
    needed, missing = _take(lots, cost + least - covered)
    return None if missing else Division(allowance, covered, taken, needed)


def _take(lots: HeldLots, amount: int) -> tuple[dict[str, int], int]:
    """Return what is taken from each lot, in their order, and what is missing then."""
    taken = {}
    for attr, held in lots:
        if amount > 0 and held > 0:
            taken[attr] = min(held, amount)
            amount -= taken[attr]
    return taken, amount


def draw_with_credits(
    limit: AnchoredLimit,
    tokens: int,
    lots: HeldLots,
    cost: int,
    now_ms: int,
    put: Changes,
    add: Changes,
    after: int | None = None,
) -> list[Guard] | None:
    """Draw ``cost`` from allowance and lots as `core.draw.draw` does, where the allowance does not suffice.

    Return the guards that it needs, or None, with nothing noted, if it does not fit.
    """
    found = divide(cost, limit.least, limit.level(tokens, now_ms), lots)
    if found is None:
        return None
    allowance, covered, taken, needed = found
    least = SOFT if limit.least == SOFT else covered - allowance
    guard = draw(limit._replace(least=least), tokens, allowance, now_ms, put, add, after)
    assert guard is not None  # the allowance holds what it has to
    if cost:
        add[limit.tc] = cost
    for attr, amount in taken.items():
        add[attr] = -amount
    return [guard, *((attr, ">=", amount) for attr, amount in needed.items())]


def suffices(limit: AnchoredLimit, tokens: int, cost: int, now_ms: int) -> bool:
    """Return whether the allowance alone has a cost, and what has to be left; of a soft limit, without debt."""
    return limit.level(tokens, now_ms) >= cost + max(limit.least, 0)


def take_last(spent: SpentLots, amounts: Mapping[str, int]) -> tuple[SpentLots, SpentLots]:
    """Divide what was taken from lots: return the rest, and the last of it up to ``amounts`` by limit.

    >>> take_last((("tpm", "a", 10), ("tpm", "b", 20)), {"tpm": 25})
    ((('tpm', 'a', 5),), (('tpm', 'a', 5), ('tpm', 'b', 20)))
    """
    left = dict(amounts)
    kept, last = [], []
    for name, attr, amount in reversed(spent):
        back = min(amount, max(0, left.get(name, 0)))
        left[name] = left.get(name, 0) - back
        if back:
            last.append((name, attr, back))
        if back < amount:
            kept.append((name, attr, amount - back))
    return tuple(reversed(kept)), tuple(reversed(last))


def sum_up(spent: SpentLots) -> dict[str, int]:
    """Return what was taken from lots by limit."""
    total: dict[str, int] = {}
    for name, _, amount in spent:
        total[name] = total.get(name, 0) + amount
    return total
