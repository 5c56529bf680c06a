"""Attempts that can lose a race are repeated, and only so often."""

from __future__ import annotations

import pytest

from zae_limiter import RateLimiterUnavailable
from zae_limiter.aws.calls import poll
from zae_limiter.core.errors import StackOperationError
from zae_limiter.runtime.blocking import run
from zae_limiter.runtime.retrying import retry

CONTENDED = RateLimiterUnavailable("too much contention")


def test_retry_returns_the_first_true_result_and_counts_down() -> None:
    seen: list[int] = []

    async def attempt(left: int) -> str | None:
        seen.append(left)
        return "done" if left == 2 else None

    assert run(retry(attempt, 5, CONTENDED)) == "done"
    assert seen == [4, 3, 2]


def test_retry_raises_after_the_last_attempt() -> None:
    seen: list[int] = []

    async def attempt(left: int) -> bool:
        seen.append(left)
        return False

    with pytest.raises(RateLimiterUnavailable, match="too much contention"):
        run(retry(attempt, 3, CONTENDED))
    assert seen == [2, 1, 0]


def test_retry_lets_errors_pass() -> None:
    async def attempt(left: int) -> bool:
        raise KeyError(left)

    with pytest.raises(KeyError):
        run(retry(attempt, 3, CONTENDED))


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
