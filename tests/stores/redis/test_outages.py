"""A server that dies and comes back under load: no wrong grant, the policy in between, and no new limiter after it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import pytest

from tests.stores.redis.support import attributes, bucket_key, take
from tests.support.redis.server import Server
from tests.support.waiting import until
from zae_limiter import Limit, RateLimiter, RateLimiterUnavailable, RateLimitExceeded, SyncRateLimiter

LIMIT = Limit.per_second("rpm", 400, burst=100)
WORKERS = 8
ROUNDS = 3
ENOUGH = 150
"""Grants in a row of outcomes that show that it works again."""


class Load(Protocol):
    """Somebody who acquires all the time."""

    outcomes: Counter[str]

    def __enter__(self) -> Load: ...

    def __exit__(self, *_: object) -> None: ...


class AsyncLoad:
    """Tasks on one limiter, in the loop of a thread of its own."""

    def __init__(self, url: str, **options: Any) -> None:
        self.outcomes: Counter[str] = Counter()
        self._url, self._options = url, options
        self._over = False
        self._thread = threading.Thread(target=lambda: asyncio.run(self._all()))

    def __enter__(self) -> AsyncLoad:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        self._thread.join()

    async def _all(self) -> None:
        async with RateLimiter(self._url, **self._options) as limiter:
            await asyncio.gather(*(self._work(limiter) for _ in range(WORKERS)))

    async def _work(self, limiter: RateLimiter) -> None:
        while not self._over:
            self.outcomes[await take(limiter, limits=[LIMIT])] += 1
            await asyncio.sleep(0)


class ThreadLoad:
    """Threads on one limiter."""

    def __init__(self, url: str, **options: Any) -> None:
        self.outcomes: Counter[str] = Counter()
        self._limiter = SyncRateLimiter(url, **options)
        self._over = False
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._work) for _ in range(WORKERS)]

    def __enter__(self) -> ThreadLoad:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        for thread in self._threads:
            thread.join()
        self._limiter.close()

    def _work(self) -> None:
        while not self._over:
            outcome = self._take()
            with self._lock:
                self.outcomes[outcome] += 1

    def _take(self) -> str:
        try:
            with self._limiter.acquire("key", "gpt-4", {"rpm": 1}, [LIMIT]) as lease:
                return "degraded" if lease.degraded else "granted"
        except RateLimitExceeded:
            return "refused"
        except RateLimiterUnavailable:
            return "unavailable"


LOADS: dict[str, Callable[..., Load]] = {"async": AsyncLoad, "blocking": ThreadLoad}


@pytest.fixture
def server() -> Iterator[Server]:
    """One that loses nothing by being killed."""
    with Server(durable=True) as started:
        yield started


def now_ms(server: Server) -> int:
    """The server's time, by which everybody decides."""
    seconds, microseconds = server.aside("TIME")
    return int(seconds) * 1000 + int(microseconds) // 1000


def more(load: Load, outcome: str, count: int) -> Callable[[], bool]:
    """Whether there were so many more of an outcome."""
    target = load.outcomes[outcome] + count
    return lambda: load.outcomes[outcome] >= target


@pytest.mark.parametrize("policy", ["block", "allow"])
@pytest.mark.parametrize("mode", LOADS)
def test_a_server_killed_and_restarted_under_load_never_grants_too_much(server: Server, mode: str, policy: str) -> None:
    meanwhile = "unavailable" if policy == "block" else "degraded"
    begun_ms = now_ms(server)
    with LOADS[mode](server.url, on_unavailable=policy) as load:
        for _ in range(ROUNDS):
            until(more(load, "granted", ENOUGH), "it works")
            server.kill()
            until(more(load, meanwhile, 1), "the policy is applied")
            server.start()
        until(more(load, "granted", ENOUGH), "the same limiter works again")
    seconds = (now_ms(server) - begun_ms) / 1000
    granted, unsure = load.outcomes["granted"], load.outcomes[meanwhile]
    assert granted <= LIMIT.capacity + LIMIT.refill_rate * seconds
    charged = int(attributes(server, bucket_key(server))["b_rpm_tc"]) // 1000
    assert granted <= charged <= granted + unsure, "each lease was charged, and nothing more than once"
    assert load.outcomes.keys() <= {"granted", "refused", meanwhile}


@pytest.mark.parametrize("mode", LOADS)
def test_an_orderly_restart_under_load_never_grants_too_much(server: Server, mode: str) -> None:
    begun_ms = now_ms(server)
    with LOADS[mode](server.url) as load:
        until(more(load, "granted", ENOUGH), "it works")
        server.restart()
        until(more(load, "granted", ENOUGH), "the same limiter works again")
    seconds = (now_ms(server) - begun_ms) / 1000
    granted = load.outcomes["granted"]
    assert granted <= LIMIT.capacity + LIMIT.refill_rate * seconds
    charged = int(attributes(server, bucket_key(server))["b_rpm_tc"]) // 1000
    assert granted <= charged <= granted + load.outcomes["unavailable"]


@pytest.mark.parametrize("mode", LOADS)
def test_scripts_forgotten_under_load_cost_nobody_anything(server: Server, mode: str) -> None:
    with LOADS[mode](server.url) as load:
        for _ in range(5):
            until(more(load, "granted", 20), "it works")
            server.aside("SCRIPT", "FLUSH")
        until(more(load, "granted", 20), "it still works")
    assert load.outcomes.keys() <= {"granted", "refused"}
    charged = int(attributes(server, bucket_key(server))["b_rpm_tc"]) // 1000
    assert charged == load.outcomes["granted"]


@pytest.mark.parametrize("mode", LOADS)
def test_a_server_that_has_lost_everything_starts_afresh(mode: str) -> None:
    """Without persistence a restart forgets all buckets: what is granted since then keeps the limit."""
    with Server() as server, LOADS[mode](server.url) as load:
        until(more(load, "granted", ENOUGH), "it works")
        server.kill()
        until(more(load, "unavailable", 1), "it is noticed")
        granted, begun = load.outcomes["granted"], time.time()
        server.start()
        until(more(load, "granted", ENOUGH), "the same limiter works again")
        seconds = time.time() - begun
        since = load.outcomes["granted"] - granted
        assert since <= LIMIT.capacity + LIMIT.refill_rate * seconds + WORKERS, "those answered before count late"
