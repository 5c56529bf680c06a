"""One limit as a client may know it, and which of several matters most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...core.bucket import MILLI

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ...core.limit import Limit


def whole_seconds(ms: int) -> int:
    """Whole seconds that are not over before ``ms`` are, at least 1.

    >>> whole_seconds(0), whole_seconds(1000), whole_seconds(1001)
    (1, 1, 2)
    """
    return -(-ms // MILLI) if ms > 0 else 1


@dataclass(frozen=True, slots=True)
class Standing:
    """One limit at one level as of a decision, under the name that clients know it by; it names no entity.

    ``remaining`` is whole tokens, 0 while in debt. ``retry_in_ms`` is when the cost fits, None if it did fit.
    """

    name: str
    limit: Limit
    remaining: int
    full_in_ms: int
    retry_in_ms: int | None = None

    def __post_init__(self) -> None:
        if self.remaining < 0:
            object.__setattr__(self, "remaining", 0)
        if self.full_in_ms < 0:
            object.__setattr__(self, "full_in_ms", 0)

    @property
    def violated(self) -> bool:
        """Whether this limit refused."""
        return self.retry_in_ms is not None


def _strain(standing: Standing) -> tuple[int, float]:
    retry = standing.retry_in_ms
    return -1 if retry is None else retry, -standing.remaining / standing.limit.capacity


def tightest(standings: Sequence[Standing]) -> Standing:
    """The one nearest to exhaustion: a violated one that takes longest, else the least remaining part; ties: the first.

    ``standings`` must not be empty.
    """
    return standings[0] if len(standings) == 1 else max(standings, key=_strain)


def distinct(standings: Iterable[Standing]) -> list[Standing]:
    """Every name once, by its tightest standing: a client tells policies apart by nothing else."""
    by_name: dict[str, Standing] = {}
    for standing in standings:
        other = by_name.get(standing.name)
        by_name[standing.name] = standing if other is None else tightest((other, standing))
    return list(by_name.values())
