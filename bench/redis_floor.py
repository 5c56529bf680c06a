"""``python -m bench.redis_floor``: an acquire on Redis beside a script that does nothing, sent by redis-py.

Four figures for each side: the time and the CPU of a round trip, both as the median of many short rounds in turn, the
ratio of the time to that of the script, and how long the server's script takes by the server's own count.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import redis
import redis.asyncio
from tests.support.redis.server import Server

from bench.timing import in_turn, typical
from zae_limiter import Limit, RateLimiter, SyncRateLimiter

CALLS, ROUNDS = 100, 40
LIMITS = [Limit.per_day("rpd", 1_000_000)]
COST = {"rpd": 1}
NOTHING = "return 1"
FLAT, CASCADE, FLOOR = "one level", "cascade of two levels", "a script that does nothing"
ENTITIES = {FLAT: "alone", CASCADE: "child"}

Side = Callable[[int], int]


def blocking_sides(url: str, stack: ExitStack) -> dict[str, Side]:
    """Return the sides that block: how many calls each makes is its argument."""
    client = stack.enter_context(redis.Redis.from_url(url))
    digest = client.script_load(NOTHING)
    limiter = stack.enter_context(SyncRateLimiter(url))
    limiter.create_entity("parent")
    limiter.create_entity("child", parent_id="parent", cascade=True)

    def call_script(calls: int) -> int:
        for _ in range(calls):
            client.evalsha(digest, 1, "key")
        return calls

    def acquire(entity: str) -> Side:
        def work(calls: int) -> int:
            for _ in range(calls):
                with limiter.acquire(entity, "gpt-4", COST, LIMITS):
                    pass
            return calls

        return work

    return {FLOOR: call_script, **{name: acquire(entity) for name, entity in ENTITIES.items()}}


def async_sides(url: str, stack: ExitStack) -> dict[str, Side]:
    """Return the same in an event loop."""
    runner = stack.enter_context(asyncio.Runner())
    client = redis.asyncio.Redis.from_url(url)
    digest = runner.run(_load(client))
    limiter = RateLimiter(url)
    stack.callback(lambda: runner.run(limiter.close()))
    stack.callback(lambda: runner.run(client.aclose()))

    async def call_script(calls: int) -> int:
        for _ in range(calls):
            await client.evalsha(digest, 1, "key")
        return calls

    async def acquire(entity: str, calls: int) -> int:
        for _ in range(calls):
            async with limiter.acquire(entity, "gpt-4", COST, LIMITS):
                pass
        return calls

    def of(entity: str) -> Side:
        return lambda calls: runner.run(acquire(entity, calls))

    return {
        FLOOR: lambda calls: runner.run(call_script(calls)),
        **{name: of(entity) for name, entity in ENTITIES.items()},
    }


async def _load(client: Any) -> Any:
    return await client.script_load(NOTHING)


def measure(sides: dict[str, Side], server: Server) -> Iterator[str]:
    """Return a line for each side."""
    for side in sides.values():
        side(CALLS)
    rounds = in_turn(sides, CALLS, ROUNDS)
    floor = typical([each.wall_us for each in rounds[FLOOR]])
    for name, side in sides.items():
        wall, cpu = (typical([each[field] for each in rounds[name]]) for field in (0, 1))
        with serving(server, side) as told:
            script_us = told()
        yield f"{name:28} {wall:7.1f} us {cpu:7.1f} us CPU {wall / floor:6.2f} times {script_us:6.1f} us of the server"


@contextmanager
def serving(server: Server, side: Side) -> Iterator[Callable[[], float]]:
    """Let a side make some calls, and give the microseconds that the server took for each."""
    server.aside("CONFIG", "RESETSTAT")
    side(10 * CALLS)

    def told() -> float:
        found = re.search(r"cmdstat_evalsha:.*usec_per_call=([\d.]+)", str(server.aside("INFO", "commandstats")))
        assert found is not None
        return float(found[1])

    yield told


def main() -> None:
    """Print a table for each mode."""
    modes: dict[str, Any] = {"blocking": blocking_sides, "async": async_sides}
    with Server() as server:
        for mode, sides in modes.items():
            with ExitStack() as stack:
                print(mode)
                for line in measure(sides(server.url, stack), server):
                    print(f"  {line}", flush=True)


if __name__ == "__main__":
    main()
