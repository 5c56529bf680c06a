"""Verdicts in words on a run under demand above the limit."""

from __future__ import annotations

from typing import Any

TOKEN = 1.0
"""Tolerance in tokens: millisecond clocks cannot account for more."""
DUE = 0.95
"""The share of capacity + rate x time that nobody who waits in vain is to miss."""
KEEPS = "keeps the bound"


def judged(verdict: dict[str, Any]) -> str:
    """Over, under, or neither.

    >>> judged({"admitted": 150, "refused": 9, "bound": 150.0, "excess": 0.4})
    'keeps the bound'
    >>> judged({"admitted": 199, "refused": 9, "bound": 150.0, "excess": 84.0})
    'over-admits: 84 too many in its worst window'
    >>> judged({"admitted": 75, "refused": 9, "bound": 150.0, "excess": 0.0})
    'under-admits: 50 % of what was due'
    """
    found = []
    if verdict["excess"] >= TOKEN:
        found.append(f"over-admits: {verdict['excess']:.0f} too many in its worst window")
    if not verdict["refused"]:
        found.append("was not asked for more than the limit")
    elif verdict["admitted"] < DUE * verdict["bound"]:
        found.append(f"under-admits: {verdict['admitted'] / verdict['bound']:.0%} of what was due".replace("%", " %"))
    return "; ".join(found) or KEEPS
