"""Usage that the writes themselves keep: exact whatever happens, and at no call more."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from tests.conformance.accounts import usage_is_consumption
from tests.support.backends import KEEPING, Backend
from zae_limiter import Limit, RateLimiter, SyncRateLimiter, SyncRepository
from zae_limiter.records import keys
from zae_limiter.records.algebra import Write
from zae_limiter.records.level import BOOKINGS, CHANGES, HOUR_END
from zae_limiter.stores.memory import MemoryStore
from zae_limiter.testing import Fault, FaultyStore, Harness, ManualClock

HOUR = 3_600
RPM = [Limit.per_minute("rpm", 100)]
EXAMPLES = {"memory": 60, "sqlite": 8, "redis": 5, "redis-cluster": 3}


@pytest.fixture(params=KEEPING, ids=str)
def backend(request: pytest.FixtureRequest) -> Backend:
    """A store whose writes keep usage, and a mode."""
    found: Backend = request.param
    return found


def test_usage_is_kept_for_ninety_days_unless_told_otherwise(harness: Harness) -> None:
    assert harness.store().capabilities.usage_retention_days == 90


def test_usage_is_what_was_consumed_whatever_happens(backend: Backend, tmp_path: Path) -> None:
    @settings(max_examples=EXAMPLES[backend.kind])
    @given(seed=st.integers(0, 2**32))
    def check(seed: int) -> None:
        with backend.harness(tmp_path) as harness:
            harness.run(usage_is_consumption(harness, seed, 40))

    check()


@pytest.mark.parametrize("fault", [Fault.FAIL_BEFORE, Fault.FAIL_AFTER, Fault.REFUSE], ids=lambda fault: fault.name)
async def test_an_hour_that_ends_in_a_failed_commit_is_booked_once(harness: Harness, fault: Fault) -> None:
    store = FaultyStore(harness.store())
    limiter = harness.limiter(store)
    await limiter.set_system_defaults(RPM)
    await take(limiter)
    harness.clock.advance(HOUR)
    store.inject(fault, verb="commit")
    with contextlib.suppress(Exception):
        await take(limiter)
    await take(limiter)
    found, _ = await limiter.get_usage_snapshots("key", "gpt-4", "hourly")
    later = 1 if fault is Fault.FAIL_BEFORE else 2
    assert [dict(each.counters) for each in found] == [{"rpm": later}, {"rpm": 1}]


async def take(limiter: RateLimiter, amount: int = 1, entity: str = "key") -> None:
    async with limiter.acquire(entity, "gpt-4", {"rpm": amount}):
        pass


async def test_usage_takes_no_call_of_its_own(harness: Harness) -> None:
    """Not within an hour and not at its end."""
    store = FaultyStore(harness.store())
    limiter = harness.limiter(harness.repository(store, config_cache_ttl=10 * HOUR))
    await limiter.set_system_defaults(RPM)
    await take(limiter)
    for _ in range(8):
        before = store.calls.copy()
        await take(limiter)
        assert store.calls - before == {"commit": 1}
        harness.clock.advance(HOUR / 2)
    assert len((await limiter.get_usage_snapshots("key", "gpt-4", "hourly"))[0]) == 4


async def test_a_bucket_from_before_usage_was_kept_counts_from_now_on(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults(RPM)
    await take(limiter, 5)
    key = keys.bucket((await limiter.repository.get_namespace("default")).id, "key", "gpt-4")
    await harness.store().commit([Write(key, remove=(HOUR_END, CHANGES, BOOKINGS))])
    other = harness.limiter()
    await take(other, 7)
    await take(other, 8)
    assert (await other.get_usage_summary("key")).total == {"rpm": 15}


async def test_a_ledger_is_begun_once(harness: Harness) -> None:
    """A client that has seen the bucket without one does not begin another, though as much is consumed again."""
    limiter, late = harness.limiter(), harness.limiter()
    await limiter.set_system_defaults(RPM)
    await take(limiter, 5)
    key = keys.bucket((await limiter.repository.get_namespace("default")).id, "key", "gpt-4")
    await harness.store().commit([Write(key, remove=(HOUR_END, CHANGES, BOOKINGS))])
    await late.available("key", "gpt-4")
    other = harness.limiter()
    with contextlib.suppress(ZeroDivisionError):
        async with other.acquire("key", "gpt-4", {"rpm": 7}):
            await other.get_usage_summary("key")
            raise ZeroDivisionError
    await take(late, 1)
    found, _ = await other.get_usage_snapshots("key", window_type="hourly")
    assert [(dict(each.counters), each.total_events) for each in found] == [({"rpm": 1}, 3)]


async def test_a_damaged_ledger_is_told_and_can_be_repaired(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults(RPM)
    await take(limiter, 5)
    key = keys.bucket((await limiter.repository.get_namespace("default")).id, "key", "gpt-4")
    damages = [Write(key, put={attr: "many"}) for attr in (HOUR_END, CHANGES, BOOKINGS, "b_rpm_uc")]
    damages += [Write(key, remove=(attr,)) for attr in (HOUR_END, CHANGES, BOOKINGS)]
    damages += [Write(key, put={HOUR_END: instant_ms}) for instant_ms in (-(10**17), 10**17)]
    for damage in damages:
        await harness.store().commit([damage])
        with pytest.raises(Exception, match="reset_bucket"):
            await limiter.get_usage_summary("key")
        with pytest.raises(Exception, match="reset_bucket"):
            await take(harness.limiter())
        await limiter.reset_bucket("key", "gpt-4")
        await take(limiter, 5)


def test_where_no_usage_is_wanted_none_is_kept(tmp_path: Path) -> None:
    clock = ManualClock()
    for url in ("memory://?usage_retention_days=0", f"sqlite:///{tmp_path}/a.db?usage_retention_days=0"):
        with SyncRateLimiter(SyncRepository(url, clock=clock)) as limiter:
            limiter.set_system_defaults(RPM)
            for _ in range(3):
                with limiter.acquire("key", "gpt-4", {"rpm": 1}):
                    clock.advance(HOUR)
            assert limiter.get_usage_snapshots("key") == ([], None)
            assert limiter.get_usage_summary(resource="gpt-4").total == {}


def test_buckets_that_memory_has_no_room_for_leave_their_usage() -> None:
    clock = ManualClock()
    store = MemoryStore(clock, max_buckets=100)
    with SyncRateLimiter(store) as limiter:
        limiter.set_system_defaults(RPM)
        for number in range(120):
            with limiter.acquire(f"key-{number}", "gpt-4", {"rpm": 2}):
                pass
        gone = [number for number in range(120) if not limiter.get_buckets(f"key-{number}")]
        assert gone
        for number in gone:
            assert limiter.get_usage_summary(f"key-{number}").total == {"rpm": 2}
        assert store.dropped_usage == 0


def test_a_level_that_is_being_charged_is_not_evicted_by_the_same_commit() -> None:
    """The parent is the fullest of all, and so the first to go when its child needs room."""
    clock = ManualClock()
    store = MemoryStore(clock, max_buckets=16)
    with SyncRateLimiter(store) as limiter:
        limiter.set_system_defaults([Limit.per_hour("rpm", 60)])
        limiter.create_entity("acme")
        limiter.set_limits("acme", [Limit.per_second("rpm", 1_000)])
        for number in range(17):
            limiter.create_entity(f"key-{number}", parent_id="acme", cascade=True)
            with limiter.acquire(f"key-{number}", "gpt-4", {"rpm": 1}):
                clock.advance(1)
        assert limiter.get_usage_summary("acme").total == {"rpm": 17}
        assert "acme" in {each.entity_id for each in limiter.get_resource_capacity("gpt-4", "rpm").entities}
        assert store.dropped_usage == 0


def test_an_hour_can_be_booked_where_there_is_no_room_for_its_day() -> None:
    clock = ManualClock()
    store = MemoryStore(clock, max_buckets=16)
    with SyncRateLimiter(store) as limiter:
        limiter.set_system_defaults(RPM)
        for _ in range(8):
            for number in range(8):
                with limiter.acquire(f"key-{number}", "gpt-4", {"rpm": 1}):
                    pass
            clock.advance(HOUR)
        assert store.dropped_usage > 0


def test_memory_keeps_the_newest_windows() -> None:
    clock = ManualClock()
    store = MemoryStore(clock, max_buckets=40)
    with SyncRateLimiter(store) as limiter:
        limiter.set_system_defaults(RPM)
        for _ in range(100):
            with limiter.acquire("key", "gpt-4", {"rpm": 1}):
                clock.advance(HOUR)
        found, _ = limiter.get_usage_snapshots("key", window_type="hourly", limit=1_000)
        assert store.dropped_usage > 0
        assert 20 <= len(found) <= 40
        assert found[0].window_start == limiter.get_usage_summary("key").max_window_start
        starts = [each.window_start for each in found]
        assert starts == sorted(starts, reverse=True)
