"""Refusals: what they say, what they cost, and that they leave no trace."""

from __future__ import annotations

import pytest

from tests.support.acquiring import granted, take
from zae_limiter import CapacityExceeded, Limit, RateLimitExceeded
from zae_limiter.records import keys
from zae_limiter.testing import FaultyStore, Harness

RPM = [Limit.per_minute("rpm", 100)]


async def test_refusals_do_not_prolong_the_life_of_a_bucket(harness: Harness) -> None:
    limiter = harness.limiter(refusal_ttl=0)
    limits = [Limit.per_minute("rpm", 1)]
    assert await granted(limiter, {"rpm": 1}, limits=limits)
    async with limiter.acquire("key", "gpt-4", {"rpm": 0}, limits) as lease:
        await lease.adjust(rpm=100)
    key = keys.bucket((await limiter.repository.get_namespace("default")).id, "key", "gpt-4")
    before = (await harness.store().read([key]))[0]
    for _ in range(50):
        harness.clock.advance(60)
        assert not await granted(limiter, {"rpm": 1}, limits=limits)
    assert (await harness.store().read([key]))[0] == before


async def test_a_herd_of_refused_callers_costs_the_store_nothing(harness: Harness) -> None:
    store = FaultyStore(harness.store())
    limiter = harness.limiter(store)
    limits = [Limit.per_second("rpm", 1, burst=100)]
    assert await granted(limiter, {"rpm": 100}, limits=limits)
    before, moments = store.calls.total(), set()
    for amount in (*range(1, 101), *[1] * 400):
        with pytest.raises(RateLimitExceeded) as refused:
            async with limiter.acquire("key", "gpt-4", {"rpm": amount}, limits):
                pass
        moments.add(refused.value.retry_after_seconds)
    assert store.calls.total() - before <= 1
    assert moments == {float(second) for second in range(1, 101)}, "each its own moment, no common reset"


async def test_a_cost_above_the_capacity_has_its_own_error(harness: Harness) -> None:
    limiter = harness.limiter()
    with pytest.raises(CapacityExceeded) as never:
        await take(limiter, {"rpm": 101}, limits=RPM, max_wait=3_600)
    assert never.value.retry_after_seconds is None
    assert never.value.retry_after_header is None
    assert never.value.as_dict()["error"] == "capacity_exceeded"
    assert never.value.as_dict()["retry_after_ms"] is None
    with pytest.raises(CapacityExceeded):
        await limiter.time_until_available("key", "gpt-4", {"rpm": 101}, RPM)
    assert await granted(limiter, {"rpm": 100}, limits=RPM)


@pytest.mark.parametrize("pause", [0.0, 2.0], ids=["local", "by the store"])
async def test_a_refusal_lists_every_limit_of_every_level(harness: Harness, pause: float) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults([*RPM, Limit.per_day("tpd", 1_000)])
    await limiter.create_entity("org")
    await limiter.create_entity("key", parent_id="org", cascade=True)
    await take(limiter, {"rpm": 100, "tpd": 1})
    harness.clock.advance(pause)
    with pytest.raises(RateLimitExceeded) as refused:
        await take(limiter, {"rpm": 50})
    seen = {(status.entity_id, status.limit_name): status.exceeded for status in refused.value.statuses}
    assert seen == {("key", "rpm"): True, ("key", "tpd"): False, ("org", "rpm"): True, ("org", "tpd"): False}
    assert len(refused.value.as_dict()["limits"]) == 4
    assert {status.available for status in refused.value.passed} == {999}
