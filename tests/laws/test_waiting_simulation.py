"""Processes whose callers wait for the same bucket, on the real code in virtual time: shares, use and longest wait.

Each process is a limiter of its own: all it shares with the others is the store, whose calls take 0.6 to 2 ms.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest

from tests.support.virtual_time import Distant, VirtualLoop, put_apart, run_virtually
from zae_limiter import Limit, RateLimiter, Repository
from zae_limiter.stores.memory import MemoryStore

SECONDS = 20.0


@dataclass
class Crowd:
    """What the callers of each process have got."""

    grants: list[int]
    longest: list[float]
    """The longest that a caller of each process has waited, in seconds."""
    tokens: list[int]
    busy_seconds: float = 0.0
    calls: int = 0

    def check_shares(self, least: float = 0.5) -> None:
        """Assert that each process got at least that part of an equal share."""
        share = sum(self.grants) / len(self.grants)
        assert min(self.grants) >= least * share, self.grants


async def wait_and_hold(limit: Limit, callers: Sequence[int], costs: Sequence[Mapping[str, int]], hold: float) -> Crowd:
    """Let the callers of each process wait, hold what they get, and come again."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    random.seed(1)
    rng, shared, count = random.Random(1), MemoryStore(loop), len(callers)
    await Repository(shared).set_system_defaults([limit])
    stores = [Distant(shared, rng, (0.3, 1)) for _ in callers]
    crowd = Crowd([0] * count, [0.0] * count, [0] * count)

    async def call(number: int, limiter: RateLimiter) -> None:
        while True:
            came = loop.time()
            try:
                async with limiter.acquire("key", "gpt-4", costs[number], max_wait=60):
                    begun = loop.time()
                    crowd.grants[number] += 1
                    crowd.tokens[number] += sum(costs[number].values())
                    try:
                        await asyncio.sleep(hold * rng.uniform(0.8, 1.2))
                    finally:
                        crowd.busy_seconds += loop.time() - begun
            finally:
                crowd.longest[number] = max(crowd.longest[number], loop.time() - came - hold)

    limiters = [put_apart(RateLimiter(Repository(store))) for store in stores]
    tasks = [
        asyncio.create_task(call(number, limiter))
        for number, limiter in enumerate(limiters)
        for _ in range(callers[number])
    ]
    await asyncio.sleep(SECONDS)
    crowd.calls = sum(store.calls.total() for store in stores)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return crowd


@pytest.mark.parametrize(
    ("slots", "processes", "callers", "hold", "calls"),
    [(4, 4, 5, 0.1, 2.4), (1, 4, 5, 0.1, 5), (3, 4, 5, 0.1, 4.5), (10, 2, 20, 0.1, 2.4), (4, 8, 5, 0.5, 9)],
)
def test_slots_are_shared_by_waiting_processes(
    slots: int, processes: int, callers: int, hold: float, calls: float
) -> None:
    limit = Limit.concurrent("parallel", slots, ttl=3_600)
    crowd = run_virtually(wait_and_hold(limit, [callers] * processes, [{}] * processes, hold))
    crowd.check_shares()
    assert crowd.busy_seconds >= 0.9 * slots * SECONDS
    fair = processes * callers * hold / slots
    assert max(crowd.longest) <= 1.5 + 3 * fair
    assert crowd.calls / sum(crowd.grants) <= calls


def test_a_single_waiter_is_served_beside_a_busy_process() -> None:
    crowd = run_virtually(wait_and_hold(Limit.concurrent("parallel", 4, ttl=3_600), [10, 1], [{}] * 2, 0.1))
    assert crowd.grants[1] >= 0.5 * sum(crowd.grants) / 11
    assert crowd.longest[1] <= 2
    assert crowd.busy_seconds >= 0.9 * 4 * SECONDS


@pytest.mark.parametrize(
    "limit",
    [Limit.per_second("rps", 20), Limit.custom("rps", capacity=1, refill_amount=20, refill_period_seconds=1)],
    ids=["burst", "one-by-one"],
)
@pytest.mark.parametrize("processes", [2, 4, 8])
def test_tokens_are_shared_by_waiting_processes(limit: Limit, processes: int) -> None:
    crowd = run_virtually(wait_and_hold(limit, [5] * processes, [{"rps": 1}] * processes, 0))
    crowd.check_shares(0.8)
    assert sum(crowd.tokens) >= 0.97 * limit.refill_rate * SECONDS
    assert max(crowd.longest) <= 1.5 + 2 * processes * 5 / limit.refill_rate
    assert crowd.calls / sum(crowd.grants) <= 3.5


def test_a_large_request_is_not_starved_by_small_ones_of_another_process() -> None:
    """Ten callers come and go; each of them costs the others what it takes, and no more."""
    crowd = run_virtually(wait_and_hold(Limit.per_second("rps", 100), [5, 5], [{"rps": 1}, {"rps": 60}], 0))
    crowd.check_shares()
    assert max(crowd.longest) <= 1.5 + 2 * 5 * 61 / 100
    assert sum(crowd.tokens) >= 0.9 * 100 * SECONDS
