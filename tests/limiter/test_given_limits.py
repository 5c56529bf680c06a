"""Limits that are given with a call: asking about them, or for what they never hold, leaves no trace in a bucket."""

from __future__ import annotations

import pytest

from tests.repository.test_config import bucket, left, rpm, take
from tests.support import acquiring
from zae_limiter import CapacityExceeded, Limit
from zae_limiter.testing import Harness


@pytest.mark.parametrize("look", ["available", "get_status", "time_until_available"])
async def test_asking_about_other_limits_changes_no_bucket(harness: Harness, look: str) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults(rpm(100))
    await take(limiter, 1)
    before = await bucket(harness, limiter)
    what_if = [*rpm(2), Limit.per_hour("tpm", 10)]
    if look == "available":
        assert await limiter.available("key", "gpt-4", what_if) == {"rpm": 2, "tpm": 10}
    elif look == "get_status":
        assert [row.available for row in await limiter.get_status("key", "gpt-4", what_if)] == [2, 10]
    else:
        assert await limiter.time_until_available("key", "gpt-4", {"rpm": 2}, what_if) == 0
    assert await bucket(harness, limiter) == before
    assert await left(limiter) == 99


async def test_what_can_never_fit_changes_no_bucket(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults(rpm(100))
    await take(limiter, 1)
    with pytest.raises(CapacityExceeded):
        async with limiter.acquire("key", "gpt-4", {"rpm": 3}, rpm(2)):
            pass
    assert await left(limiter) == 99


async def test_given_limits_decide_also_when_the_bucket_exists(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults(rpm(100))
    await acquiring.take(limiter, {"rpm": 1})
    tight = [Limit.per_minute("rpm", 2)]
    lease = await acquiring.take(limiter, {"rpm": 1}, limits=tight)
    assert lease.available == {"rpm": 1}
    assert await acquiring.granted(limiter, {"rpm": 1}, limits=tight)
    assert not await acquiring.granted(limiter, {"rpm": 1}, limits=tight)
    with pytest.raises(CapacityExceeded):
        await acquiring.take(limiter, {"rpm": 3}, limits=tight)
