"""A limit that becomes a concurrency limit, or a rate again, while its bucket is used."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.support.acquiring import granted, take
from zae_limiter import CorruptRecordError, Limit, RateLimiter
from zae_limiter.records import keys
from zae_limiter.records.algebra import Write
from zae_limiter.records.level import attribute
from zae_limiter.testing import Harness

TOKENS, SLOTS = ("tk", "ra", "rp"), ("tl", "tn", "pk")


async def test_a_bucket_says_of_a_limit_one_kind_only(harness: Harness) -> None:
    limiter = harness.limiter()
    rate, parallel = Limit.per_minute("limit", 10), Limit.concurrent("limit", 10, ttl=60)
    for limit, fields in ((rate, TOKENS), (parallel, SLOTS), (rate, TOKENS), (parallel, SLOTS)):
        await limiter.set_system_defaults([limit, Limit.per_minute("rpm", 100)])
        async with limiter.acquire("key", "gpt-4", {"limit": 1, "rpm": 1}):
            key = keys.bucket((await limiter.repository.get_namespace("default")).id, "key", "gpt-4")
            (image,) = await harness.store().read([key])
        assert image is not None
        found = {field for field in (*TOKENS, *SLOTS) if attribute("limit", field) in image}
        assert found == set(fields)
        assert await limiter.available("key", "gpt-4") == {"limit": 9 if limit is rate else 10, "rpm": 99}
        harness.clock.advance(60)


async def change(limiter: RateLimiter, *limits: Limit) -> None:
    """Store other limits, and let a request that takes nothing move the bucket to them."""
    await limiter.set_system_defaults(limits)
    await take(limiter, {limits[0].name: 1 if limits[0].is_concurrency else 0, "rpm": 1})


@pytest.mark.parametrize(("used", "left"), [(150, -90), (20, 40)], ids=["debt", "give-back"])
async def test_what_is_settled_while_a_limit_counts_slots_is_not_lost(harness: Harness, used: int, left: int) -> None:
    rate, other = Limit.per_hour("limit", 60), Limit.per_minute("rpm", 100)
    limiter = harness.limiter()
    await limiter.set_system_defaults([rate, other])
    async with limiter.acquire("key", "gpt-4", {"limit": 60, "rpm": 1}) as lease:
        await change(limiter, Limit.concurrent("limit", 10, ttl=60), other)
        await lease.settle(limit=used)
    await limiter.set_system_defaults([rate, other])
    assert (await limiter.available("key", "gpt-4"))["limit"] == left


@pytest.mark.parametrize(
    ("rate", "left"),
    [(Limit.per_hour("limit", 60), 0), (Limit.quota("limit", 60, every=timedelta(hours=1), rollover=5), 5)],
    ids=["rate", "quota"],
)
async def test_debt_outlives_a_time_as_a_concurrency_limit(harness: Harness, rate: Limit, left: int) -> None:
    """It is paid by the refill of that time, as that of a limit which is not in use for a while."""
    harness.clock.advance_ms(-harness.clock.now_ms() % 3_600_000)
    limiter, other = harness.limiter(), Limit.per_minute("rpm", 100)
    await limiter.set_system_defaults([rate, other])
    async with limiter.acquire("key", "gpt-4", {"limit": 60}) as lease:
        await lease.adjust(limit=90)
    await change(limiter, Limit.concurrent("limit", 10, ttl=60), other)
    assert (await limiter.available("key", "gpt-4"))["limit"] == 10
    harness.clock.advance(3_600)
    await limiter.set_system_defaults([rate, other])
    assert (await limiter.available("key", "gpt-4"))["limit"] == left - 30, "before the bucket is moved, too"
    assert not await granted(limiter, {"limit": 1})
    await limiter.reset_bucket("key", "gpt-4", ["rpm"])
    assert (await limiter.available("key", "gpt-4"))["limit"] == left - 30
    harness.clock.advance(3_600)
    assert await granted(limiter, {"limit": 30 + left})
    assert (await limiter.available("key", "gpt-4"))["limit"] == 0


async def test_tokens_used_before_a_time_as_a_concurrency_limit_stay_used(harness: Harness) -> None:
    limiter, rate, other = harness.limiter(), Limit.per_day("limit", 60), Limit.per_minute("rpm", 100)
    await limiter.set_system_defaults([rate, other])
    await take(limiter, {"limit": 50})
    await change(limiter, Limit.concurrent("limit", 10, ttl=60), other)
    await change(limiter, rate, other)
    assert not await granted(limiter, {"limit": 11})
    assert await granted(limiter, {"limit": 10})


async def test_a_reset_while_it_counts_slots_forgives_the_debt(harness: Harness) -> None:
    limiter, rate, other = harness.limiter(), Limit.per_day("limit", 60), Limit.per_minute("rpm", 100)
    for names in (None, ["limit"]):
        await limiter.set_system_defaults([rate, other])
        await take(limiter, {"limit": 60})
        await change(limiter, Limit.concurrent("limit", 10, ttl=60), other)
        await limiter.top_up("key", "gpt-4", {"rpm": 1})
        await limiter.reset_bucket("key", "gpt-4", names)
        await change(limiter, rate, other)
        assert (await limiter.available("key", "gpt-4"))["limit"] == 60


async def test_a_bucket_is_kept_until_the_debt_of_its_former_kind_is_paid(harness: Harness) -> None:
    limiter, rate, other = harness.limiter(), Limit.per_day("limit", 60), Limit.per_minute("rpm", 100)
    await limiter.set_system_defaults([rate, other])
    async with limiter.acquire("key", "gpt-4", {"limit": 60}) as lease:
        await lease.adjust(limit=60 * 60)
    await change(limiter, Limit.concurrent("limit", 10, ttl=60), other)
    harness.clock.advance(40 * 86_400)
    await limiter.set_system_defaults([rate, other])
    assert (await limiter.available("key", "gpt-4"))["limit"] == -20 * 60


@pytest.mark.parametrize("damage", ["", "7", "1,2,0,1,4,5,x,,", 5, "0,0,0,1,60,60,60,,nonsense"])
async def test_damaged_tokens_of_a_former_kind_are_found(harness: Harness, damage: object) -> None:
    limiter, rate, other = harness.limiter(), Limit.per_day("limit", 60), Limit.per_minute("rpm", 100)
    await limiter.set_system_defaults([rate, other])
    await take(limiter, {"limit": 50})
    await change(limiter, Limit.concurrent("limit", 10, ttl=60), other)
    key = keys.bucket((await limiter.repository.get_namespace("default")).id, "key", "gpt-4")
    await harness.store().commit([Write(key, put={"b_limit_pt": damage})])
    with pytest.raises(CorruptRecordError, match="b_limit_pt"):
        await limiter.get_buckets("key")
