"""Prefetch where something goes wrong: forks, loops that end, limits that change, stores that hang."""

from __future__ import annotations

import asyncio
import os
import random
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from tests.laws.toys import Distant as FarToy, Toy
from tests.limiter.test_prefetch import KEY, MODEL, RPS, Client, Count, Slow
from tests.support.virtual_time import Distant, VirtualLoop, run_virtually
from zae_limiter import Limit, RateLimiter, RateLimitExceeded, Repository, SyncRateLimiter, SyncRepository
from zae_limiter.stores.memory import MemoryStore
from zae_limiter.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zae_limiter.records.algebra import Committed, Conflict, Write


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes do not fork here")
def test_a_child_process_returns_nothing_of_what_its_parent_holds() -> None:
    client = Client(Limit.per_hour("rps", 1_000))
    client.heat()
    lease, held = client.take(), client.held
    other = SyncRateLimiter(SyncRepository(client.inner))
    before = other.available(KEY, MODEL)["rps"]
    child = os.fork()
    if child == 0:
        lease.release(rps=1)
        lease.exit()
        client.limiter.flush()
        os._exit(other.available(KEY, MODEL)["rps"] - before)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) <= 1, "the one that the lease has released"
    assert client.held == held


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes do not fork here")
def test_a_child_process_looks_after_its_own() -> None:
    client = Client(RPS)
    client.heat()
    child = os.fork()
    if child == 0:
        prefetcher = client.limiter._inner._prefetcher
        assert prefetcher is not None
        before = prefetcher._due_ms
        client.heat()
        os._exit(0 if before > prefetcher._due_ms else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


class Late(Distant):
    """A store that is waited for before it answers a draw."""

    drawn: asyncio.Event | None = None

    async def commit(self, writes: Sequence[Write], *, timeout: float | None = None) -> Committed | Conflict:
        outcome = await super().commit(writes, timeout=timeout)
        drawn, amounts = self.drawn, [write.add.get("b_rps_tc", 0) for write in writes]
        if drawn is not None and max(amounts) > 1_000:
            self.drawn = None
            drawn.set()
            await asyncio.sleep(0.1)
        return outcome


def test_limits_that_change_while_tokens_are_drawn_lose_none() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        shared, granted = MemoryStore(loop), 0
        store = Late(shared, random.Random(1))
        limiter = RateLimiter(Repository(store), prefetch=0.5)
        await limiter.set_system_defaults([RPS])

        async def ask(times: int) -> None:
            nonlocal granted
            for _ in range(times):
                async with limiter.acquire(KEY, MODEL, {"rps": 1}):
                    granted += 1
                await asyncio.sleep(0.005)

        await ask(60)
        store.drawn = drawn = asyncio.Event()
        asking = asyncio.create_task(ask(200))
        await drawn.wait()
        await limiter.set_system_defaults([Limit.per_second("rps", 900)])
        await asking
        await limiter.close()
        (state,) = await Repository(shared).get_buckets(KEY)
        assert state.total_consumed_milli == 1_000 * granted

    run_virtually(main())


def test_a_correction_of_a_limit_that_is_gone_is_counted() -> None:
    client = Client(RPS, Limit.per_minute("tpm", 1_000_000))
    cost = {"rps": 1, "tpm": 500}
    client.heat(cost=cost)
    lease = client.take(cost)
    client.limiter.set_system_defaults([RPS])
    client.take().exit()
    lease.adjust(tpm=7_000)
    lease.exit()
    client.limiter.close()
    consumed = {each.limit_name: each.total_consumed_milli for each in SyncRepository(client.inner).get_buckets(KEY)}
    assert consumed == {"rps": 32_000, "tpm": (31 * 500 + 7_000) * 1_000}


def test_a_breaker_that_is_open_loses_no_correction() -> None:
    client = Client(RPS, on_unavailable="allow")
    client.heat()
    lease = client.take()
    availability = client.limiter._inner._availability
    availability.is_open, availability._retry_at = True, float("inf")
    lease.release(rps=1)
    lease.exit()
    assert availability.is_open, "the store was not asked"
    availability.is_open = False
    client.limiter.close()
    (state,) = SyncRepository(client.inner).get_buckets(KEY)
    assert state.total_consumed_milli == 30_000


@pytest.mark.parametrize("turns", range(6))
def test_a_flush_that_is_cancelled_is_cancelled(turns: int) -> None:
    async def main() -> None:
        clock = ManualClock()
        limiter = RateLimiter(Repository(Slow(Toy(clock))), prefetch=0.5)
        await limiter.set_system_defaults([RPS])
        for _ in range(40):
            async with limiter.acquire(KEY, MODEL, {"rps": 1}):
                clock.advance_ms(10)
        flushing = asyncio.create_task(limiter.flush())
        for _ in range(turns):
            await asyncio.sleep(0)
        flushing.cancel()
        (outcome,) = await asyncio.gather(flushing, return_exceptions=True)
        assert outcome is None or isinstance(outcome, asyncio.CancelledError)
        await limiter.close()

    asyncio.run(main())


def test_more_keys_than_are_remembered_leave_none_behind() -> None:
    client = Client(RPS)
    limiter = SyncRateLimiter(SyncRepository(Count(client.inner), max_cached_keys=8), prefetch=0.5)
    limiter.create_entity("org")
    for number in range(30):
        limiter.create_entity(f"key-{number}", parent_id="org", cascade=True)
    for round_ in range(2):
        for number in range(60):
            limiter.acquire(f"key-{number % 30}", MODEL, {"rps": 1}).enter()
            client.clock.advance_ms(5)
        if round_ == 0:
            SyncRepository(client.inner).set_limits("org", [Limit.per_second("rps", 900)])
    limiter.close()
    (state,) = SyncRepository(client.inner).get_buckets("org")
    assert state.total_consumed_milli == 120_000


def test_a_loop_that_was_closed_in_the_middle_of_a_draw_keeps_nobody_waiting() -> None:
    clock = ManualClock()
    toy = FarToy(clock)
    store = Slow(toy)
    limiter = RateLimiter(Repository(store), prefetch=0.5)

    async def ask(times: int) -> None:
        for _ in range(times):
            async with limiter.acquire(KEY, MODEL, {"rps": 1}):
                clock.advance_ms(5)
            await asyncio.sleep(0)

    async def begin() -> None:
        await limiter.set_system_defaults([RPS])
        await ask(60)

    asyncio.run(begin())
    assert limiter._prefetcher is not None
    (bucket,) = limiter._prefetcher.active()
    ended = asyncio.new_event_loop()
    ended.close()
    assert bucket.begin(ended)  # as a write does that never ends
    before = store.commits
    asyncio.run(ask(100))
    assert store.commits - before < 20
    asyncio.run(limiter.close())


def test_a_lease_can_be_entered_where_no_loop_runs() -> None:
    clock = ManualClock()
    limiter = RateLimiter(Repository(Count(Toy(clock))), prefetch=0.5)

    async def begin() -> None:
        await limiter.set_system_defaults([RPS])
        for _ in range(60):
            async with limiter.acquire(KEY, MODEL, {"rps": 1}):
                clock.advance_ms(5)

    asyncio.run(begin())
    entered = 0
    while limiter.acquire(KEY, MODEL, {"rps": 1}).try_enter():
        entered += 1
    assert entered > 0
    asyncio.run(limiter.close())


def test_a_cost_of_nothing_is_looked_at_by_the_write_that_draws() -> None:
    client = Client(RPS, Limit.per_minute("tpm", 1_000))
    cost = {"rps": 1, "tpm": 0}
    client.heat(cost=cost)
    before = client.store.commits
    for _ in range(100):
        client.take(cost).exit()
        client.clock.advance_ms(5)
    assert client.store.commits - before <= 6
    lease = client.take({"rps": 1, "tpm": 1_000})
    lease.adjust(tpm=500)
    lease.exit()
    client.limiter.flush()
    with pytest.raises(RateLimitExceeded):
        client.take(cost)


@pytest.mark.parametrize("cost", [{"rps": 1}, {"rps": 1, "tpm": 0}])
def test_a_level_that_nothing_is_taken_of_is_looked_at_now_and_then(cost: dict[str, int]) -> None:
    client = Client(RPS)
    client.join_organisation(Limit.per_minute("tpm", 1_000))
    client.heat(cost=cost)
    before = client.store.commits
    for _ in range(200):
        client.take(cost).exit()
        client.clock.advance_ms(5)
    assert client.store.commits - before <= 10
    lease = client.take(cost)
    lease.adjust(tpm=1_500)
    assert {status.limit_name: status.available for status in lease.statuses if status.entity_id == "org"} == {
        "tpm": 1_000
    }
    lease.exit()
    client.limiter.flush()
    assert client.limiter.available("org", MODEL)["tpm"] <= -490
    client.clock.advance_ms(501)
    if "tpm" in cost:
        with pytest.raises(RateLimitExceeded):
            client.take(cost)
    else:
        client.take(cost).exit()
    client.limiter.close()
    used = {state.limit_name: state.total_consumed_milli for state in SyncRepository(client.inner).get_buckets("org")}
    assert used == {"tpm": 1_500_000}


def test_a_window_of_first_use_is_told() -> None:
    told = []
    for prefetch in (0.0, 0.5):
        client = Client(Limit.quota("rps", 10_000, reset_after=timedelta(hours=5)), prefetch=prefetch)
        client.clock.advance_ms(3_600_000)
        client.heat()
        (status,) = client.take().statuses
        told.append((status.available, status.resets_at))
    assert told[0] == told[1]


def test_what_another_level_refuses_is_not_counted_as_granted() -> None:
    client = Client(RPS)
    client.join_organisation(Limit.per_hour("rps", 31))
    client.heat()
    client.take()
    before = client.limiter.repository.get_backend_stats().prefetch.granted
    for _ in range(20):
        with pytest.raises(RateLimitExceeded):
            client.take()
    assert client.limiter.repository.get_backend_stats().prefetch.granted == before


def test_many_hot_keys_are_closed_side_by_side() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        limiter = RateLimiter(Repository(Distant(MemoryStore(loop), random.Random(1), (5, 5))), prefetch=0.5)
        await limiter.set_system_defaults([RPS])

        async def ask(key: str) -> None:
            for _ in range(40):
                async with limiter.acquire(key, MODEL, {"rps": 1}):
                    await asyncio.sleep(0.01)

        await asyncio.gather(*(ask(f"key-{number}") for number in range(100)))
        begun = loop.time()
        await limiter.close()
        return loop.time() - begun

    assert run_virtually(main()) < 0.3, "one after the other it would be a second"
