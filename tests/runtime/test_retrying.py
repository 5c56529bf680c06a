"""Attempts that can lose a race are repeated, and only so often."""

from __future__ import annotations

import pytest

from zae_limiter import RateLimiterUnavailable
from zae_limiter.aws.calls import poll
from zae_limiter.core.errors import StackOperationError
from zae_limiter.runtime.retries import tries


def test_tries_end_with_the_given_error() -> None:
    numbers = tries("key", 3, StackOperationError("busy"))
    assert [next(numbers), next(numbers), next(numbers)] == [0, 1, 2]
    with pytest.raises(StackOperationError, match="busy"):
        next(numbers)


def test_tries_end_with_the_contention_by_default() -> None:
    with pytest.raises(RateLimiterUnavailable, match="Too much contention on key"):
        for _ in tries("key", 3):
            pass


def test_poll_pauses_longer_each_time_up_to_two_seconds() -> None:
    pauses: list[float] = []
    answers = iter([None] * 6 + ["ready"])
    assert poll(lambda: next(answers), pauses.append, StackOperationError("busy"), first=0.5) == "ready"
    assert pauses == [0.5, 0.75, 1.125, 1.6875, 2.0, 2.0]


def test_poll_raises_after_the_last_look() -> None:
    pauses: list[float] = []
    with pytest.raises(StackOperationError, match="busy"):
        poll(lambda: None, pauses.append, StackOperationError("busy"), looks=3)
    assert len(pauses) == 3
