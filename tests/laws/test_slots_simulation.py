"""A thousand slots under demand, on the real code in virtual time: 64 clients, each with more callers than slots.

Each client is a process of its own: a limiter that shares nothing with the others but the store. Calls of the store
take 2 to 16 ms, so what a client has last seen of the slots is old when its write arrives.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections import Counter
from dataclasses import dataclass, field

from tests.support.deadlines import PATIENCE
from tests.support.virtual_time import Distant, VirtualLoop, put_apart, run_virtually
from zae_limiter import Limit, RateLimiter, Repository
from zae_limiter.records import keys
from zae_limiter.records.splitting import SLOTS_PER_RECORD
from zae_limiter.stores.memory import MemoryStore

CLIENTS = 64
SLOTS = 1_000
CALLERS = 24
"""Callers of each client: all together half as many again as there are slots."""
HOLD_SECONDS = 6.0
SECONDS = 2.0
"""For how long it is counted, in virtual time; not before, as all slots are taken one by one then."""


@dataclass
class Run:
    """What happened from ``since`` on, after the slots had been taken for the first time."""

    since: float
    held: int = 0
    most: int = 0
    busy_seconds: float = 0.0
    granted: int = 0
    calls: Counter[str] = field(default_factory=Counter)
    shards: list[int] = field(default_factory=list)
    """How many slots each record has."""
    _changed_at: float = 0.0

    def count(self, now: float, more: int) -> None:
        """Note that one more call is in flight, or one less."""
        end = self.since + SECONDS
        if now > self.since:
            self.busy_seconds += self.held * (min(now, end) - max(self._changed_at, self.since))
            self.granted += more > 0 and now <= end
        self.held += more
        self.most = max(self.most, self.held)
        self._changed_at = min(now, end)

    @property
    def use(self) -> float:
        return self.busy_seconds / SECONDS / SLOTS

    @property
    def calls_per_grant(self) -> float:
        """Without the call that frees the slot in the end."""
        return (self.calls["commit"] + self.calls["read"]) / self.granted - 1


class Partitioned(Distant):
    """A store on which a record takes so many writes a second, and is billed by its size."""

    def __init__(self, shared: MemoryStore, rng: random.Random) -> None:
        super().__init__(shared, rng)
        self.capabilities = dataclasses.replace(
            self.capabilities, free_atomic_commit=False, partition_writes=1_000, name="partitioned"
        )


async def load(kind: type[Distant], since: float) -> Run:
    """Let callers wait for a slot, hold it for some time, and come again."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    random.seed(1)
    rng, run, shared = random.Random(1), Run(since), MemoryStore(loop)
    await Repository(shared).set_system_defaults([Limit.concurrent("parallel", SLOTS, ttl=3_600)])
    stores = [kind(shared, rng) for _ in range(CLIENTS)]

    async def call(limiter: RateLimiter) -> None:
        await asyncio.sleep(rng.uniform(0, HOLD_SECONDS))
        while True:
            async with limiter.acquire("key", "gpt-4", {}, max_wait=60):
                run.count(loop.time(), +1)
                try:
                    await asyncio.sleep(rng.expovariate(1 / HOLD_SECONDS))
                finally:
                    run.count(loop.time(), -1)

    limiters = [put_apart(RateLimiter(Repository(store), timeout=PATIENCE)) for store in stores]
    callers = [asyncio.create_task(call(limiter)) for limiter in limiters for _ in range(CALLERS)]
    await asyncio.sleep(since)
    before = sum((store.calls for store in stores), Counter[str]())
    await asyncio.sleep(SECONDS)
    run.calls = sum((store.calls for store in stores), Counter[str]()) - before
    ns = await limiters[0].repository._backend.ns(limiters[0].repository._backend.deadline())
    shards = await shared.read([keys.bucket(ns, "key", "gpt-4", shard) for shard in range(256)])
    run.shards = [sum(attr.startswith("s_") for attr in image) for image in shards if image is not None]
    for caller in callers:
        caller.cancel()
    await asyncio.gather(*callers, return_exceptions=True)
    return run


def test_a_thousand_slots_are_in_use_for_few_calls() -> None:
    run = run_virtually(load(Distant, since=7))
    assert run.most == SLOTS
    assert run.use >= 0.98
    assert run.calls_per_grant <= 1.4


def test_slots_of_a_bucket_that_is_split_are_in_use_too() -> None:
    """Where a record is billed by its size; finding a shard with a free slot takes further calls."""
    run = run_virtually(load(Partitioned, since=10))
    assert run.most == SLOTS
    assert run.use >= 0.98
    assert run.calls_per_grant <= 3
    assert len(run.shards) == 32
    assert max(run.shards) <= SLOTS_PER_RECORD
