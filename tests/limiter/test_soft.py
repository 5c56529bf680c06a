"""Soft limits: what is taken beyond them is counted apart, exactly, and told."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, strategies as st

from tests.aggregator.streams import StreamedStore, aggregator, snapshots
from tests.support.acquiring import granted, take
from tests.support.charges import create, settle, written
from zae_limiter import Decision, Limit, Observer
from zae_limiter.core.change import Change
from zae_limiter.core.credits import draw_with_credits
from zae_limiter.core.tokens import draw, owe
from zae_limiter.records import bucket, keys, usage
from zae_limiter.records.algebra import Image, apply_write, holds
from zae_limiter.records.level import BucketLimits, token_fields, token_limits_for
from zae_limiter.records.settlement import Receipt
from zae_limiter.records.splitting import split
from zae_limiter.runtime.blocking import run
from zae_limiter.sync import BlockingRateLimiter, BlockingRepository
from zae_limiter.testing import FaultyStore, Harness, ManualClock

SOFT = Limit.per_day("tpd", 100, soft=True)
HARD = Limit.per_minute("rpm", 60)


async def overdrawn(limiter: Any, entity: str = "key") -> dict[str, int]:
    """Return the tokens that were overdrawn ever, of each limit in the bucket."""
    return {state.limit_name: state.total_overdrawn_milli // 1000 for state in await limiter.get_buckets(entity)}


@given(
    capacity=st.integers(1, 1_000),
    since=st.integers(-1_000, 10**6),
    seen=st.integers(-2_000, 3_000),
    stored=st.integers(-2_000, 3_000),
    cost=st.integers(0, 2_000),
    owes=st.booleans(),
)
def test_where_the_guard_holds_what_is_counted_as_overdrawn_was_not_there(
    capacity: int, since: int, seen: int, stored: int, cost: int, owes: bool
) -> None:
    """Whatever the writer has seen, and whatever is stored by now."""
    change, at = Change(), token_fields("tpd")
    if owes:
        owe(change, at, (seen - since, since, capacity, None), cost, soft=True)
    else:
        assert draw(change, at, (seen - since, since, capacity, None), cost, soft=True)
    assert holds({at.tokens: seen - since}, written(change).guards), "by who has seen what is stored, it is taken"
    if holds({at.tokens: stored - since}, written(change).guards):
        real = min(capacity, stored)
        assert change.add.get(at.overdrawn, 0) == max(0, cost - max(0, real))
        after = change.put.get(at.tokens, stored - since + change.add.get(at.tokens, 0))
        assert min(capacity, after + since) == real - cost


@given(
    since=st.integers(-1_000, 10**6),
    seen=st.integers(-60, 120),
    stored=st.integers(-60, 120),
    lots=st.tuples(st.integers(0, 40), st.integers(0, 40)),
    stored_lots=st.tuples(st.integers(0, 40), st.integers(0, 40)),
    cost=st.integers(0, 150),
)
def test_with_credits_too_only_what_was_not_there_is_counted_as_overdrawn(
    since: int, seen: int, stored: int, lots: tuple[int, int], stored_lots: tuple[int, int], cost: int
) -> None:
    """A debt has to be covered by credit before anything can be taken from it."""
    change, at = Change(), token_fields("tpd")
    known = dict(zip(("lot_a", "lot_b"), lots, strict=True))
    if min(100, seen) >= cost:
        return
    assert draw_with_credits(change, at, (seen - since, since, 100, None), list(known.items()), cost, soft=True)
    guards = written(change).guards
    assert holds({at.tokens: seen - since, **known}, guards), "by who has seen what is stored, it is taken"
    image = {at.tokens: stored - since, "lot_a": stored_lots[0], "lot_b": stored_lots[1]}
    if holds(image, guards):
        real, credit = min(100, stored), sum(stored_lots)
        assert change.add.get(at.overdrawn, 0) == max(0, cost - max(0, real + credit))
        after = {attr: change.put.get(attr, value + change.add.get(attr, 0)) for attr, value in image.items()}
        assert min(100, after[at.tokens] + since) + after["lot_a"] + after["lot_b"] == real + credit - cost
        assert min(after["lot_a"], after["lot_b"]) >= 0


async def test_an_overdrawn_limit_is_one_write_and_no_read(harness: Harness) -> None:
    store = FaultyStore(harness.store())
    limiter = harness.limiter(store)
    await limiter.set_system_defaults([SOFT, HARD])
    for cost, over in ((60, 0), (60, 20), (60, 80), (1, 81)):
        before = store.calls.copy()
        assert await granted(limiter, {"tpd": cost, "rpm": 1})
        made = store.calls - before
        assert over in (0, 20) or made.total() <= 1, made
        assert await overdrawn(limiter) == {"tpd": over, "rpm": 0}


async def test_of_several_clients_each_token_is_overdrawn_once(harness: Harness) -> None:
    clients = [harness.limiter() for _ in range(4)]
    await clients[0].set_system_defaults([SOFT])
    for _ in range(5):
        for client in clients:
            assert await granted(client, {"tpd": 7})
    assert await overdrawn(clients[0]) == {"tpd": 40}


async def test_a_return_takes_off_what_this_lease_overdrew_first(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults([SOFT])
    async with limiter.acquire("key", "gpt-4", {"tpd": 130}) as lease:
        assert await overdrawn(limiter) == {"tpd": 30}
        assert await granted(limiter, {"tpd": 50})
        await lease.release(tpd=40)
    assert await overdrawn(limiter) == {"tpd": 50}, "30 of the 40 were overdrawn; the others' 50 stay"
    lease = limiter.acquire("key", "gpt-4", {"tpd": 20})
    await lease.enter()
    await lease.exit(final=False)
    for back, left in ((5, 65), (5, 60), (10, 50)):
        await lease.adjust(tpd=-back)
        assert await overdrawn(limiter) == {"tpd": left}
    with pytest.raises(KeyError):
        async with limiter.acquire("key", "gpt-4", {"tpd": 500}):
            raise KeyError
    assert await overdrawn(limiter) == {"tpd": 50}


async def test_what_was_used_beyond_an_estimate_is_overdrawn_if_soft_and_debt_if_not(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults([SOFT, HARD])
    async with limiter.acquire("key", "gpt-4", {"tpd": 10, "rpm": 10}) as lease:
        await lease.adjust(tpd=100, rpm=100)
    assert await overdrawn(limiter) == {"tpd": 10, "rpm": 0}
    async with limiter.acquire("key", "gpt-4", {"tpd": 1}) as lease:
        await lease.adjust(tpd=1_000)
    assert await overdrawn(limiter) == {"tpd": 1_011, "rpm": 0}


async def test_a_bypassed_level_counts_it_too_and_a_hard_parent_does_not(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.create_entity("org")
    await limiter.create_entity("key", parent_id="org", cascade=True)
    await limiter.set_limits("org", [Limit.per_day("tpd", 1_000)])
    await limiter.set_limits("key", [Limit.per_day("tpd", 100)])
    await limiter.bypass_entity("key")
    lease = await take(limiter, {"tpd": 130})
    assert (lease.bypassed, lease.overdrawn) == (True, ("tpd",))
    assert await overdrawn(limiter) == {"tpd": 30}
    assert await overdrawn(limiter, "org") == {"tpd": 0}
    assert not await granted(limiter, {"tpd": 900})
    assert await overdrawn(limiter) == {"tpd": 30}, "what went back was not overdrawn"


async def test_a_changed_limit_and_a_bucket_that_was_reset(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults([Limit.per_day("tpd", 100)])
    assert await granted(limiter, {"tpd": 90})
    await limiter.set_system_defaults([SOFT])
    assert await granted(limiter, {"tpd": 30})
    assert await overdrawn(limiter) == {"tpd": 20}
    await limiter.set_system_defaults([replace(SOFT, capacity=50)])
    async with limiter.acquire("key", "gpt-4", {"tpd": 30}) as lease:
        assert await overdrawn(limiter) == {"tpd": 50}
        await limiter.reset_bucket("key", "gpt-4")
        await lease.release(tpd=30)
    assert await granted(limiter, {"tpd": 60})
    if limiter.repository.capabilities.usage_retention_days:
        summary = await limiter.get_usage_summary("key", "gpt-4", "hourly")
        assert summary.total == {"tpd": 180}
        assert summary.overdrawn == {"tpd": 30}


async def test_usage_counts_it_in_the_hour_in_which_it_was(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults([Limit.quota("t", 10, every=timedelta(hours=2), soft=True)])
    harness.clock.advance_ms(-harness.clock.now_ms() % 7_200_000)
    for cost in (12, 5, 25):
        assert await granted(limiter, {"t": cost})
        harness.clock.advance(3_600)
    found, _ = await limiter.get_usage_snapshots("key", "gpt-4", "hourly")
    if limiter.repository.capabilities.usage_retention_days:
        assert [(each.counters, each.overdrawn) for each in found] == [
            ({"t": 25}, {"t": 22}),
            ({"t": 5}, {"t": 5}),
            ({"t": 12}, {"t": 2}),
        ], "7 of the second allowance pay what was used beyond the first"


async def test_observers_are_told_which_limits_were_overdrawn(harness: Harness) -> None:
    told: list[tuple[str, ...]] = []

    class Watching(Observer):
        def on_decision(self, decision: Decision) -> None:
            told.append(decision.overdrawn)

    limiter = harness.limiter()
    limiter.observers = (Watching(),)
    await limiter.set_system_defaults([SOFT, HARD])
    for cost in (60, 60):
        await take(limiter, {"tpd": cost, "rpm": 1})
    assert not await granted(limiter, {"tpd": 5, "rpm": 90})
    async with limiter.acquire("key", "gpt-4", {"rpm": 1}) as lease:
        await lease.consume(tpd=1)
    assert told == [(), ("tpd",), (), (), ("tpd",)]


def test_the_halves_of_a_split_bucket_return_together_what_was_overdrawn() -> None:
    limits = (replace(SOFT, capacity=101),)
    key = keys.bucket("ns", "key", "gpt-4")
    level = BucketLimits(
        key, "ns", "key", "gpt-4", limits, token_limits_for(limits), "system", 1, partition_writes=1000
    )
    now = 10**12
    image = apply_write(None, create(level, {"tpd": 150_003}, now))
    assert image is not None
    charge = Receipt.of(level, image, now, cost={"tpd": 150_003})
    assert charge.overdrawn == {"tpd": 49_003}
    total = 0
    writes = split(level, image, now)
    halves: list[Image] = []
    for before, write in zip((image, None), writes, strict=True):
        after = apply_write(before, write)
        assert after is not None
        halves.append(after)
    for each, half, place_ in zip(charge.split(), halves, (0, 1), strict=True):
        back = {"tpd": -30_001 if place_ == 0 else -30_000}
        write = settle(level.at(place_, 2), half, back, each, now)
        after = apply_write(half, write)
        assert after is not None
        total += after.get("b_tpd_ov", 0)
    assert total == 0
    assert bucket.states([(key, image)], now)[0].total_overdrawn_milli == 49_003


def test_the_stream_counts_it_apart() -> None:
    store = StreamedStore(ManualClock())
    limiter = BlockingRateLimiter(BlockingRepository(store))

    async def spend() -> None:
        for cost, more in ((80, 0), (80, -30), (80, 5)):
            async with limiter.acquire("key", "gpt-4", {"tpd": cost}, limits=[SOFT]) as lease:
                await lease.adjust(tpd=more)

    run(spend())
    assert run(overdrawn(limiter)) == {"tpd": 30 + 80 + 5}
    assert aggregator(store).process(store.records) == {"batchItemFailures": []}
    found = [usage.decode(image) for image in snapshots(store).values()]
    assert [(each.counters, each.overdrawn) for each in found] == [({"tpd": 215}, {"tpd": 115})] * 3
