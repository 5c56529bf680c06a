"""A change of one bucket: what must hold for it, and what becomes of the record."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from .production import FAR

MISSING_OR_AT_MOST = "missing or <="
"""The operator of a guard that holds for a record which lacks the attribute, or has at most the value in it."""


class Shortfall(NamedTuple):
    """A limit that does not hold what a request needs; ``is_permanent`` says that it never will."""

    name: str
    is_permanent: bool


Drawn: TypeAlias = tuple[int, int, int, int | None]
"""The numbers that a limit is drawn by: its tokens, what was produced since the anchor, and its capacity.

The last one is what was produced since the anchor that it has afterwards; None if that stays.
"""


@dataclass(slots=True, eq=False)
class Change:
    """One guarded write, collected limit by limit.

    ``bounds`` are the least and the most that an attribute may be, ``equals`` exact values, ``guards`` all other
    conditions. ``absent`` says that there must be no record. ``drawn`` keeps the numbers of draws by limit.
    """

    equals: dict[str, Any] = field(default_factory=dict)
    absent: bool = False
    bounds: dict[str, tuple[int, int]] = field(default_factory=dict)
    guards: list[tuple[str, str, Any]] = field(default_factory=list)
    put: dict[str, Any] = field(default_factory=dict)
    add: dict[str, int] = field(default_factory=dict)
    remove: list[str] = field(default_factory=list)
    expires_ms: int | None = None
    drawn: dict[str, Drawn] = field(default_factory=dict)

    def bound(self, attr: str, low: int = -FAR, high: int = FAR) -> None:
        """Guard an attribute by bounds, both included, beside those that it has already."""
        known = self.bounds.get(attr)
        if known is not None:
            low, high = max(low, known[0]), min(high, known[1])
        self.bounds[attr] = low, high
