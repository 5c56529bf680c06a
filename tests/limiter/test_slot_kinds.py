"""A limit that becomes a concurrency limit, or a rate again, while its bucket is used."""

from __future__ import annotations

from zae_limiter import Limit
from zae_limiter.records import keys
from zae_limiter.records.level import attribute
from zae_limiter.testing import Harness

TOKENS, SLOTS = ("tk", "ra", "rp", "cr", "hi"), ("tl", "tn", "pk")


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
