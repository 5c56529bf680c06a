"""Each row of the reference's observed defects that can occur on an embedded store; the number is the row.

Row 17 (change and audit together) is in `test_audit`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from zae_limiter import (
    CapacityExceeded,
    CorruptRecordError,
    EntityNotFoundError,
    Lease,
    Limit,
    RateLimiter,
    RateLimiterUnavailable,
    RateLimitExceeded,
    ValidationError,
)
from zae_limiter.bucket import refill_bucket
from zae_limiter.records import keys
from zae_limiter.records.algebra import Write
from zae_limiter.testing import Fault, FaultyStore, Harness, ManualClock

RPM = [Limit.per_minute("rpm", 100)]


async def take(limiter: RateLimiter, cost: dict[str, int], entity: str = "key", **options: Any) -> Lease:
    async with limiter.acquire(entity, "gpt-4", cost, **options) as lease:
        return lease


async def granted(limiter: RateLimiter, cost: dict[str, int], entity: str = "key", **options: Any) -> bool:
    try:
        await take(limiter, cost, entity, **options)
    except RateLimitExceeded:
        return False
    return True


def test_row_1_refill_in_steps_of_a_millisecond_credits_the_rate_and_no_more() -> None:
    start = 1_800_000_000_000
    for amount, period in ((7, 3_000), (1_000, 60_000), (999_983, 86_400_000)):
        tokens, at = 0, start
        for now in range(start + 1, start + 20_001):
            tokens, at = refill_bucket(tokens, at, now, 10**12, amount, period)
        assert tokens == (start + 20_000) * amount // period - start * amount // period


async def test_row_1_polled_every_millisecond_through_the_store(harness: Harness) -> None:
    limits = [Limit.custom("tpm", capacity=1_000, refill_amount=70, refill_period_seconds=3)]
    limiter = harness.limiter()
    await take(limiter, {"tpm": 1_000}, limits=limits)
    passed = 0
    for _ in range(3_000):
        harness.clock.advance_ms(1)
        passed += await granted(limiter, {"tpm": 1}, limits=limits)
    assert passed == 70


async def test_row_2_a_slow_limit_beside_a_fast_one_refills_in_full(harness: Harness) -> None:
    limits = [Limit.per_day("slow", 100), Limit.per_second("fast", 2, burst=20)]
    limiter = harness.limiter()
    await take(limiter, {"slow": 100, "fast": 20}, limits=limits)
    for _ in range(360):
        harness.clock.advance(10)
        await take(limiter, {"fast": 20}, limits=limits)
    assert await limiter.available("key", "gpt-4", limits) == {"slow": 4, "fast": 0}
    wait = await limiter.time_until_available("key", "gpt-4", {"slow": 5}, limits)
    assert wait == pytest.approx(720, abs=0.9)  # due 4,320 s after the start; a millitoken takes 0.864 s


async def test_row_4_given_limits_decide_also_when_the_bucket_exists(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults(RPM)
    await take(limiter, {"rpm": 1})
    tight = [Limit.per_minute("rpm", 2)]
    lease = await take(limiter, {"rpm": 1}, limits=tight)
    assert lease.available == {"rpm": 1}
    assert await granted(limiter, {"rpm": 1}, limits=tight)
    assert not await granted(limiter, {"rpm": 1}, limits=tight)
    with pytest.raises(CapacityExceeded):
        await take(limiter, {"rpm": 3}, limits=tight)


@pytest.mark.parametrize("level", ["system", "resource"])
async def test_row_5_a_changed_default_reaches_existing_buckets_at_once(harness: Harness, level: str) -> None:
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


async def test_row_6_consumed_is_counted_once_under_cascade(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults(RPM)
    await limiter.create_entity("org")
    await limiter.create_entity("key", parent_id="org", cascade=True)
    async with limiter.acquire("key", "gpt-4", {"rpm": 10}) as lease:
        await lease.consume(rpm=5)
        await lease.adjust(rpm=2)
        assert lease.consumed == {"rpm": 17}
    for who in ("key", "org"):
        assert await limiter.available(who, "gpt-4") == {"rpm": 83}


async def test_row_7_lease_consume_is_checked_by_the_store(harness: Harness) -> None:
    one, two = harness.limiter(), harness.limiter()
    await one.set_system_defaults(RPM)
    async with one.acquire("key", "gpt-4", {"rpm": 10}) as mine, two.acquire("key", "gpt-4", {"rpm": 10}) as yours:
        await mine.consume(rpm=80)
        with pytest.raises(RateLimitExceeded):
            await yours.consume(rpm=80)
        assert yours.consumed == {"rpm": 10}
    assert await one.available("key", "gpt-4") == {"rpm": 0}


async def test_row_8_a_cancelled_body_gives_its_tokens_back(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults(RPM)

    async def body() -> None:
        async with limiter.acquire("key", "gpt-4", {"rpm": 40}) as lease:
            await lease.consume(rpm=10)
            await lease.adjust(rpm=7)
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await body()
    assert await limiter.available("key", "gpt-4") == {"rpm": 100}


async def test_row_8_a_failed_settlement_leaves_the_work_charged(harness: Harness) -> None:
    faulty = FaultyStore(harness.store())
    limiter = harness.limiter(faulty)
    await limiter.set_system_defaults(RPM)

    async def body() -> None:
        async with limiter.acquire("key", "gpt-4", {"rpm": 40}) as lease:
            await lease.adjust(rpm=7)
            faulty.inject(Fault.FAIL_BEFORE, verb="commit")

    with pytest.raises(RateLimiterUnavailable):
        await body()
    assert await limiter.available("key", "gpt-4") == {"rpm": 60}


@pytest.mark.parametrize("amount", [0.0005, 1.0, float("nan"), float("inf"), True, "1", None, -1])
async def test_row_9_amounts_that_would_poison_a_bucket_are_refused(harness: Harness, amount: Any) -> None:
    limiter = harness.limiter()
    await take(limiter, {"rpm": 1}, limits=RPM)
    with pytest.raises(ValidationError):
        await take(limiter, {"rpm": amount}, limits=RPM, on_unavailable="allow")
    assert await limiter.available("key", "gpt-4", RPM) == {"rpm": 99}


POISON: dict[str, Any] = {
    "a fraction": {"b_rpm_tk": 50_000.5},
    "text": {"b_rpm_tk": "lots"},
    "infinity": {"b_rpm_tk": float("inf")},
    "a boolean": {"b_rpm_tk": True},
    "nothing": {"b_rpm_tk": None},
    "anchor as text": {"rf": "yesterday"},
    "version as text": {"cv": "latest"},
}
RULE_POISON: dict[str, Any] = {"no capacity": {"b_rpm_cp": None}, "no time": {"b_rpm_rp": 0}}
CASES = [(name, put, warm) for name, put in POISON.items() for warm in (False, True)] + [
    (name, put, False) for name, put in RULE_POISON.items()
]


@pytest.mark.parametrize(
    ("poison", "warm"),
    [case[1:] for case in CASES],
    ids=[f"{case[0]}-{'warm' if case[2] else 'cold'}" for case in CASES],
)
async def test_row_9_a_poisoned_record_is_an_error_until_it_is_repaired(
    harness: Harness, poison: dict[str, Any], warm: bool
) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults(RPM)
    await take(limiter, {"rpm": 1})
    key = keys.bucket((await limiter.repository.get_namespace("default")).id, "key", "gpt-4")
    await harness.store().commit([Write(key, put=poison)])
    victim = limiter if warm else harness.limiter()
    for policy in ("block", "allow"):
        with pytest.raises(CorruptRecordError, match=r"reset_bucket\('key', 'gpt-4'\)"):
            await take(victim, {"rpm": 1}, on_unavailable=policy)
    await victim.reset_bucket("key", "gpt-4", principal="fixer")
    assert (await take(victim, {"rpm": 1})).available == {"rpm": 99}


async def test_row_10_a_cost_above_the_capacity_has_its_own_error(harness: Harness) -> None:
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


async def test_row_11_available_counts_the_cascading_parent(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults(RPM)
    await limiter.create_entity("org")
    for key in ("one", "two"):
        await limiter.create_entity(key, parent_id="org", cascade=True)
    await take(limiter, {"rpm": 90}, "one")
    assert await limiter.available("two", "gpt-4") == {"rpm": 10}
    rows = {row.entity_id: row.available for row in await limiter.get_status("two", "gpt-4")}
    assert rows == {"two": 100, "org": 10}


@pytest.mark.parametrize("pause", [0.0, 2.0], ids=["local", "by the store"])
async def test_row_12_a_refusal_lists_every_limit_of_every_level(harness: Harness, pause: float) -> None:
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


async def test_row_14_a_clock_60_s_ahead_mints_nothing_and_starves_nobody(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    ahead = ManualClock(harness.clock.now_ms() + 60_000)
    store = harness.store()
    right = harness.limiter(harness.repository(store, clock=harness.clock))
    with caplog.at_level(logging.WARNING, "zae_limiter"):
        skewed = harness.limiter(harness.repository(store, clock=ahead))
    assert right.repository.clock_skew_ms == 0
    assert skewed.repository.clock_skew_ms == 60_000
    assert (await skewed.repository.status()).clock_skew_ms == 60_000
    assert "+60000 ms" in caplog.text
    assert await granted(right, {"rpm": 100}, limits=RPM)
    assert not await granted(skewed, {"rpm": 1}, limits=RPM), "a second bucket"
    harness.clock.advance_ms(600)
    ahead.advance_ms(600)
    assert await granted(skewed, {"rpm": 1}, limits=RPM)
    harness.clock.advance_ms(600)
    ahead.advance_ms(600)
    assert await granted(right, {"rpm": 1}, limits=RPM), "starved"


def remembered(root: object) -> list[Any]:
    """Every object of ours that a limiter holds, the store apart."""
    found: list[Any] = []
    seen, todo = set(), [root]
    while todo:
        each = todo.pop()
        if id(each) in seen or not type(each).__module__.startswith("zae_limiter.") or hasattr(each, "capabilities"):
            continue
        seen.add(id(each))
        found.append(each)
        todo += list(getattr(each, "__dict__", {}).values())
    return found


async def test_row_15_what_a_client_remembers_is_bounded(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults(RPM)
    bounded = [each for each in remembered(limiter) if hasattr(each, "_max_entries")]
    assert len(bounded) >= 3, "config, chains and sights"
    for each in bounded:
        assert 0 < each._max_entries <= 100_000
        each._max_entries = 10
    for number in range(60):
        lease = await take(limiter, {"rpm": 60}, f"key-{number}")
        assert lease.available == {"rpm": 40}
    for each in remembered(limiter):
        for name, value in getattr(each, "__dict__", {}).items():
            if isinstance(value, (dict, list, set)):
                assert len(value) <= 10, f"{type(each).__name__}.{name}"
    assert limiter.repository.get_cache_stats().size <= 10
    for number in range(60):
        assert not await granted(limiter, {"rpm": 41}, f"key-{number}"), "what is forgotten is not handed out anew"


async def test_row_16_children_and_capacity_come_in_more_than_one_page(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults(RPM)
    await limiter.create_entity("org")
    wanted = [f"key-{number:03}" for number in range(230)]
    for key in wanted:
        await limiter.create_entity(key, parent_id="org")
        await take(limiter, {"rpm": 1}, key)
    assert [child.id for child in await limiter.get_children("org")] == wanted
    capacity = await limiter.get_resource_capacity("gpt-4", "rpm")
    assert [each.entity_id for each in capacity.entities] == wanted
    assert (capacity.total_capacity, capacity.total_available) == (23_000, 230 * 99)
    assert capacity.utilization_pct == 1.0


async def test_row_19_an_unknown_parent_is_an_error_and_a_grandparent_is_charged(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults(RPM)
    with pytest.raises(EntityNotFoundError, match="'nobody'"):
        await limiter.create_entity("key", parent_id="nobody", cascade=True)
    assert await limiter.get_entity("key") is None
    await limiter.create_entity("org")
    await limiter.create_entity("team", parent_id="org", cascade=True)
    await limiter.create_entity("key", parent_id="team", cascade=True)
    await take(limiter, {"rpm": 30})
    for who in ("key", "team", "org"):
        assert await limiter.available(who, "gpt-4") == {"rpm": 70}


async def test_row_27_an_idle_bucket_does_not_double_its_burst(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_limits("key", [Limit.per_second("rpm", 10, burst=100)])  # its own: the bucket never expires
    await take(limiter, {"rpm": 1})
    harness.clock.advance(3_600)
    passed = 0
    for _ in range(661):
        while await granted(limiter, {"rpm": 1}):
            passed += 1
        harness.clock.advance_ms(1)
    assert passed == 106  # 100 at once and 6 in the 660 ms after it
