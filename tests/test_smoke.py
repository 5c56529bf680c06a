"""The shortest path through everything, on every backend."""

from __future__ import annotations

import pytest

from zae_limiter import CapacityExceeded, Limit, RateLimitExceeded
from zae_limiter.testing import Harness


async def test_acquire_adjust_refuse(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults([Limit.per_minute("rpm", 2), Limit.per_minute("tpm", 1_000)])
    await limiter.create_entity("org")
    await limiter.create_entity("key", parent_id="org", cascade=True)
    async with limiter.acquire("key", "gpt-4", {"rpm": 1, "tpm": 500}) as lease:
        await lease.adjust(tpm=700)
    assert lease.consumed == {"rpm": 1, "tpm": 1_200}
    assert await limiter.available("org", "gpt-4") == {"rpm": 1, "tpm": -200}
    with pytest.raises(RateLimitExceeded) as refused:
        async with limiter.acquire("key", "gpt-4", {"tpm": 1}):
            pass
    assert refused.value.retry_after_seconds == pytest.approx(12.06)
    with pytest.raises(CapacityExceeded):
        async with limiter.acquire("key", "gpt-4", {"tpm": 1_001}):
            pass
