"""Errors: what they say to clients."""

from __future__ import annotations

import pytest

from zae_limiter import Limit, LimitStatus, RateLimitExceeded


@pytest.mark.parametrize(
    ("seconds", "header"), [(0.001, "1"), (0.999, "1"), (1.0, "1"), (1.001, "2"), (59.9999, "60"), (86_400.0, "86400")]
)
def test_retry_after_is_a_whole_number_of_seconds_rounded_up(seconds: float, header: str) -> None:
    status = LimitStatus(
        "key", "gpt-4", "rpm", Limit.per_hour("rpm", 100), 0, 1, exceeded=True, retry_after_seconds=seconds
    )
    assert RateLimitExceeded([status]).retry_after_header == header
