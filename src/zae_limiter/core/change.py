"""A change of one bucket: what must hold for it, and what becomes of the record."""

from __future__ import annotations

from typing import Any, NamedTuple

from .production import FAR

MISSING_OR_AT_MOST = "missing or <="
"""The operator of a guard that holds for a record which lacks the attribute, or has at most the value in it."""

_MOST = FAR // 2
"""A bound beyond this is none."""


class Shortfall(NamedTuple):
    """A limit that does not hold what a request needs; ``is_permanent`` says that it never will."""

    name: str
    is_permanent: bool


class Change:
    """One guarded write, collected limit by limit.

    ``bounds`` are the least and the most that an attribute may be, ``equals`` exact values, ``guards`` all other
    conditions. ``absent`` says that there must be no record.
    """

    __slots__ = ("absent", "add", "bounds", "equals", "expires_ms", "guards", "put", "remove")

    def __init__(self, *, absent: bool = False) -> None:
        self.absent = absent
        self.bounds: dict[str, tuple[int, int]] = {}
        self.equals: dict[str, Any] = {}
        self.guards: list[tuple[str, str, Any]] = []
        self.put: dict[str, Any] = {}
        self.add: dict[str, int] = {}
        self.remove: list[str] = []
        self.expires_ms: int | None = None

    def bound(self, attr: str, low: int = -FAR, high: int = FAR) -> None:
        """Guard an attribute by bounds, both included, beside those that it has already."""
        known = self.bounds.get(attr)
        if known is not None:
            low, high = max(low, known[0]), min(high, known[1])
        self.bounds[attr] = low, high

    def conditions(self) -> tuple[tuple[str, str, Any], ...]:
        """Return everything that must hold, as guards of a write."""
        found: list[tuple[str, str, Any]] = [("", "absent", None)] if self.absent else []
        found += [(attr, "=", value) for attr, value in self.equals.items()]
        for attr, (low, high) in self.bounds.items():
            if low == high:
                found.append((attr, "=", low))
            elif high > _MOST:
                found.append((attr, ">=", low))
            elif low < -_MOST:
                found.append((attr, "<=", high))
            else:
                found.append((attr, "between", (low, high)))
        return (*found, *self.guards)
