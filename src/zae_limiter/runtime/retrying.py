"""Repeat an attempt that can lose a race against other writers."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")


async def retry(attempt: Callable[[int], Awaitable[T | None]], most: int, contended: Exception) -> T:
    """Await ``attempt`` until its result is true, and return that result.

    Args:
        attempt: Called with the number of attempts that are left after it; a false result means that it lost a race.
        most: How many attempts to make.
        contended: The error to raise after the last one.
    """
    for left in reversed(range(most)):
        result = await attempt(left)
        if result:
            return result
    raise contended
