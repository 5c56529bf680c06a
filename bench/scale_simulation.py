"""Two simulations of very large traffic in virtual time, which check the formula: a model, and the real limiter.

Each process and each key in it has as much traffic as the formula says, but there are fewer processes.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from unittest.mock import patch

from tests.support.virtual_time import Distant, VirtualLoop, run_virtually

from bench.scale_formula import ONE_WAY_MS, RECORD_WRITES, USED, Calls, Traffic
from zae_limiter import Limit, RateLimiter, Repository
from zae_limiter.limiter.prefetch import prefetcher
from zae_limiter.limiter.prefetch.bucket import FEWEST
from zae_limiter.records.algebra import Committed, Conflict, Image, Key, Write
from zae_limiter.runtime.housekeeper import Chore
from zae_limiter.stores.memory import MemoryStore

LEAD, WINDOW = 0.03, 0.1
"""Seconds before tokens run out at which more are drawn, and the interval over which demand is counted."""
WARM_S = 1.0
"""The simulations count after so long."""


# The model: what one process does with one bucket, if there are tokens enough.


class ModelBucket:
    """One bucket in one process. ``written`` is called with the instant of every write."""

    def __init__(self, prefetch: float, lag: float, rng: random.Random, written: Callable[[float], None]) -> None:
        self._prefetch = prefetch
        self._lag = lag
        self._rng = rng
        self._written = written
        self._pace, self._asked, self._since = 0.0, 0, 0.0
        self._lots: list[list[float]] = []
        """Tokens left of each draw, and when they expire."""
        self._lands = math.inf
        """When the write that is under way is over, and what it draws in advance."""
        self._drawn: list[float] = []
        self._waiting = 0

    def ask(self, now: float) -> None:
        """Ask for a token: one that is held, or by a write."""
        self.pass_time(now)
        self._count(now)
        is_busy = self._lands < math.inf
        if self._take():
            if not is_busy and sum(left for left, _ in self._lots) < LEAD * self._pace:
                self._write(now)
        elif is_busy:
            self._waiting += 1
        else:
            self._write(now)

    def pass_time(self, now: float) -> None:
        """Do what is due by ``now``: end the write that is under way, drop what may not be granted any more.

        What is left of that goes back with the next draw.
        """
        while True:
            ends = self._lots[0][1] if self._lots else math.inf
            if min(self._lands, ends) > now:
                return
            if self._lands <= ends:
                self._land()
            else:
                del self._lots[0]

    def _land(self) -> None:
        now, self._lands = self._lands, math.inf
        if self._drawn:
            self._lots.append(self._drawn)
        while self._waiting and self._take():
            self._waiting -= 1
        if self._waiting:
            self._waiting = 0
            self._write(now)

    def _take(self) -> bool:
        for lot in self._lots:
            if lot[0] >= 1:
                lot[0] -= 1
                return True
        return False

    def _write(self, now: float) -> None:
        self._written(now)
        self._lands = now + (self._rng.uniform(*ONE_WAY_MS) + self._rng.uniform(*ONE_WAY_MS)) / 1000
        expected, self._drawn = self._pace * self._prefetch, []
        if expected >= FEWEST:
            wanted = int(expected + math.sqrt(expected) - sum(left for left, _ in self._lots))
            self._drawn = [wanted, now + self._prefetch - self._lag] if wanted >= FEWEST else []

    def _count(self, now: float) -> None:
        """Count an acquire; what came before the window counts half as much as what came in it."""
        self._asked += 1
        passed = now - self._since
        if passed >= WINDOW:
            kept = 0.5 ** (passed / WINDOW)
            self._pace = self._pace * kept + self._asked / passed * (1 - kept)
            self._asked, self._since = 0, now


def simulate_model(traffic: Traffic, processes: int, seconds: float, seed: int = 1) -> Calls:
    """Return the calls by the model, of some of the processes."""
    traffic = traffic.shrink(processes)
    rng, counted, ends = random.Random(seed), Counter[str](), WARM_S + seconds
    for _ in range(traffic.processes):
        _model_process(traffic, rng, ends, counted)
    return Calls(*(counted[name] / counted["decisions"] for name in Calls._fields))


def _model_process(traffic: Traffic, rng: random.Random, ends: float, counted: Counter[str]) -> None:
    """Simulate one process; nothing but the tokens of a bucket is shared with others."""

    def count(*names: str) -> Callable[[float], None]:
        return lambda now: counted.update(names if WARM_S <= now < ends else ())

    organisation = ModelBucket(traffic.prefetch, traffic.lag, rng, count("organisation"))
    together = ("keys",) if traffic.is_held else ("keys", "organisation")
    keys: dict[int, ModelBucket] = {}
    cached: dict[int, float] = {}
    remembered = traffic.key_pace * traffic.cached
    now, read, decided = rng.expovariate(traffic.pace), count("reads"), count("decisions")
    while now < ends:
        decided(now)
        key = rng.randrange(traffic.keys_each)
        if key not in keys:
            keys[key] = ModelBucket(traffic.prefetch, 0, rng, count(*together))
            if rng.random() < remembered / (1 + remembered):
                cached[key] = now + rng.random() * traffic.cached
        if cached.get(key, 0) <= now:
            cached[key] = now + traffic.cached
            read(now)
        keys[key].ask(now)
        if traffic.is_held:
            organisation.ask(now)
        now += rng.expovariate(traffic.pace)
    for bucket in (organisation, *keys.values()):
        bucket.pass_time(ends)


# The real limiter, in virtual time.

ORGANISATION = "organisation"


class Remote(Distant):
    """One process's connection to a store that can do and costs what DynamoDB does."""

    def __init__(self, shared: MemoryStore, rng: random.Random, counted: Counter[str]) -> None:
        super().__init__(shared, rng, ONE_WAY_MS)
        self.capabilities = replace(
            self.capabilities, free_atomic_commit=False, partition_writes=RECORD_WRITES, usage_retention_days=0
        )
        self.counted = counted

    async def read(self, keys: Sequence[Key], *, timeout: float | None = None) -> list[Image | None]:
        """Return the current images."""
        self.counted["reads"] += 1
        return await super().read(keys)

    async def commit(self, writes: Sequence[Write], *, timeout: float | None = None) -> Committed | Conflict:
        """Apply all writes if all guards hold."""
        outcome = await super().commit(writes)
        for write in writes:
            level = "organisation" if f"#{ORGANISATION}#" in write.key.pk else "keys"
            self.counted[level if isinstance(outcome, Committed) else "lost"] += 1
        return outcome

    def for_threads(self) -> Remote:
        """Return a connection for background work, which does not wait."""
        return Near(self._shared, self._rng, self.counted)


class Near(Remote):
    """A connection without any delay."""

    async def _travel(self) -> None:
        pass


class Chores:
    """A housekeeper in virtual time: does background work when it is due."""

    def __init__(self) -> None:
        self._timers: dict[Chore, asyncio.TimerHandle] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def schedule(self, chore: Chore, seconds: float) -> None:
        """Have a chore done after so many seconds, or earlier if it is due earlier.

        Chores do some of their work in threads, which the loop waits for.
        """
        self._loop = loop = self._loop or asyncio.get_running_loop()
        known = self._timers.get(chore)
        if known is None or known.when() > loop.time() + seconds:
            self.cancel(chore)
            self._timers[chore] = loop.call_later(seconds, self._do, chore)

    def cancel(self, chore: Chore) -> None:
        """Drop a chore."""
        if chore in self._timers:
            self._timers.pop(chore).cancel()

    def _do(self, chore: Chore) -> None:
        del self._timers[chore]
        seconds = chore()
        if seconds is not None:
            self.schedule(chore, seconds)


def simulate_limiter(traffic: Traffic, processes: int, seconds: float, seed: int = 1) -> Calls:
    """Return the calls of the real limiter, in some of the processes."""
    random.seed(seed)
    with patch.object(prefetcher, "HOUSEKEEPER", Chores()):
        return run_virtually(_run_limiters(traffic, processes, seconds, random.Random(seed)))


async def _run_limiters(traffic: Traffic, processes: int, seconds: float, rng: random.Random) -> Calls:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    shared, counted = MemoryStore(loop), Counter[str]()
    admin, known, ends = Repository(shared), set[str](), WARM_S + seconds
    await admin.set_system_defaults([Limit.per_minute("rpm", math.ceil(traffic.decisions / traffic.keys * 60 / USED))])
    traffic = traffic.shrink(processes)
    await admin.create_entity(ORGANISATION)
    await admin.set_limits(ORGANISATION, [Limit.per_minute("rpm", round(traffic.decisions * 60 / USED))])

    async def request(limiter: RateLimiter, key: str) -> None:
        async with limiter.acquire(key, "api", {"rpm": 1}):
            counted["decisions"] += 1

    async def process(place: int) -> None:
        repository = Repository(Remote(shared, rng, counted))
        limiter, under_way = RateLimiter(repository, prefetch=traffic.prefetch, timeout=60), []
        await asyncio.sleep(rng.expovariate(traffic.pace))
        while loop.time() < ends:
            key = f"key-{(place * traffic.keys_each + rng.randrange(traffic.keys_each)) % traffic.keys}"
            if key not in known:
                known.add(key)
                await admin.create_entity(key, parent_id=ORGANISATION, cascade=True)
            under_way.append(asyncio.create_task(request(limiter, key)))
            await asyncio.sleep(rng.expovariate(traffic.pace))
        await asyncio.gather(*under_way)

    loop.call_later(WARM_S, counted.clear)
    await asyncio.gather(*(process(place) for place in range(traffic.processes)))
    return Calls(*(counted[name] / counted["decisions"] for name in Calls._fields))
