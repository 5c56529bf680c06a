"""Trying again after a lost race, a bounded number of times."""

from __future__ import annotations

from collections.abc import Iterator

from ..core.errors import RateLimiterUnavailable

MAX_TRIES = 200


def tries(subject: str, most: int = MAX_TRIES, error: Exception | None = None) -> Iterator[int]:
    """Iterate over the numbers of the tries from 0 on, for a loop that ends when it has won its race.

    Raise as `count_loss` does when ``most`` races for ``subject`` in a row were lost.
    """
    lost = 0
    while True:
        yield lost
        lost = count_loss(lost, subject, most, error)


def count_loss(lost: int, subject: str, most: int = MAX_TRIES, error: Exception | None = None) -> int:
    """Return how many races in a row were lost by now; raise ``error`` or `RateLimiterUnavailable` after ``most``."""
    if lost + 1 >= most:
        message = f"Too much contention on {subject}: {most} races in a row were lost; try again."
        raise error or RateLimiterUnavailable(message)
    return lost + 1
