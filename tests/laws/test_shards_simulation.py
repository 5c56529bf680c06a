"""Splitting under load, on the real code in virtual time: 64 clients, one entity, from 1 shard to 16.

Each client is a process of its own: a limiter that shares nothing with the others but the store. Calls take a random
time each way, so races are lost all the time. The store counts how many writes a second a record takes, and one of
the runs throttles what comes on top, as DynamoDB does to a partition.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from tests.support.virtual_time import Distant, VirtualLoop, run_virtually
from zae_limiter import Limit, RateLimiter, RateLimiterUnavailable, RateLimitExceeded, Repository
from zae_limiter.core.production import Rule
from zae_limiter.records import keys
from zae_limiter.stores.memory import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zae_limiter.records.algebra import Committed, Conflict, Write

CLIENTS = 64
PARTITION = 100
"""Writes a second that one record takes here: a tenth of the real figure, so that a run takes seconds."""


class Partitioned(Distant):
    """A store with a bound on the writes to one record; with ``recent`` it throttles what comes on top."""

    def __init__(self, shared: MemoryStore, rng: random.Random, recent: dict[str, deque[float]] | None) -> None:
        super().__init__(shared, rng)
        self.capabilities = dataclasses.replace(
            self.capabilities, free_atomic_commit=False, partition_writes=PARTITION, name="partitioned"
        )
        self.recent = recent

    async def commit(self, writes: Sequence[Write], *, timeout: float | None = None) -> Committed | Conflict:
        for attempt in range(5):
            if all(self._takes(write.key.pk) for write in writes):
                return await super().commit(writes, timeout=timeout)
            self.calls["throttled"] += 1
            await asyncio.sleep(self._rng.uniform(0, 0.05 * 2**attempt))
        raise RateLimiterUnavailable("throttled")

    def _takes(self, pk: str) -> bool:
        if self.recent is None:
            return True
        now = asyncio.get_running_loop().time()
        window = self.recent.setdefault(pk, deque())
        while window and window[0] < now - 1:
            window.popleft()
        if len(window) >= PARTITION:
            return False
        window.append(now)
        return True


@dataclass
class Run:
    """What happened: when requests came, grants with their instants of decision, and the shards over time."""

    came: list[int] = field(default_factory=list)
    granted: list[tuple[int, int]] = field(default_factory=list)
    refused: int = 0
    unavailable: int = 0
    calls: Counter[str] = field(default_factory=Counter)
    counts: list[int] = field(default_factory=list)

    @property
    def decisions(self) -> int:
        return len(self.granted) + self.refused

    @property
    def total(self) -> int:
        return sum(cost for _, cost in self.granted)


async def load(limit: Limit, cost: int, per_second: float, seconds: float, *, throttles: bool = False) -> Run:
    """Clients ask at random moments, ``per_second`` times all together."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    random.seed(1)
    rng = random.Random(1)
    shared = MemoryStore(loop)
    repository = Repository(shared)
    await repository.set_system_defaults([limit])
    ns = await repository._backend.ns(repository._backend.deadline())
    run = Run()
    recent: dict[str, deque[float]] | None = {} if throttles else None
    stores = [Partitioned(shared, rng, recent) for _ in range(CLIENTS)]

    async def request(limiter: RateLimiter) -> None:
        run.came.append(shared.clock.now_ms())
        try:
            async with limiter.acquire("key", "gpt-4", {limit.name: cost}) as lease:
                assert lease._grant is not None
                run.granted.append((lease._grant.now_ms, cost))
        except RateLimitExceeded:
            run.refused += 1
        except RateLimiterUnavailable:
            run.unavailable += 1

    async def client(store: Partitioned) -> None:
        limiter = RateLimiter(Repository(store), timeout=60)  # in real seconds, and the machine may be busy
        under_way = []
        while loop.time() < seconds:
            await asyncio.sleep(rng.expovariate(per_second / CLIENTS))
            under_way.append(asyncio.create_task(request(limiter)))
        await asyncio.gather(*under_way)

    async def observe() -> None:
        while loop.time() < seconds:
            (image,) = await shared.read([keys.bucket(ns, "key", "gpt-4")])
            count = 1 if image is None else image["shard_count"]
            if not run.counts or run.counts[-1] != count:
                run.counts.append(count)
            await asyncio.sleep(0.001)

    await asyncio.gather(observe(), *(client(store) for store in stores))
    run.calls = sum((store.calls for store in stores), Counter())
    return run


def worst_balance(granted: list[tuple[int, int]], limit: Limit) -> int:
    """The lowest balance of one exact bucket that is charged in the order of decision.

    It is never negative exactly if in every window the grants are within capacity + rate x window.
    """
    rule = Rule.of(limit)
    lowest = balance = rule.capacity
    before = min(granted)[0]
    for instant, cost in sorted(granted):
        balance = min(rule.capacity, balance + rule.produced_between(before, instant)) - cost * 1000
        before = instant
        lowest = min(lowest, balance)
    return lowest


def oracle(run: Run, limit: Limit, cost: int) -> int:
    """What one exact bucket would have granted at the instants at which the requests came."""
    rule = Rule.of(limit)
    balance, before, total = rule.capacity, min(run.came), 0
    for instant in sorted(run.came):
        balance = min(rule.capacity, balance + rule.produced_between(before, instant))
        before = instant
        if balance >= cost * 1000:
            balance -= cost * 1000
            total += cost
    return total


DRAINED = Limit.per_second("rpm", 900)
WIDE = Limit.per_second("tpm", 40_000, burst=60_000)


@pytest.mark.parametrize(("limit", "cost"), [(DRAINED, 1), (WIDE, 40)], ids=["requests", "tokens"])
def test_from_one_shard_to_sixteen_nothing_is_minted_or_lost(limit: Limit, cost: int) -> None:
    run = run_virtually(load(limit, cost, 1.25 * limit.refill_rate / cost, 6))
    assert run.counts[:5] == [1, 2, 4, 8, 16]
    assert worst_balance(run.granted, limit) >= 0
    assert run.total >= 0.95 * oracle(run, limit, cost)
    assert run.refused > 0
    assert run.unavailable == 0


def test_splitting_is_what_serves_a_partition_that_is_throttled(monkeypatch: pytest.MonkeyPatch) -> None:
    split = run_virtually(load(DRAINED, 1, 900, 8, throttles=True))
    monkeypatch.setattr("zae_limiter.records.splitting.MAX_SHARDS", 1)
    whole = run_virtually(load(DRAINED, 1, 900, 8, throttles=True))
    assert split.counts == [1, 2, 4, 8, 16]
    assert whole.counts == [1]
    assert worst_balance(split.granted, DRAINED) >= 0
    assert split.unavailable * 5 < whole.unavailable


def test_the_check_of_law_1_can_fail() -> None:
    run = run_virtually(load(DRAINED, 1, 900, 1))
    assert worst_balance(run.granted, DRAINED) >= 0
    assert worst_balance(run.granted * 3, DRAINED) < 0
