"""Splitting under load, on the real code in virtual time: many clients, one entity, from 1 shard to 16.

Each client is a process of its own: a limiter that shares nothing with the others but the store. The store takes so
many writes a second for one record and throttles what comes on top; calls take a random time each way.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from tests.virtual_time import Distant, VirtualLoop, run_virtually
from zae_limiter import Limit, RateLimiter, RateLimitExceeded, Repository
from zae_limiter.core.bucket import Rule, between
from zae_limiter.core.errors import RateLimiterUnavailable
from zae_limiter.records import keys
from zae_limiter.stores.memory import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zae_limiter.records.algebra import Committed, Conflict, Write

PARTITION = 100
"""Writes a second that one record takes here: a tenth of the real figure, so that a run takes seconds."""
CLIENTS = 64
SECONDS = 6


class Partitioned(Distant):
    """A store that throttles writes to one record beyond its rate, as DynamoDB does to a partition."""

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
    """What happened."""

    granted: list[tuple[int, int]] = field(default_factory=list)
    refused: int = 0
    throttled: int = 0
    calls: Counter[str] = field(default_factory=Counter)
    counts: dict[int, int] = field(default_factory=dict)
    """The number of shards over time: second -> count."""


async def load(limit: Limit, cost: int, per_client: float, seed: int, *, throttles: bool) -> Run:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    random.seed(seed)
    rng = random.Random(seed)
    shared = MemoryStore(loop)
    await Repository(shared).set_system_defaults([limit])
    ns = await Repository(shared)._backend.ns()
    run = Run()
    recent: dict[str, deque[float]] | None = {} if throttles else None
    stores = [Partitioned(shared, rng, recent) for _ in range(CLIENTS)]

    async def request(limiter: RateLimiter) -> None:
        try:
            async with limiter.acquire("key", "gpt-4", {limit.name: cost}):
                run.granted.append((shared.clock.now_ms(), cost))
        except RateLimitExceeded:
            run.refused += 1
        except RateLimiterUnavailable:
            run.throttled += 1

    async def client(store: Partitioned) -> None:
        limiter = RateLimiter(Repository(store))
        under_way = []
        while loop.time() < SECONDS:
            await asyncio.sleep(rng.expovariate(per_client))
            under_way.append(asyncio.create_task(request(limiter)))
        await asyncio.gather(*under_way)

    async def observe() -> None:
        while loop.time() < SECONDS:
            (image,) = await shared.read([keys.bucket(ns, "key", "gpt-4")])
            if image is not None:
                run.counts[int(loop.time())] = image["shard_count"]; print(int(loop.time()), image["shard_count"], len(run.granted), run.refused, flush=True)
            await asyncio.sleep(1)

    await asyncio.gather(observe(), *(client(store) for store in stores))
    for store in stores:
        run.calls.update(store.calls)
    return run


def worst_balance(granted: list[tuple[int, int]], limit: Limit) -> int:
    rule = Rule.of(limit)
    lowest = balance = rule.capacity
    before = granted[0][0]
    for instant, cost in sorted(granted):
        balance = min(rule.capacity, balance + between(rule, before, instant)) - cost * 1000
        before = instant
        lowest = min(lowest, balance)
    return lowest
