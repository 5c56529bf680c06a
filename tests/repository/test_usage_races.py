"""Usage under races: what others do between a look and a write is neither lost nor counted twice."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence

import pytest

from tests.conformance.accounts import Books
from tests.repository.test_usage_kept import HOUR, RPM, take
from tests.support.backends import KEEPING, Backend
from tests.support.meddler import Meddler
from zae_limiter import Limit, RateLimiter, RateLimitExceeded
from zae_limiter.records import keys
from zae_limiter.records.algebra import Committed, Conflict, Write
from zae_limiter.stores.memory import MemoryStore
from zae_limiter.testing import FaultyStore, Harness, ManualClock


@pytest.fixture(params=KEEPING, ids=str)
def backend(request: pytest.FixtureRequest) -> Backend:
    """A store whose writes keep usage, and a mode."""
    found: Backend = request.param
    return found


async def test_threads_of_readers_beside_writers_lose_nothing(harness: Harness) -> None:
    """Reading books what is open: it must not get into the way of those who consume at the turn of an hour."""
    from zae_limiter.testing.conformance.room import at_once

    books = await Books(harness, random.Random(5)).open(clients=3)

    async def consume() -> None:
        for _ in range(6):
            async with books.clients[0].acquire("key-1", "gpt-4", {"rpm": 1}):
                pass

    async def read() -> None:
        for _ in range(3):
            await books.clients[1].get_usage_summary("org")
            await books.clients[2].get_usage_snapshots(resource="gpt-4")

    for _ in range(3):
        await at_once(harness, [consume, consume, read, read])
        harness.clock.advance(HOUR)
    assert (await books.clients[2].get_usage_summary("org", window_type="daily")).total == {"rpm": 36}


class Crowded(FaultyStore):
    """Somebody else is always faster."""

    crowd: Callable[[], Awaitable[None]] | None = None

    async def commit(self, writes: Sequence[Write], *, timeout: float | None = None) -> Committed | Conflict:
        if self.crowd is not None:
            await self.crowd()
        return await super().commit(writes, timeout=timeout)


async def test_usage_can_be_read_while_others_consume_all_the_time(harness: Harness) -> None:
    store = Crowded(harness.store())
    reader, limiter = harness.limiter(store), harness.limiter()
    await limiter.set_system_defaults([Limit.per_minute("rpm", 1_000)])
    await take(limiter, 3)
    store.crowd = lambda: take(limiter, 2)
    found, _ = await reader.get_usage_snapshots("key", window_type="hourly")
    assert [(dict(each.counters), each.total_events) for each in found] == [({"rpm": 3}, 1)]
    store.crowd = None
    found, _ = await reader.get_usage_snapshots("key", window_type="hourly")
    assert [(dict(each.counters), each.total_events) for each in found] == [({"rpm": 5}, 2)]


async def test_what_is_consumed_while_a_bucket_is_forgotten_is_counted(harness: Harness) -> None:
    """Also where nothing was open when it was looked at."""

    able = harness.store().capabilities
    if able.usage_retention_days and able.wide_commits:
        store = Meddler(harness.store())
        keeper, limiter = harness.limiter(store), harness.limiter()
        await limiter.set_system_defaults(RPM)
        await limiter.create_entity("key")

        total = 0
        for forget in (keeper.reset_bucket("key", "gpt-4"), keeper.delete_entity("key")):
            await take(limiter, 5)
            total += 5 + 7
            await limiter.get_usage_summary("key")
            store.before_commit = lambda: take(limiter, 7)
            await forget
            assert (await limiter.get_usage_summary("key")).total == {"rpm": total}


async def test_a_bucket_is_reset_while_others_consume_all_the_time(harness: Harness) -> None:
    store = Crowded(harness.store())
    keeper, limiter = harness.limiter(store), harness.limiter()
    await limiter.set_system_defaults([Limit.per_minute("rpm", 1_000)])
    await take(limiter, 500)
    store.crowd = lambda: take(limiter)
    await keeper.reset_bucket("key", "gpt-4")
    # On a cluster the audit event follows in a commit of its own, before which one more call is charged.
    since = 0 if store.capabilities.wide_commits else 1
    assert await limiter.available("key", "gpt-4") == {"rpm": 1_000 - since}


async def test_a_bucket_that_only_looks_like_the_one_before_is_another(harness: Harness) -> None:
    """As often booked, as much consumed; but less of it is on record."""
    store = Meddler(harness.store())
    reader, limiter = harness.limiter(store), harness.limiter()
    await limiter.set_system_defaults(RPM)

    async def another() -> None:
        await limiter.reset_bucket("key", "gpt-4")
        await take(limiter, 2)
        await limiter.get_usage_summary("key")
        await take(limiter, 6)

    await take(limiter, 5)
    await limiter.get_usage_summary("key")
    await take(limiter, 3)
    store.before_commit = another
    assert (await reader.get_usage_summary("key")).total == {"rpm": 16}


async def test_an_entity_with_many_buckets_is_deleted_with_the_damaged_ones(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults(RPM)
    await limiter.create_entity("key")
    for number in range(40):
        async with limiter.acquire("key", f"model-{number}", {"rpm": 1}):
            pass
    ns = (await limiter.repository.get_namespace("default")).id
    await harness.store().commit([Write(keys.bucket(ns, "key", "model-9"), put={"b_rpm_tc": "many"})])
    await limiter.delete_entity("key")
    assert await limiter.get_buckets("key") == []


async def test_what_takes_nothing_of_a_level_is_no_event_of_it(harness: Harness) -> None:
    """Not when its bucket is made, not when that is moved to other limits, and not when acquires go out together."""
    limiter = harness.limiter()
    await limiter.set_system_defaults(RPM)
    await limiter.create_entity("org")
    await limiter.create_entity("key", parent_id="org", cascade=True)
    for capacity in (1_000, 2_000):
        await limiter.set_limits("org", [Limit.per_minute("tpm", capacity)])
        await take(limiter)
        await take(limiter)
    assert await limiter.get_usage_snapshots("org") == ([], None)
    found, _ = await limiter.get_usage_snapshots("key", window_type="hourly")
    assert [each.total_events for each in found] == [4]


async def test_acquires_that_go_out_together_are_as_many_events_as_alone() -> None:
    limiter = RateLimiter(FaultyStore(MemoryStore(ManualClock()), suspend=True))
    await limiter.set_system_defaults(RPM)
    await take(limiter)
    await asyncio.gather(*(take(limiter, amount) for amount in (0, 0, 2, 0, 3)))
    found, _ = await limiter.get_usage_snapshots("key", window_type="hourly")
    assert [(dict(each.counters), each.total_events) for each in found] == [({"rpm": 6}, 3)]


async def test_what_nobody_was_given_is_no_usage_of_a_bucket_that_is_reset_meanwhile() -> None:
    """Levels are written side by side: one is taken and gone again when the other refuses."""
    clock = ManualClock()
    inner = MemoryStore(clock)
    store = Resetting(inner, suspend=True, free_atomic_commit=False)
    limiter, other = RateLimiter(store, refusal_ttl=0), RateLimiter(inner)
    await other.set_system_defaults(RPM)
    await other.create_entity("org")
    await other.set_limits("org", [Limit.per_minute("rpm", 1)])
    await other.create_entity("key", parent_id="org", cascade=True)
    await take(limiter)
    clock.advance(60)
    await take(other, 1, "org")
    store.reset = lambda: other.reset_bucket("key", "gpt-4")
    with pytest.raises(RateLimitExceeded):
        await take(limiter)
    found, _ = await other.get_usage_snapshots("key", window_type="hourly")
    assert [(dict(each.counters), each.total_events) for each in found] == [({"rpm": 1}, 1)]


async def test_what_is_given_back_to_a_deleted_entity_makes_no_bucket(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.create_entity("key")
    await limiter.set_limits("key", RPM)
    async with limiter.acquire("key", "gpt-4", {"rpm": 5}) as lease:
        await limiter.delete_entity("key")
        await lease.adjust(rpm=-2)
    assert await limiter.get_buckets("key") == []
    found, _ = await limiter.get_usage_snapshots("key", window_type="hourly")
    assert [(dict(each.counters), each.total_events) for each in found] == [({"rpm": 3}, 2)]


class Resetting(FaultyStore):
    """Resets a bucket right after it was charged."""

    reset: Callable[[], Awaitable[object]] | None = None

    async def commit(self, writes: Sequence[Write], *, timeout: float | None = None) -> Committed | Conflict:
        outcome = await super().commit(writes, timeout=timeout)
        if self.reset is not None and "BUCKET#key#" in writes[0].key.pk:
            act, self.reset = self.reset, None
            await act()
        return outcome
