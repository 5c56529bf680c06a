"""Waiting for another process, with a bound."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

from redis.exceptions import RedisError

from tests.support.deadlines import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

PAUSE = 0.005


class NeverHappened(Exception):
    """What was waited for did not come."""


def until(condition: Callable[[], object], what: str, *, seconds: float = PATIENCE, pause: float = PAUSE) -> None:
    """Look until ``condition`` holds. A server that cannot be asked yet counts as one that says no."""
    end = time.monotonic() + seconds
    last: RedisError | None = None
    while True:
        try:
            if condition():
                return
        except RedisError as error:
            last = error
        if time.monotonic() > end:
            raise NeverHappened(f"{what}: not within {seconds:g} s") from last
        time.sleep(pause)


def eventually(look: Callable[[], T], expected: T) -> None:
    """Look until ``expected`` is seen; what is seen at the end of the patience must be it."""
    end = time.monotonic() + PATIENCE
    while (seen := look()) != expected and time.monotonic() < end:
        time.sleep(PAUSE)
    assert seen == expected, f"{seen!r} is not {expected!r}"
