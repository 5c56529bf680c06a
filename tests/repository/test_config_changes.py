"""Stored limits that change while buckets exist and clients remember the old ones."""

from __future__ import annotations

import contextlib

import pytest

from tests.support.acquiring import take
from zae_limiter import Limit, RateLimitExceeded, ValidationError
from zae_limiter.testing import Harness

HOURLY = [Limit.per_hour("rpm", 100)]


@pytest.mark.parametrize("level", ["system", "resource"])
async def test_a_changed_default_reaches_existing_buckets_at_once(harness: Harness, level: str) -> None:
    limiter = harness.limiter()

    async def change(limit: Limit) -> None:
        if level == "system":
            await limiter.set_system_defaults([limit])
        else:
            await limiter.set_resource_defaults("gpt-4", [limit])

    with pytest.raises(ValidationError, match="no limits are stored"):
        await take(limiter, {"rpm": 1})
    await change(Limit.per_minute("rpm", 100))
    await take(limiter, {"rpm": 1})
    await change(Limit.per_minute("rpm", 5))
    lease = await take(limiter, {"rpm": 1})
    assert lease.available == {"rpm": 4}


async def test_a_stale_client_does_not_admit_more_than_the_tightened_limit(harness: Harness) -> None:
    informed, stale = harness.limiter(), harness.limiter()
    await informed.set_system_defaults(HOURLY)
    for limiter in (informed, stale):
        async with limiter.acquire("key", "gpt-4", {"rpm": 1}):
            pass
    await informed.set_system_defaults([Limit.per_hour("rpm", 5)])
    passed = 0
    for number in range(40):
        with contextlib.suppress(RateLimitExceeded):
            async with (informed, stale)[number % 2].acquire("key", "gpt-4", {"rpm": 1}):
                passed += 1
    assert passed == 5
