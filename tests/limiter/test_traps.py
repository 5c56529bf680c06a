"""Traps that users of other limiters fell into; the number is the row of the list.

Rows that other files cover are not repeated: 6, 7 (`test_bad_input`), 8, 24 and the forks of 16
(`test_concurrency`, `test_sqlite`), 9, 23 (`test_unavailable`), 10 (`test_memory`).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from zae_limiter import (
    CorruptRecordError,
    Limit,
    LimitStatus,
    RateLimiter,
    RateLimitExceeded,
    Repository,
    SyncRateLimiter,
    SyncRepository,
    ValidationError,
)
from zae_limiter.core import names
from zae_limiter.records import keys
from zae_limiter.records.algebra import Write
from zae_limiter.stores.memory import MemoryStore
from zae_limiter.stores.sqlite import SqliteFile, SqliteStore
from zae_limiter.testing import FaultyStore, Harness, ManualClock

RPM = [Limit.per_hour("rpm", 100)]
NEVER_REFILLED = [Limit.custom("rpm", capacity=100, refill_amount=1, refill_period_seconds=10 * 365 * 86_400)]


async def take(limiter: RateLimiter, amount: int = 1, limits: list[Limit] = RPM, **options: Any) -> bool:
    try:
        async with limiter.acquire("key", "gpt-4", {"rpm": amount}, limits, **options):
            return True
    except RateLimitExceeded:
        return False


async def test_trap_1_clients_with_skewed_clocks_issue_nothing_twice(harness: Harness) -> None:
    chance, limits = random.Random(1), [Limit.per_second("rpm", 10, burst=50)]
    store = harness.store()
    skewed = [ManualClock(harness.clock.now_ms() + skew) for skew in (-5_000, 0, 5_000)]
    clients = [harness.limiter(harness.repository(store, clock=clock), refusal_ttl=0) for clock in skewed]
    passed = 0
    for _ in range(400):
        step = chance.randrange(50)
        harness.clock.advance_ms(step)
        for clock in skewed:
            clock.advance_ms(step)
        passed += await take(chance.choice(clients), 1, limits)
    spent_ms = harness.clock.now_ms() - ManualClock().now_ms()
    assert passed <= 50 + spent_ms * 10 // 1000
    assert passed >= 50 + spent_ms * 10 // 1000 - 1, "and nobody starves"


def test_trap_1_processes_whose_clocks_differ_gain_no_more_than_the_difference(tmp_path: Path) -> None:
    chance, limits = random.Random(2), [Limit.per_second("rpm", 10, burst=50)]
    clocks = [ManualClock(ManualClock().now_ms() + skew) for skew in (-5_000, 5_000)]
    stores = [SqliteStore(SqliteFile(tmp_path / "limits.db", clock)) for clock in clocks]
    clients = [SyncRateLimiter(store, refusal_ttl=0) for store in stores]
    passed = spent_ms = 0
    for _ in range(600):
        step = chance.randrange(50)
        spent_ms += step
        for clock in clocks:
            clock.advance_ms(step)
        with (
            contextlib.suppress(RateLimitExceeded),
            chance.choice(clients).acquire("key", "gpt-4", {"rpm": 1}, limits),
        ):
            passed += 1
    assert passed <= 50 + (spent_ms + 10_000) * 10 // 1000
    for client in clients:
        client.close()


async def test_trap_2_a_clock_that_steps_back_grants_nothing_and_drains_nothing_for_good(harness: Harness) -> None:
    limiter = harness.limiter()
    assert await take(limiter, 60)
    harness.clock.advance(-3_600)
    for _ in range(3):
        assert not await take(limiter, 41)
        assert not await take(harness.limiter(), 41)
    harness.clock.advance(3_600)
    assert await limiter.available("key", "gpt-4", RPM) == {"rpm": 40}


async def test_trap_2_a_clock_that_steps_back_does_not_take_away_what_is_left(harness: Harness) -> None:
    limiter = harness.limiter()
    assert await take(limiter, 60)
    harness.clock.advance(-3_600)
    assert await take(limiter, 40)
    assert not await take(limiter, 1)


async def test_trap_3_a_dead_clock_is_an_error_and_not_another_clock(harness: Harness) -> None:
    class Mortal(ManualClock):
        dead = False

        def now_ms(self) -> int:
            if self.dead:
                raise OSError("no clock")
            return super().now_ms()

    clock = Mortal()
    limiter = harness.limiter(harness.store(clock), on_unavailable="allow")
    assert await take(limiter)
    clock.dead = True
    with pytest.raises(OSError, match="no clock"):
        await take(limiter)
    clock.dead = False
    assert await limiter.available("key", "gpt-4", RPM) == {"rpm": 99}


@pytest.mark.parametrize(("amount", "period"), [(1, 86_400), (999, 3_600), (7, 3), (1_000_000, 1), (10**12, 86_400)])
def test_trap_4_5_every_rate_is_exact_when_polled_each_millisecond(amount: int, period: int) -> None:
    clock = ManualClock()
    harness = Harness(lambda _, blocking: store, blocking=True)
    store = MemoryStore(clock)
    limits = [Limit.custom("rpm", max(amount // period, 1), amount, period)]

    async def work() -> None:
        limiter = harness.limiter()
        capacity = limits[0].capacity
        assert await take(limiter, capacity, limits)
        assert not await take(limiter, 1, limits), "it limits at all"
        issued = 0
        for _ in range(1_500):
            clock.advance_ms(1)
            left = (await limiter.available("key", "gpt-4", limits))["rpm"]
            if left:
                assert await take(limiter, left, limits)
                issued += left
        start, end = clock.now_ms() - 1_500, clock.now_ms()
        made = (end * amount * 1000 // (period * 1000) - start * amount * 1000 // (period * 1000)) // 1000
        assert issued == made

    harness.run(work())


def test_trap_5_what_cannot_be_represented_is_refused_at_construction() -> None:
    assert Limit.per_second("rpm", 10**12).capacity == 10**12
    for arguments in ((10**12 + 1, 1, 1), (1, 10**12 + 1, 1), (1, 1, 11 * 366 * 86_400), (1, 1, 0)):
        with pytest.raises(ValidationError):
            Limit.custom("rpm", *arguments)


async def test_trap_11_refusals_do_not_prolong_the_life_of_a_bucket(harness: Harness) -> None:
    limiter = harness.limiter(refusal_ttl=0)
    limits = [Limit.per_minute("rpm", 1)]
    assert await take(limiter, 1, limits)
    async with limiter.acquire("key", "gpt-4", {"rpm": 0}, limits) as lease:
        await lease.adjust(rpm=100)
    key = keys.bucket((await limiter.repository.get_namespace("default")).id, "key", "gpt-4")
    before = (await harness.store().read([key]))[0]
    for _ in range(50):
        harness.clock.advance(60)
        assert not await take(limiter, 1, limits)
    assert (await harness.store().read([key]))[0] == before


def test_trap_16_one_limiter_serves_one_loop_after_another(tmp_path: Path) -> None:
    for url in ("memory://", f"sqlite:///{tmp_path}/limits.db"):
        limiter = RateLimiter(Repository(url))
        assert [asyncio.run(take(limiter, 40)) for _ in range(3)] == [True, True, False]
        asyncio.run(limiter.close())


async def test_trap_17_a_herd_of_refused_callers_costs_the_store_nothing(harness: Harness) -> None:
    store = FaultyStore(harness.store())
    limiter = harness.limiter(store)
    limits = [Limit.per_second("rpm", 1, burst=100)]
    assert await take(limiter, 100, limits)
    before, moments = store.calls.total(), set()
    for amount in (*range(1, 101), *[1] * 400):
        with pytest.raises(RateLimitExceeded) as refused:
            async with limiter.acquire("key", "gpt-4", {"rpm": amount}, limits):
                pass
        moments.add(refused.value.retry_after_seconds)
    assert store.calls.total() - before <= 1
    assert moments == {float(second) for second in range(1, 101)}, "each its own moment, no common reset"


async def test_trap_18_a_timer_that_fires_early_is_no_grant(harness: Harness) -> None:
    class Early(ManualClock):
        pauses = 0

        async def pause(self, seconds: float) -> None:
            self.pauses += 1
            await super().pause(seconds / 2)

    clock = Early()
    limiter = harness.limiter(harness.store(clock))
    limits = [Limit.per_second("rpm", 1, burst=100)]
    assert await take(limiter, 100, limits)
    assert await take(limiter, 8, limits, max_wait=60)
    assert clock.now_ms() == ManualClock().now_ms() + 8_000
    assert clock.pauses <= 20


IDS = st.text(min_size=1, max_size=30).filter(lambda text: _accepted(names.entity_id, text))
RESOURCES = st.from_regex(r"[A-Za-z][A-Za-z0-9_./-]{0,20}", fullmatch=True)


def _accepted(check: Callable[[object], str], text: str) -> bool:
    try:
        return check(text) == text
    except ValidationError:
        return False


@given(IDS, RESOURCES, IDS, RESOURCES)
def test_trap_20_two_buckets_never_share_a_key(entity: str, resource: str, other: str, elsewhere: str) -> None:
    one, two = keys.bucket("ns", entity, resource), keys.bucket("ns", other, elsewhere)
    assert (one == two) == ((entity, resource) == (other, elsewhere))
    assert keys.parse_bucket_pk(one.pk) == ("ns", entity, resource, 0)
    assert (keys.meta("ns", entity) == keys.meta("ns", other)) == (entity == other)
    config, config_two = keys.entity_config("ns", entity, resource), keys.entity_config("ns", other, elsewhere)
    assert (config == config_two) == ((entity, resource) == (other, elsewhere))
    assert (
        len({one.pk, keys.pk_entity("ns", entity), keys.pk_resource("ns", resource), keys.pk_audit("ns", entity)}) == 4
    )


async def test_trap_20_look_alikes_have_buckets_of_their_own(harness: Harness) -> None:
    limiter = harness.limiter()
    pairs = [
        ("a", "b/c"),
        ("a/b", "c"),
        ("a:b", "c"),
        ("A", "c"),
        ("a", "c"),
        ("a ", "c"),
        ("127.0.0.1", "c"),
        ("é", "c"),
    ]
    for entity, resource in pairs:
        async with limiter.acquire(entity, resource, {"rpm": 100}, RPM):
            pass


async def test_trap_25_limits_of_one_bucket_do_not_disturb_each_other(harness: Harness) -> None:
    chance, limiter = random.Random(25), harness.limiter()
    both = [Limit.per_second("fast", 7, burst=30), Limit.per_day("slow", 9_000, burst=400)]

    async def charge(entity: str, cost: dict[str, int], limits: list[Limit], delta: dict[str, int]) -> bool:
        try:
            async with limiter.acquire(entity, "gpt-4", cost, limits) as lease:
                await lease.adjust(delta)
                return True
        except RateLimitExceeded:
            return False

    for _ in range(250):
        harness.clock.advance_ms(chance.choice((1, 20, 700, 30_000)))
        fast, slow = chance.randrange(12), chance.randrange(9)
        delta = {"fast": chance.randrange(-3, 3), "slow": chance.randrange(-3, 3)}
        fits = await charge("both", {"fast": fast, "slow": slow}, both, delta)
        if fits:
            assert await charge("only fast", {"fast": fast}, both[:1], {"fast": delta["fast"]})
            assert await charge("only slow", {"slow": slow}, both[1:], {"slow": delta["slow"]})
        alone = await limiter.available("only fast", "gpt-4", both[:1])
        alone |= await limiter.available("only slow", "gpt-4", both[1:])
        assert await limiter.available("both", "gpt-4", both) == alone


@pytest.mark.parametrize(
    ("seconds", "header"), [(0.001, "1"), (0.999, "1"), (1.0, "1"), (1.001, "2"), (59.9999, "60"), (86_400.0, "86400")]
)
def test_trap_27_the_header_is_a_whole_number_rounded_up(seconds: float, header: str) -> None:
    status = LimitStatus("key", "gpt-4", "rpm", RPM[0], 0, 1, exceeded=True, retry_after_seconds=seconds)
    assert RateLimitExceeded([status]).retry_after_header == header


def test_trap_31_a_record_that_was_not_deleted_yet_is_absent(tmp_path: Path) -> None:
    clock = ManualClock()
    url = f"sqlite:///{tmp_path}/limits.db?usage_retention_days=0"
    limiter = SyncRateLimiter(SyncRepository(url, clock=clock))
    with limiter.acquire("key", "gpt-4", {"rpm": 100}, RPM):
        pass
    clock.advance(8 * 3_600)
    with contextlib.closing(sqlite3.connect(tmp_path / "limits.db")) as db:
        assert db.execute("SELECT count(*) FROM items WHERE sk = '#STATE'").fetchone() == (1,)
    assert limiter.get_buckets("key") == []
    assert limiter.get_resource_capacity("gpt-4", "rpm").entities == ()
    with limiter.acquire("key", "gpt-4", {"rpm": 1}, RPM) as lease:
        assert lease.available == {"rpm": 99}
    limiter.close()


async def test_trap_33_a_stale_client_does_not_admit_more_than_the_tightened_limit(harness: Harness) -> None:
    informed, stale = harness.limiter(), harness.limiter()
    await informed.set_system_defaults(RPM)
    for limiter in (informed, stale):
        async with limiter.acquire("key", "gpt-4", {"rpm": 1}):
            pass
    await informed.set_system_defaults([Limit.per_hour("rpm", 5)])
    passed = 0
    for number in range(40):
        with contextlib.suppress(RateLimitExceeded):
            async with (informed, stale)[number % 2].acquire("key", "gpt-4", {"rpm": 1}):
                passed += 1
    assert passed == 5


def taken(limiter: SyncRateLimiter) -> int:
    with limiter.acquire("key", "gpt-4", {"rpm": 1}, NEVER_REFILLED) as lease:
        return lease.available["rpm"]


@pytest.mark.parametrize("attrs", ["{", "[]", '"text"', "{}"])
def test_row_9_a_row_that_is_no_record_is_an_error_until_it_is_repaired(tmp_path: Path, attrs: str) -> None:
    with SyncRateLimiter(f"sqlite:///{tmp_path}/limits.db") as limiter:
        taken(limiter)
        with contextlib.closing(sqlite3.connect(tmp_path / "limits.db")) as db:
            db.execute("UPDATE items SET attrs = ? WHERE sk = '#STATE'", (attrs,))
            db.commit()
        for victim in (limiter, SyncRateLimiter(f"sqlite:///{tmp_path}/limits.db")):
            with pytest.raises(CorruptRecordError):
                taken(victim)
        limiter.reset_bucket("key", "gpt-4")
        assert taken(limiter) == 99


async def test_row_9_a_poisoned_bucket_is_told_when_looked_at(harness: Harness) -> None:
    limiter = harness.limiter()
    assert await take(limiter, 1)
    async with limiter.acquire("other", "gpt-4", {"rpm": 1}, RPM):
        pass
    key = keys.bucket((await limiter.repository.get_namespace("default")).id, "key", "gpt-4")
    await harness.store().commit([Write(key, put={"b_rpm_tk": "lots"})])
    with pytest.raises(CorruptRecordError, match="reset_bucket"):
        await limiter.get_buckets("key")
    with pytest.raises(CorruptRecordError, match="reset_bucket"):
        await limiter.get_resource_capacity("gpt-4", "rpm")
    await limiter.reset_bucket("key", "gpt-4")
    assert (await limiter.get_resource_capacity("gpt-4", "rpm")).total_available == 99
