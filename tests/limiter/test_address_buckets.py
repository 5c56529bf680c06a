"""Entities that are addresses: anybody makes as many as they like, so nothing is kept of them that is not needed."""

from __future__ import annotations

import pytest

from tests.support.backends import KEEPING
from zae_limiter import Limit
from zae_limiter.records import keys
from zae_limiter.records.algebra import TTL
from zae_limiter.records.level import HOUR_END
from zae_limiter.testing import Harness
from zae_limiter.web import Identity

LIMITS = [Limit.per_minute("rpm", 60)]
ADDRESS = Identity.ip("2001:db8::1").entity_id


@pytest.mark.parametrize("backend", KEEPING, ids=str)
async def test_the_bucket_of_an_address_keeps_no_usage_and_expires_when_it_is_full(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults(LIMITS)
    for who in (ADDRESS, "key-1"):
        async with limiter.acquire(who, "gpt-4", {"rpm": 30}) as lease:
            await lease.adjust(rpm=20)
    namespace = await limiter.repository.get_namespace("default")
    image, kept = await harness.store().read([keys.bucket(namespace.id, who, "gpt-4") for who in (ADDRESS, "key-1")])
    assert image is not None
    assert kept is not None
    assert HOUR_END not in image
    assert HOUR_END in kept
    now_s = harness.clock.now_ms() / 1000
    assert 50 <= image[TTL] - now_s <= 61 < kept[TTL] - now_s
    assert (await limiter.get_usage_summary(entity_id=ADDRESS)).total == {}
    assert (await limiter.get_usage_summary(entity_id="key-1")).total == {"rpm": 50}
    harness.clock.advance(62)
    assert await limiter.get_buckets(ADDRESS) == []


@pytest.mark.parametrize("backend", KEEPING, ids=str)
async def test_debt_of_an_address_is_kept_until_it_is_paid(harness: Harness) -> None:
    limiter = harness.limiter()
    async with limiter.acquire(ADDRESS, "gpt-4", {"rpm": 60}, LIMITS) as lease:
        await lease.adjust(rpm=600)
    harness.clock.advance(300)
    assert await limiter.available(ADDRESS, "gpt-4", LIMITS) == {"rpm": -300}


@pytest.mark.parametrize("backend", KEEPING, ids=str)
async def test_an_address_with_limits_of_its_own_is_an_entity_like_others(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_limits(ADDRESS, LIMITS)
    async with limiter.acquire(ADDRESS, "gpt-4", {"rpm": 30}):
        pass
    assert (await limiter.get_usage_summary(entity_id=ADDRESS)).total == {"rpm": 30}
