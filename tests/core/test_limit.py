"""Limits: which can be made."""

from __future__ import annotations

import pytest

from zae_limiter import Limit, ValidationError


def test_a_limit_that_cannot_be_represented_is_refused_at_construction() -> None:
    assert Limit.per_second("rpm", 10**12).capacity == 10**12
    for arguments in ((10**12 + 1, 1, 1), (1, 10**12 + 1, 1), (1, 1, 11 * 366 * 86_400), (1, 1, 0)):
        with pytest.raises(ValidationError):
            Limit.custom("rpm", *arguments)
