"""Trying again after a lost race, a bounded number of times."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.errors import RateLimiterUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_TRIES = 200


def tries(subject: str, most: int = MAX_TRIES) -> Iterator[int]:
    """Iterate over the numbers of the tries from 0 on, for whoever ends the loop when it has won.

    Raise `RateLimiterUnavailable` after ``most`` of them: others have won all races for ``subject``.
    """
    yield from range(most)
    raise RateLimiterUnavailable(f"Too much contention on {subject}: {most} races in a row were lost; try again.")
