"""Stored limits: which are in force, how a change reaches clients, and what it does to a bucket."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import pytest

from tests.support.meddler import Meddler
from zae_limiter import (
    CorruptRecordError,
    Lease,
    Limit,
    OnUnavailable,
    RateLimiter,
    RateLimitExceeded,
    ValidationError,
)
from zae_limiter.records import keys
from zae_limiter.records.algebra import Image, Write
from zae_limiter.records.ledger import kept_ms
from zae_limiter.testing import FaultyStore, Harness


def rpm(capacity: int, rate: int | None = None) -> list[Limit]:
    """So many at once, ``rate`` (the same, if not given) an hour."""
    return [Limit.per_hour("rpm", capacity if rate is None else rate, burst=capacity)]


async def take(limiter: RateLimiter, amount: int, entity: str = "key", name: str = "rpm") -> Lease:
    async with limiter.acquire(entity, "gpt-4", {name: amount}) as lease:
        return lease


async def left(limiter: RateLimiter, entity: str = "key") -> int:
    return (await limiter.available(entity, "gpt-4"))["rpm"]


async def bucket(harness: Harness, limiter: RateLimiter, entity: str = "key") -> Image:
    key = keys.bucket((await limiter.repository.get_namespace("default")).id, entity, "gpt-4")
    image = (await harness.store().read([key]))[0]
    assert image is not None
    return image


async def test_the_most_specific_level_decides(harness: Harness) -> None:
    limiter = harness.limiter()
    assert await limiter.resolve_limits("key", "gpt-4") == (None, None, None)
    with pytest.raises(ValidationError, match="no limits are stored"):
        await take(limiter, 1)
    steps: list[tuple[str, Awaitable[None]]] = [
        ("system", limiter.set_system_defaults(rpm(40), OnUnavailable.ALLOW)),
        ("resource", limiter.set_resource_defaults("gpt-4", rpm(30))),
        ("entity_default", limiter.set_limits("key", rpm(20))),
        ("entity", limiter.set_limits("key", rpm(10), "gpt-4")),
    ]
    for (source, change), capacity in zip(steps, (40, 30, 20, 10), strict=True):
        await change
        assert await limiter.resolve_limits("key", "gpt-4") == (rpm(capacity), OnUnavailable.ALLOW, source)
        assert (await take(limiter, 0)).limits == tuple(rpm(capacity)), "in force at once"
        assert {row.source for row in await limiter.get_status("key", "gpt-4")} == {source}
    for other, capacity in (("gpt-5", 20), ("gpt-4", 30)):
        who = "key" if other == "gpt-5" else "stranger"
        assert (await limiter.resolve_limits(who, other))[0] == rpm(capacity)
    await limiter.delete_limits("key", "gpt-4")
    assert (await limiter.resolve_limits("key", "gpt-4"))[2] == "entity_default"
    await limiter.delete_limits("key")
    assert (await limiter.resolve_limits("key", "gpt-4"))[2] == "resource"
    await limiter.delete_resource_defaults("gpt-4")
    assert (await limiter.resolve_limits("key", "gpt-4"))[2] == "system"
    await limiter.delete_system_defaults()
    assert await limiter.resolve_limits("key", "gpt-4") == (None, None, None)


async def test_set_get_list_and_delete(harness: Harness) -> None:
    limiter = harness.limiter()
    two = [Limit.per_day("tpd", 5, burst=7), *rpm(10)]
    assert await limiter.get_system_defaults() == ([], None)
    await limiter.set_system_defaults(two, "block")
    limits, policy = await limiter.get_system_defaults()
    assert (limits, policy) == ([rpm(10)[0], two[0]], OnUnavailable.BLOCK), "by name"
    for resource in ("gpt-5", "gpt-4"):
        await limiter.set_resource_defaults(resource, two)
    assert await limiter.list_resources_with_defaults() == ["gpt-4", "gpt-5"]
    await limiter.set_resource_defaults("gpt-4", rpm(1))
    assert await limiter.get_resource_defaults("gpt-4") == rpm(1), "a limit that is not named again is gone"
    for _ in range(2):
        await limiter.delete_resource_defaults("gpt-4")
    assert await limiter.get_resource_defaults("gpt-4") == []
    assert await limiter.list_resources_with_defaults() == ["gpt-5"]
    for entity in ("c", "a", "b"):
        await limiter.set_limits(entity, rpm(1), "gpt-4")
    await limiter.set_limits("a", rpm(2), "gpt-4")
    await limiter.set_limits("a", rpm(2))
    page, cursor = await limiter.list_entities_with_custom_limits("gpt-4", limit=2)
    assert page == ["a", "b"]
    assert await limiter.list_entities_with_custom_limits("gpt-4", 2, cursor) == (["c"], None)
    assert await limiter.list_resources_with_entity_configs() == ["_default_", "gpt-4"]
    await limiter.delete_limits("a")
    assert await limiter.list_entities_with_custom_limits() == ([], None)
    assert await limiter.list_resources_with_entity_configs() == ["gpt-4"]


async def test_a_listing_without_a_limit_is_whole_and_one_with_a_limit_says_that_there_is_more(
    harness: Harness,
) -> None:
    repo = harness.repository()
    everybody = [f"key-{number:03}" for number in range(230)]
    for entity in everybody:
        await repo.set_limits(entity, rpm(1), "gpt-4")
    assert await repo.list_entities_with_custom_limits("gpt-4") == (everybody, None)
    first, cursor = await repo.list_entities_with_custom_limits("gpt-4", limit=100)
    assert (first, cursor is not None) == (everybody[:100], True)
    assert await repo.list_entities_with_custom_limits("gpt-4", cursor=cursor) == (everybody[100:], None)


async def test_config_is_cached_also_where_there_is_none(harness: Harness) -> None:
    store = FaultyStore(harness.store())
    limiter = harness.limiter(store)
    await limiter.set_system_defaults(rpm(100))
    await take(limiter, 1)
    reads, stats = store.calls["read"], limiter.repository.get_cache_stats()
    for _ in range(10):
        await take(limiter, 1)
    assert store.calls["read"] == reads, "no read, though three of four levels say nothing"
    after = limiter.repository.get_cache_stats()
    assert after.hits >= stats.hits + 10
    assert (after.misses, after.size, after.ttl_seconds) == (stats.misses, 1, 60)
    harness.clock.advance(60)
    await take(limiter, 1)
    assert store.calls["read"] == reads + 1, "one read for everything"
    await limiter.repository.invalidate_config_cache()
    assert limiter.repository.get_cache_stats().size == 0
    await take(limiter, 1)
    assert store.calls["read"] == reads + 2


async def test_without_a_cache_every_acquire_reads(harness: Harness) -> None:
    limiter = harness.limiter(harness.repository(config_cache_ttl=0))
    other = harness.limiter()
    await other.set_system_defaults(rpm(100))
    await take(limiter, 1)
    await other.set_system_defaults(rpm(5))
    assert (await take(limiter, 1)).available == {"rpm": 4}


async def test_a_change_elsewhere_arrives_when_the_cache_ends(harness: Harness) -> None:
    limiter, other = harness.limiter(), harness.limiter()
    await limiter.set_system_defaults(rpm(3_600))
    await take(limiter, 1)
    await other.set_system_defaults(rpm(50, 3_600))
    harness.clock.advance(59.999)
    assert (await take(limiter, 1)).limits == tuple(rpm(3_600))
    harness.clock.advance_ms(1)
    assert (await take(limiter, 1)).limits == tuple(rpm(50, 3_600))


async def test_a_clock_that_steps_back_does_not_prolong_the_cache(harness: Harness) -> None:
    limiter, other = harness.limiter(), harness.limiter()
    await limiter.set_system_defaults(rpm(10**6))
    await take(limiter, 1)
    harness.clock.advance(-1_800)
    await other.set_system_defaults(rpm(50))
    harness.clock.advance(60)
    assert (await limiter.get_status("key", "gpt-4"))[0].capacity == 50


@pytest.mark.parametrize("level", ["system", "resource", "entity", "parent"])
async def test_a_busy_bucket_tells_a_second_client_of_a_change(harness: Harness, level: str) -> None:
    store = FaultyStore(harness.store())
    first, second = harness.limiter(), harness.limiter(store)
    await first.create_entity("org")
    await first.create_entity("key", parent_id="org", cascade=True)
    await first.set_system_defaults(rpm(100))
    await take(second, 1)
    if level == "system":
        await first.set_system_defaults(rpm(5))
    elif level == "resource":
        await first.set_resource_defaults("gpt-4", rpm(5))
    elif level == "entity":
        await first.set_limits("key", rpm(5))
    else:
        await first.set_limits("org", rpm(5))
    await take(first, 1)
    before = store.calls.total()
    assert (await take(second, 1)).available == {"rpm": 3}
    one = 1 if store.capabilities.free_atomic_commit else 2
    told = store.calls.total() - before
    most = 4 if one == 1 else 7  # the write that told nothing goes back, too
    assert told <= most, "a write that tells, a read per level, a write that counts"
    before = store.calls.total()
    await take(second, 1)
    assert store.calls.total() - before == one


async def test_a_local_change_beats_a_read_that_was_under_way(harness: Harness) -> None:
    store = Meddler(harness.store())
    limiter = harness.limiter(store)
    await limiter.set_system_defaults(rpm(100))
    store.after_read = lambda: limiter.set_system_defaults(rpm(5))
    await take(limiter, 0)
    assert (await take(limiter, 1)).available == {"rpm": 4}


async def test_a_raise_keeps_the_tokens_and_lifts_the_ceiling(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults(rpm(100, 3_600))
    await take(limiter, 70)
    await limiter.set_system_defaults(rpm(500, 3_600))
    assert (await take(limiter, 10)).available == {"rpm": 20}
    harness.clock.advance(100)
    assert await left(limiter) == 120
    harness.clock.advance(10_000)
    assert await left(limiter) == 500


@pytest.mark.parametrize("rate", [3_600, 7_200])
async def test_a_raise_of_a_bucket_long_full_mints_nothing(harness: Harness, rate: int) -> None:
    limiter = harness.limiter()
    await limiter.set_limits("key", rpm(100, 3_600))
    await take(limiter, 100)
    harness.clock.advance(50_000)
    await limiter.set_limits("key", rpm(500, rate))
    assert await left(limiter) == 100
    with pytest.raises(RateLimitExceeded) as refused:
        await take(limiter, 101)
    assert refused.value.retry_after_seconds == pytest.approx(3_600 / rate, abs=0.001)
    assert (await take(limiter, 100)).available == {"rpm": 0}
    harness.clock.advance(10)
    assert await left(limiter) == rate // 360


async def test_a_cut_clamps_and_debt_stays_debt(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults(rpm(100))
    await take(limiter, 10)
    await limiter.set_system_defaults(rpm(50))
    assert (await take(limiter, 1)).available == {"rpm": 49}
    async with limiter.acquire("key", "gpt-4", {"rpm": 1}) as lease:
        await lease.adjust(rpm=100)
    for capacity in (500, 10, 50):
        await limiter.set_system_defaults(rpm(capacity))
        with pytest.raises(RateLimitExceeded):
            await take(limiter, 1)
        assert await left(limiter) == -52


async def test_a_new_rate_counts_from_the_change_on(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults(rpm(1_000, 3_600))
    await take(limiter, 1_000)
    harness.clock.advance(10)
    await limiter.set_system_defaults(rpm(1_000, 36_000))
    assert (await take(limiter, 0)).available == {"rpm": 10}
    harness.clock.advance(10)
    assert await left(limiter) == 110


@pytest.mark.parametrize("rate", [1, 60, 7_000])
async def test_the_promised_moment_holds_after_a_change_that_refuses(harness: Harness, rate: int) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults(rpm(100, 60))
    await take(limiter, 100)
    harness.clock.advance(17.123)
    await limiter.set_system_defaults(rpm(200, rate))
    with pytest.raises(RateLimitExceeded) as refused:
        await take(limiter, 3)
    assert refused.value.retry_after_seconds is not None
    wait_ms = round(refused.value.retry_after_seconds * 1000)
    harness.clock.advance_ms(wait_ms - 1)
    with pytest.raises(RateLimitExceeded):
        await take(limiter, 3)
    harness.clock.advance_ms(1)
    await take(limiter, 3)


@pytest.mark.parametrize("rate", [1, 7_000])
async def test_the_looked_up_moment_holds_after_a_change(harness: Harness, rate: int) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults(rpm(100, 60))
    await take(limiter, 100)
    await limiter.set_system_defaults(rpm(100, rate))
    wait_ms = round(1000 * await limiter.time_until_available("key", "gpt-4", {"rpm": 3}))
    harness.clock.advance_ms(wait_ms)
    await take(limiter, 3)


async def test_a_limit_that_is_added_starts_full_and_one_that_comes_back_does_not(harness: Harness) -> None:
    limiter = harness.limiter()
    tpm = Limit.per_hour("tpm", 3_600)
    await limiter.set_system_defaults(rpm(10))
    await take(limiter, 10)
    await limiter.set_system_defaults([*rpm(10), tpm])
    assert (await take(limiter, 3_600, name="tpm")).available == {"rpm": 0, "tpm": 0}
    await limiter.set_system_defaults(rpm(10))
    with pytest.raises(ValidationError, match="tpm"):
        await take(limiter, 1, name="tpm")
    harness.clock.advance(5)
    await limiter.set_system_defaults([*rpm(10), tpm])
    assert (await limiter.available("key", "gpt-4"))["tpm"] == 5


async def test_which_buckets_expire(harness: Harness) -> None:
    limiter = harness.limiter()
    now_s = harness.clock.now_ms() // 1000
    await limiter.set_system_defaults(rpm(100, 50))
    await take(limiter, 1)
    kept = kept_ms(limiter.repository.capabilities.usage_retention_days) // 1000
    assert (await bucket(harness, limiter))["ttl"] == now_s + (kept or 7 * 7_200), "seven times the time to fill"
    await limiter.set_limits("key", rpm(100, 50))
    await take(limiter, 1)
    assert "ttl" not in await bucket(harness, limiter), "limits of its own"
    await limiter.delete_limits("key")
    await take(limiter, 1)
    assert (await bucket(harness, limiter))["ttl"] == now_s + (kept or 7 * 7_200), "back to the defaults"
    other = harness.limiter(bucket_ttl_refill_multiplier=0)
    await take(other, 1)
    assert "ttl" not in await bucket(harness, other), "switched off"
    await take(harness.limiter(bucket_ttl_refill_multiplier=2), 1, "new")
    assert (await bucket(harness, limiter, "new"))["ttl"] == now_s + (kept or 2 * 7_200)


async def test_debt_outlives_the_time_to_live(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults([*rpm(60), Limit.per_minute("tpm", 1_000)])
    async with limiter.acquire("key", "gpt-4", {"tpm": 1}) as lease:
        await lease.adjust(tpm=10**6)
    await take(limiter, 1)
    harness.clock.advance(8 * 3_600)
    seen: dict[str, Any] = await harness.limiter().available("key", "gpt-4")
    assert seen["tpm"] == 1_000 - 10**6 - 1 + 8 * 60_000


@pytest.mark.parametrize("poison", [{"l_rpm_cp": "lots"}, {"l_rpm_ra": 0.5}, {"config_version": "latest"}], ids=str)
async def test_config_that_cannot_be_read_is_an_error_until_it_is_set_again(harness: Harness, poison: Image) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults(rpm(100))
    key = keys.system_config((await limiter.repository.get_namespace("default")).id)
    await harness.store().commit([Write(key, put=poison)])
    await limiter.repository.invalidate_config_cache()
    with pytest.raises(CorruptRecordError, match=r"[Ss]et"):
        await take(limiter, 1)
    await limiter.set_system_defaults(rpm(50))
    assert (await take(limiter, 1)).available == {"rpm": 49}


async def test_the_policy_for_an_unavailable_store_is_read_once_per_cache_time(harness: Harness) -> None:
    store = FaultyStore(harness.store())
    repository = harness.limiter(store).repository
    await repository.set_system_defaults([Limit.per_minute("rpm", 10)], on_unavailable="allow")
    assert await repository.resolve_on_unavailable() is OnUnavailable.ALLOW
    before = store.calls.copy()
    for _ in range(3):
        assert await repository.resolve_on_unavailable() is OnUnavailable.ALLOW
    assert store.calls == before
    await harness.limiter().set_system_defaults([Limit.per_minute("rpm", 10)], on_unavailable="block")
    harness.clock.advance(repository.get_cache_stats().ttl_seconds)
    assert await repository.resolve_on_unavailable() is OnUnavailable.BLOCK
    await repository.set_system_defaults([Limit.per_minute("rpm", 10)], on_unavailable="allow")
    assert await repository.resolve_on_unavailable() is OnUnavailable.ALLOW, "a change of its own counts at once"
