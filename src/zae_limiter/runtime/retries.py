"""Trying again after a lost race, a bounded number of times."""

from __future__ import annotations

from collections.abc import Iterator

from ..core.errors import RateLimiterUnavailable

MAX_TRIES = 200


def tries(subject: str, most: int = MAX_TRIES, error: Exception | None = None) -> Iterator[int]:
    """Iterate over the numbers of the tries from 0 on, for whoever ends the loop when it has won.

    After ``most`` of them, others have won all races for ``subject``: raise ``error``, or `RateLimiterUnavailable`.
    """
    lost = 0
    while True:
        yield lost
        lost = count_loss(lost, subject, most, error)


def count_loss(lost: int, subject: str, most: int = MAX_TRIES, error: Exception | None = None) -> int:
    """Return how many races in a row were lost by now; raise an error as `tries` does if they are too many."""
    if lost + 1 >= most:
        message = f"Too much contention on {subject}: {most} races in a row were lost; try again."
        raise error or RateLimiterUnavailable(message)
    return lost + 1
