"""Credits: balances beside the allowance of a limit, spent after it.

A credit is made of lots, each with an expiry of its own. With the allowance's level L (negative in debt) and the live
lots K a cost c is granted if ``L + K - c >= floor``. It takes ``max(0, min(c, L))`` from the allowance and the rest
from the lots, those that expire first before others. So debt has to be covered, too: credits never add to it.
If L + K is less than c, a soft limit takes what is there, and overdraws its allowance by the rest.

Where the allowance alone has ``c + floor`` this is not asked: the draw is that of a limit without credits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from .change import Change, Drawn
from .production import FAR, Amounts
from .tokens import SOFT, TokenFields, draw

HeldLots: TypeAlias = "Sequence[tuple[str, int]]"
"""The attributes of lots and the millitokens that they hold, in the order in which they are spent."""
SpentLots: TypeAlias = tuple[tuple[str, str, int], ...]
"""What was taken from lots, in the order of taking: the limit, the attribute of the lot, the millitokens."""


Division: TypeAlias = tuple[int, int, dict[str, int], dict[str, int]]
"""What is taken from the allowance, and what that must hold; what is taken from each lot, and what that must hold.

Together the cost, and what it has to leave. Of a soft limit that has less, the first is more than the second.
"""


def divide(cost: int, floor: int, level: int, lots: HeldLots) -> Division | None:
    """Divide a cost that the allowance alone, which holds ``level``, does not have; None if it does not fit.

    >>> divide(50, 0, 20, [("a", 10), ("b", 100)])
    (20, 20, {'a': 10, 'b': 20}, {'a': 10, 'b': 20})
    >>> divide(50, 0, -20, [("a", 60)]) is None
    True
    """
    if floor == SOFT:
        return divide(cost, 0, level, lots) or _overspend(cost, level, lots)
    allowance, covered = max(0, min(cost, level)), min(level, cost + floor)
    taken, _ = _take(lots, cost - allowance)
    needed, missing = _take(lots, cost + floor - covered)
    return None if missing else (allowance, covered, taken, needed)


def _overspend(cost: int, level: int, lots: HeldLots) -> Division:
    """Divide a cost that a soft limit does not have: all credit that no debt uses up, and the rest as debt.

    >>> _overspend(10, -15, [("a", 20)])
    (5, -15, {'a': 5}, {'a': 20})
    """
    free = max(0, min(level, 0) + sum(held for _, held in lots))
    return cost - free, level, _take(lots, free)[0], dict(lots)


def _take(lots: HeldLots, amount: int) -> tuple[dict[str, int], int]:
    """Return what is taken from each lot, in their order, and what is missing then."""
    taken = {}
    for attr, held in lots:
        if amount > 0 and held > 0:
            taken[attr] = min(held, amount)
            amount -= taken[attr]
    return taken, amount


def draw_with_credits(
    change: Change, at: TokenFields, drawn: Drawn, lots: HeldLots, need: int | None, floor: int = 0, soft: bool = False
) -> bool:
    """Take ``need`` as `core.tokens.draw` does, and what the allowance does not have from lots.

    Return False, with nothing noted, if it does not fit.
    """
    tokens, since, capacity, _ = drawn
    floor, level = 0 if soft else floor, min(capacity, tokens + since)
    if not lots or need is None or level >= need + floor:
        return draw(change, at, drawn, need, floor, soft)
    found = divide(need, SOFT if soft else floor, level, lots)
    if found is None:
        return False
    allowance, covered, taken, needed = found
    is_exact = allowance > max(covered, 0)
    fits = draw(change, at, drawn, allowance, 0 if is_exact else covered - allowance, soft and is_exact)
    assert fits  # the allowance holds what it has to, or is overdrawn
    if is_exact and covered <= 0:  # the debt is what was seen; it may be deeper if it uses up all credit anyway
        high = tokens if taken else tokens - covered - sum(needed.values())
        change.bounds[at.tokens] = tokens if taken else -FAR, high
    if need:
        change.add[at.consumed] = need
    for attr, amount in taken.items():
        change.add[attr] = -amount
    for attr, amount in needed.items():
        low, high = (amount, FAR) if not is_exact else (amount if taken else -FAR, amount)
        change.bounds[attr] = low, high
    return True


def take_last(spent: SpentLots, amounts: Amounts) -> tuple[SpentLots, SpentLots]:
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
