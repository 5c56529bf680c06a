"""How an acquire grows with slots in use, levels and keys, and how long renewing many slots blocks a Redis server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

from tests.support.redis.server import Server

from bench.timing import Side, in_turn, typical
from zae_limiter import Limit, RateLimiter, Repository, SyncLease, SyncRateLimiter

RESOURCE = "gpt-4"
ROOMY = [Limit.per_minute("rpm", 1_000_000), Limit.per_minute("tpm", 1_000_000_000)]
COST = {"rpm": 1, "tpm": 500}
HELD, SLOTS, AT_ONCE = (0, 500, 999), 1_000, 50
"""Slots in use, of how many; an acquire takes at most so many."""
RENEWED, TTL_S = 4_000, 30
"""Slots of one holder, which are renewed after every third of their time."""
DEPTHS = range(1, 9)
KEYS, REPEATED, WORKERS = (1_000, 10_000, 100_000), 10_000, 32
"""Of so many keys, how many are asked for a second time, by so many tasks at once."""
SIZE = (24, 20)
"""Calls in a round, and rounds."""
WARM_UP = 10

Figures = dict[str, dict[str, float]]


def measure() -> dict[str, Any]:
    """Everything, by what grows."""
    with Server() as server:
        urls = {"memory": "memory://growth", "redis": server.url}
        found: dict[str, Any] = {
            "slots": {store: slots(url) for store, url in urls.items()},
            "renewal_ms": {name: renewal_ms(server, name == "another writer") for name in ("alone", "another writer")},
        }
        server.flush()
        urls["memory"] = "memory://growth-depth"
        found["depth"] = {store: depths(url) for store, url in urls.items()}
        found["keys"] = {str(number): keys(server, number) for number in KEYS}
        return found


def slots(url: str) -> Figures:
    """Figures of an acquire that takes a slot and gives it back, by slots in use; and of one without slots."""
    with ExitStack() as stack:
        limiter = stack.enter_context(SyncRateLimiter(url))
        holder = stack.enter_context(SyncRateLimiter(url))
        limiter.set_system_defaults(ROOMY)
        limiter.set_resource_defaults("slots", [Limit.concurrent("parallel", SLOTS, ttl=3600)])
        sides, leases = {"plain": repeat(limiter, "plain", RESOURCE, COST)}, []
        for held in HELD:
            key = f"held-{held}"
            leases += hold(holder, key, held)
            sides[str(held)] = repeat(limiter, key, "slots", {})
        return figures(sides)


def hold(limiter: SyncRateLimiter, key: str, number: int) -> list[SyncLease]:
    """Take slots and never give them back; they are renewed as long as the leases exist and the limiter is open."""
    leases = []
    while number:
        taken = min(number, AT_ONCE)
        leases.append(limiter.acquire(key, "slots", {"parallel": taken}).__enter__())
        number -= taken
    return leases


def repeat(limiter: SyncRateLimiter, key: str, resource: str, cost: Mapping[str, int]) -> Side:
    """An acquire, again and again."""
    acquire = limiter.acquire

    def side(calls: int) -> int:
        for _ in range(calls):
            with acquire(key, resource, cost):
                pass
        return calls

    side(WARM_UP)
    return side


def figures(sides: Mapping[str, Callable[[int], int]]) -> Figures:
    """Time and CPU of each."""
    return {
        name: {
            "wall_us": typical([each.wall_us for each in rounds]),
            "cpu_us": typical([each.cpu_us for each in rounds]),
        }
        for name, rounds in in_turn(sides, *SIZE).items()
    }


def renewal_ms(server: Server, with_writer: bool) -> float:
    """Return the run time of the longest script while the slots of one holder are renewed, in milliseconds."""
    server.flush()
    with SyncRateLimiter(server.url) as other, SyncRateLimiter(server.url) as holder:
        other.set_system_defaults([Limit.concurrent("parallel", 2 * RENEWED, ttl=TTL_S)])
        leases = hold(holder, "renewed", RENEWED)
        server.aside("CONFIG", "SET", "slowlog-max-len", 10_000)
        server.aside("CONFIG", "SET", "slowlog-log-slower-than", 0)
        server.aside("SLOWLOG", "RESET")
        until = time.monotonic() + TTL_S / 2
        while time.monotonic() < until:
            time.sleep(0.02)
            if with_writer:
                with other.acquire("renewed", "slots", {}):
                    pass
        assert not any(lease.lost for lease in leases)
        return max(int(entry[2]) for entry in server.aside("SLOWLOG", "GET", -1)) / 1000


def depths(url: str) -> Figures:
    """Figures of an acquire by the number of levels that it charges."""
    with SyncRateLimiter(url) as limiter:
        limiter.set_system_defaults(ROOMY)
        limiter.create_entity("level-1")
        for depth in DEPTHS[1:]:
            limiter.create_entity(f"level-{depth}", parent_id=f"level-{depth - 1}", cascade=True)
        sides = {str(depth): repeat(limiter, f"level-{depth}", RESOURCE, COST) for depth in DEPTHS}
        return figures(sides)


def keys(server: Server, number: int) -> float:
    """Return the calls per decision of keys that take turns, each of which was asked for before."""
    server.flush()
    return asyncio.run(_keys(server.url, number))


async def _keys(url: str, number: int) -> float:
    async with RateLimiter(Repository(url, config_cache_ttl=3600)) as limiter:  # asking all of them takes a minute
        await limiter.set_system_defaults(ROOMY)

        async def ask(names: Iterator[str]) -> None:
            for name in names:
                async with limiter.acquire(name, RESOURCE, COST):
                    pass

        async def ask_all(total: int) -> None:
            names = map("key-{}".format, range(total))
            await asyncio.gather(*(ask(names) for _ in range(WORKERS)))

        await ask_all(number)
        before = limiter.repository.get_backend_stats().total_calls
        repeated = min(number, REPEATED)
        await ask_all(repeated)
        return round((limiter.repository.get_backend_stats().total_calls - before) / repeated, 3)
