"""Exactly as many as the bucket holds: tasks, threads, event loops; and merging, which must not change that."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sqlite3
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.deadlines import PATIENCE
from zae_limiter import (
    CapacityExceeded,
    Limit,
    RateLimiter,
    RateLimiterUnavailable,
    RateLimitExceeded,
    Repository,
    SyncRateLimiter,
    SyncRepository,
)
from zae_limiter.limiter import engine, planning
from zae_limiter.stores.memory import MemoryStore
from zae_limiter.testing import Fault, FaultyStore, ManualClock

LIMITS = [Limit.custom("rpm", capacity=100, refill_amount=1, refill_period_seconds=10 * 365 * 86_400)]
EXACT = list(range(100))


async def take(limiter: RateLimiter, amount: int = 1, entity: str = "key", **options: Any) -> int | None:
    """What was left after a grant; None for a refusal."""
    try:
        async with limiter.acquire(entity, "gpt-4", {"rpm": amount}, limits=LIMITS, **options) as lease:
            return lease.available["rpm"]
    except RateLimitExceeded:
        return None


def take_blocking(limiter: SyncRateLimiter) -> int | None:
    try:
        with limiter.acquire("key", "gpt-4", {"rpm": 1}, limits=LIMITS) as lease:
            return lease.available["rpm"]
    except RateLimitExceeded:
        return None


def left_over(answers: list[int | None]) -> list[int]:
    return sorted(answer for answer in answers if answer is not None)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@pytest.mark.parametrize("clients", [1, 4])
async def test_2000_tasks_on_100_tokens(tmp_path: Path, kind: str, clients: int) -> None:
    shared = MemoryStore()
    urls = [shared if kind == "memory" else f"sqlite:///{tmp_path}/limits.db" for _ in range(clients)]
    limiters = [RateLimiter(url, refusal_ttl=0) for url in urls]
    for limiter in limiters:
        await take(limiter, 0)
    answers = await asyncio.gather(*(take(limiters[number % clients]) for number in range(2_000)))
    assert left_over(answers) == EXACT
    (state,) = await limiters[0].get_buckets("key")
    assert state.total_consumed_milli == 100_000
    for limiter in limiters:
        await limiter.close()


@pytest.mark.parametrize("url", ["memory://", "sqlite:///{}/limits.db"], ids=["memory", "sqlite"])
@pytest.mark.parametrize("shared", [True, False], ids=["one limiter", "a limiter each"])
def test_2000_tries_of_16_threads_on_100_tokens(tmp_path: Path, url: str, shared: bool) -> None:
    store = MemoryStore()

    def opened() -> SyncRateLimiter:
        return SyncRateLimiter(store if url == "memory://" else url.format(tmp_path), refusal_ttl=0)

    limiters = [opened()] * 16 if shared else [opened() for _ in range(16)]
    together = threading.Barrier(16)

    def work(limiter: SyncRateLimiter) -> list[int | None]:
        together.wait()
        return [take_blocking(limiter) for _ in range(125)]

    with ThreadPoolExecutor(16) as pool:
        answers = [answer for each in pool.map(work, limiters) for answer in each]
    assert left_over(answers) == EXACT
    for limiter in limiters:
        limiter.close()


@pytest.mark.parametrize("url", ["memory://", "sqlite:///{}/limits.db"], ids=["memory", "sqlite"])
def test_two_event_loops_in_two_threads_share_one_limiter(tmp_path: Path, url: str) -> None:
    limiter = RateLimiter(url.format(tmp_path))
    together = threading.Barrier(2)

    async def work() -> list[int | None]:
        return await asyncio.gather(*(take(limiter) for _ in range(500)))

    def loop() -> list[int | None]:
        together.wait()
        return asyncio.run(work())

    with ThreadPoolExecutor(2) as pool:
        answers = [answer for done in (pool.submit(loop), pool.submit(loop)) for answer in done.result()]
    assert left_over(answers) == EXACT
    asyncio.run(limiter.close())


class Network:
    """A store that takes its time, counted, on a clock that stands still."""

    def __init__(self, **options: Any) -> None:
        self.clock = ManualClock()
        self.store = FaultyStore(MemoryStore(self.clock), suspend=True, **options)
        self.limiter = RateLimiter(Repository(self.store))


async def test_a_bucket_that_another_thread_sees_filled_meanwhile_is_looked_at_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between finding that nothing fits and refusing, another loop may have shown an image with more in it."""
    seen_empty = [planning.UNKNOWN, planning.UNKNOWN]  # as remembered, and as just read

    def plan_later(*args: Any) -> planning.CommitPlan | planning.Lack:
        return seen_empty.pop() if seen_empty else planning.plan_commit(*args)

    monkeypatch.setattr(engine.Engine, "_plan_commit", staticmethod(plan_later))
    store = FaultyStore(MemoryStore(), suspend=True)
    assert await take(RateLimiter(store)) == 99
    assert not seen_empty


async def test_config_that_another_thread_sees_between_two_looks_at_a_lost_race_is_followed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = ManualClock()
    store = FaultyStore(MemoryStore(clock), suspend=True)
    limiter, other = RateLimiter(store), RateLimiter(store)
    assert await take(limiter) == 99
    clock.advance_ms(1_000)
    await other.reset_bucket("key", "gpt-4")
    assert await take(other) == 99
    planned: list[planning.Freshness] = []

    def plan_outdated(chain: Any, pending: Any, now_ms: int, freshness: planning.Freshness) -> Any:
        planned.append(freshness)
        if planned[-2:] == [planning.Freshness.LOST_RACE] * 2:  # the second look, as of now
            raise planning.StalePath
        return planning.plan_commit(chain, pending, now_ms, freshness)

    monkeypatch.setattr(engine.Engine, "_plan_commit", staticmethod(plan_outdated))
    assert await take(limiter) == 98
    assert planned.count(planning.Freshness.LOST_RACE) == 2


async def test_a_cold_start_together_asks_as_little_as_one_alone() -> None:
    alone = Network()
    await take(alone.limiter)
    herd = Network()
    answers = await asyncio.gather(*(take(herd.limiter) for _ in range(300)))
    assert left_over(answers) == EXACT
    assert herd.store.calls.total() <= 10 * alone.store.calls.total(), dict(herd.store.calls)


@pytest.mark.parametrize("speculative", [True, False])
async def test_merged_acquires_need_far_fewer_commits_and_stay_exact(speculative: bool) -> None:
    network = Network()
    limiter = RateLimiter(Repository(network.store), speculative_writes=speculative)
    await take(limiter, 0)
    before = network.store.calls["commit"]
    answers = await asyncio.gather(*(take(limiter) for _ in range(2_000)))
    assert left_over(answers) == EXACT
    assert network.store.calls["commit"] - before <= 10


async def test_merged_acquires_are_served_in_order_and_the_small_ones_still_fit() -> None:
    network = Network()
    await take(network.limiter, 0)
    asks = [60, 30, 20, 101, 10, 1]
    answers = await asyncio.gather(*(_outcome(network.limiter, amount) for amount in asks))
    assert answers == [40, 10, "refused", "never", 0, "refused"]


async def _outcome(limiter: RateLimiter, amount: int, **options: Any) -> object:
    try:
        async with limiter.acquire("key", "gpt-4", {"rpm": amount}, limits=LIMITS, **options) as lease:
            return "degraded" if lease.degraded else lease.available["rpm"]
    except CapacityExceeded:
        return "never"
    except RateLimitExceeded:
        return "refused"
    except RateLimiterUnavailable:
        return "unavailable"


async def test_merging_over_a_cascade_without_atomic_commits_is_exact_too() -> None:
    network = Network(free_atomic_commit=False)
    limiter = network.limiter
    await limiter.set_system_defaults(LIMITS)
    await limiter.create_entity("org")
    for key in ("one", "two"):
        await limiter.create_entity(key, parent_id="org", cascade=True)

    async def charge(entity: str) -> bool:
        try:
            async with limiter.acquire(entity, "gpt-4", {"rpm": 1}):
                return True
        except RateLimitExceeded:
            return False

    answers = await asyncio.gather(*(charge(("one", "two")[number % 2]) for number in range(400)))
    spent = {entity: 100 - (await limiter.get_status(entity, "gpt-4"))[0].available for entity in ("one", "two")}
    assert sum(answers) == sum(spent.values()) == 100
    assert await limiter.available("org", "gpt-4") == {"rpm": 0}


async def test_a_failed_flight_tells_everybody_aboard_and_only_them() -> None:
    network = Network()
    await take(network.limiter, 0)
    network.store.inject(Fault.FAIL_BEFORE, verb="commit", times=2)
    answers = await asyncio.gather(*(_outcome(network.limiter, 1) for _ in range(20)))
    assert set(answers) == {"unavailable"}, "a leader and its followers"
    assert await network.limiter.available("key", "gpt-4", LIMITS) == {"rpm": 100}
    network.store.heal()
    assert await _outcome(network.limiter, 1) == 99, "the lane is free again"


async def test_each_follower_of_a_failed_flight_keeps_its_own_policy() -> None:
    network = Network()
    await take(network.limiter, 0)
    network.store.inject(Fault.FAIL_BEFORE, verb="commit", times=2)
    policies = ["block", "allow", "block", "allow"]
    answers = await asyncio.gather(*(_outcome(network.limiter, 1, on_unavailable=policy) for policy in policies))
    assert answers == ["unavailable", "degraded", "unavailable", "degraded"]


async def test_a_lost_answer_charges_a_flight_once() -> None:
    network = Network()
    await take(network.limiter, 0)
    network.store.inject(Fault.FAIL_AFTER, verb="commit", times=2)
    answers = await asyncio.gather(*(_outcome(network.limiter, 1) for _ in range(20)))
    assert set(answers) == {"unavailable"}
    assert await network.limiter.available("key", "gpt-4", LIMITS) == {"rpm": 80}


async def test_settlements_beside_acquires_lose_nothing() -> None:
    network = Network()
    limiter = network.limiter

    async def reconcile(used: int) -> None:
        async with limiter.acquire("key", "gpt-4", {"rpm": 1}, limits=LIMITS) as lease:
            await asyncio.sleep(0)
            await lease.adjust(rpm=used - 1)

    await asyncio.gather(*(reconcile(used) for used in (0, 1, 2) * 20))
    (state,) = await limiter.get_buckets("key")
    assert state.total_consumed_milli == 60_000
    assert await limiter.available("key", "gpt-4", LIMITS) == {"rpm": 40}


async def test_a_follower_keeps_its_own_timeout(tmp_path: Path) -> None:
    limiter = RateLimiter(f"sqlite:///{tmp_path}/limits.db")

    async def waits(timeout: float) -> float:
        with contextlib.suppress(RateLimiterUnavailable):
            await take(limiter, timeout=timeout)
        return timeout

    await take(limiter)
    with contextlib.closing(sqlite3.connect(tmp_path / "limits.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        asks = [asyncio.create_task(waits(timeout)) for timeout in (1.5, 0.1)]
        done, _ = await asyncio.wait(asks, return_when=asyncio.FIRST_COMPLETED)
        assert [task.result() for task in done] == [0.1]
        other.execute("ROLLBACK")
    await asyncio.gather(*asks)
    await limiter.close()


async def test_many_who_wait_for_one_answer_have_one_deadline_each() -> None:
    """A store that hangs is asked once per deadline, not once per caller one after the other."""
    clock = ManualClock()

    class Stopped(FaultyStore):
        async def read(self, keys: Any, *, timeout: float | None = None) -> Any:
            self.calls["read"] += 1
            await asyncio.sleep(0)
            clock.advance(timeout or 0)
            raise RateLimiterUnavailable("no answer")

    store = Stopped(MemoryStore(clock), suspend=True)
    limiter = RateLimiter(store, timeout=5)
    answers = await asyncio.gather(*[take(limiter) for _ in range(10)], return_exceptions=True)
    assert [type(answer) for answer in answers] == [RateLimiterUnavailable] * 10
    assert store.calls["read"] == 1


@pytest.mark.parametrize("url", ["memory://", "sqlite:///{}/limits.db"], ids=["memory", "sqlite"])
def test_threads_change_config_while_others_acquire(tmp_path: Path, url: str) -> None:
    store = MemoryStore()
    limiters = [
        SyncRateLimiter(SyncRepository(store if url == "memory://" else url.format(tmp_path))) for _ in range(4)
    ]
    limiters[0].set_system_defaults(LIMITS)
    stop = threading.Event()
    wrong: list[BaseException] = []

    def spend(limiter: SyncRateLimiter) -> None:
        try:
            while not stop.is_set():
                with contextlib.suppress(RateLimitExceeded), limiter.acquire("key", "gpt-4", {"rpm": 1}):
                    pass
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=spend, args=(limiter,)) for limiter in limiters[1:]]
    for thread in threads:
        thread.start()
    for capacity in range(100, 80, -1):
        limiters[0].set_system_defaults([Limit.custom("rpm", capacity, 1, 10 * 365 * 86_400)])
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    (state,) = limiters[0].get_buckets("key")
    assert state.total_consumed_milli <= 100_000
    for limiter in limiters:
        limiter.close()


def in_a_fork(work: Callable[[], object]) -> Callable[[], Any]:
    """Run ``work`` in a child of this very process; the result waits for it and tells what came out."""
    source, sink = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads beside a fork are the point
        child = os.fork()
    if child == 0:
        try:
            os.write(sink, json.dumps(work()).encode())
        except BaseException as error:
            os.write(sink, json.dumps(repr(error)).encode())
        finally:
            os._exit(0)
    os.close(sink)

    def result() -> Any:
        with os.fdopen(source) as pipe:
            answer = pipe.read()
        os.waitpid(child, 0)
        return json.loads(answer)

    return result


@pytest.mark.unix
def test_a_fork_leaves_both_sides_working(tmp_path: Path) -> None:
    with SyncRateLimiter(f"sqlite:///{tmp_path}/limits.db") as limiter:
        assert take_blocking(limiter) == 99
        children = [in_a_fork(lambda: [take_blocking(limiter) for _ in range(10)]) for _ in range(3)]
        mine = [take_blocking(limiter) for _ in range(10)]
        left = [amount for child in children for amount in child()]
        assert sorted(left + mine) == list(range(59, 99))
        assert take_blocking(limiter) == 58


@pytest.mark.unix
def test_a_fork_leaves_both_sides_of_an_async_limiter_working(tmp_path: Path) -> None:
    limiter = RateLimiter(f"sqlite:///{tmp_path}/limits.db")

    async def left() -> int:
        async with limiter.acquire("key", "gpt-4", {"rpm": 1}, LIMITS) as lease:
            return lease.available["rpm"]

    assert asyncio.run(left()) == 99
    assert in_a_fork(lambda: asyncio.run(left()))() == 98
    assert asyncio.run(left()) == 97
    asyncio.run(limiter.close())


@pytest.mark.unix
def test_grants_of_a_child_outlive_the_parents_connection(tmp_path: Path) -> None:
    """The parent that closes must not take the write-ahead log away from a child that writes to it."""
    url = f"sqlite:///{tmp_path}/limits.db"
    limiter = SyncRateLimiter(url)
    assert take_blocking(limiter) == 99
    source, sink = os.pipe()

    def child() -> list[int | None]:
        mine = [take_blocking(limiter)]
        os.read(source, 1)
        return [*mine, *(take_blocking(limiter) for _ in range(9))]

    result = in_a_fork(child)
    deadline = time.monotonic() + PATIENCE
    while limiter.available("key", "gpt-4", LIMITS) == {"rpm": 99} and time.monotonic() < deadline:
        time.sleep(0.005)
    limiter.close()
    os.write(sink, b"x")
    assert result() == list(range(98, 88, -1))
    os.close(source)
    os.close(sink)
    with SyncRepository(url) as repo:
        assert repo.get_buckets("key")[0].total_consumed_milli == 11_000
