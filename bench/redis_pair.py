"""Redis: a two-limit acquire beside a script that does nothing and beside `limits`, on one server in one run.

Times are round trips as a caller waits for them; all sides in turn, many short rounds, the best of each; ``at_once`` is
the time per call of 32 concurrent callers of one key. Commands and bytes are counted by the server.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import redis
import redis.asyncio
from limits.storage import RedisStorage
from tests.redis.rig.server import Server

from bench.memory_pair import COST, ours, rival
from bench.timing import best_of
from zae_limiter import RateLimiter

CALLS, ROUNDS, COUNTED, MANY = 96, 60, 50, 32

Work = Callable[[int], None]


def measure() -> dict[str, Any]:
    """Microseconds per piece of work, and what each asks of the server."""
    with Server() as server, asyncio.Runner() as runner:
        blocking = {
            "no-op EVALSHA": nothing(server.url),
            "ours": ours(server.url),
            "limits": rival(RedisStorage(server.url)),
        }
        waiting = {
            callers: {
                "no-op EVALSHA": nothing_async(server.url, runner, callers),
                "ours": ours_async(server.url, runner, callers),
            }
            for callers in (1, MANY)
        }
        return {
            "blocking_us": waited_for(blocking),
            "async_us": waited_for(waiting[1]),
            "at_once_us": waited_for(waiting[MANY]),
            "asked": {name: asked(server, work) for name, work in blocking.items()},
        }


def waited_for(sides: dict[str, Work]) -> dict[str, float]:
    """Microseconds until a call is done."""
    return best_of(sides, CALLS, ROUNDS, time.perf_counter_ns)


def asked(server: Server, work: Work) -> dict[str, float]:
    """Commands and bytes per call, in and out, by the server's own count."""
    server.reset_stats()
    work(COUNTED)
    stats = server.command_stats()
    sent = {name: count / COUNTED for name, count in stats.items() if name in ("evalsha", "eval", "incrby", "expire")}
    told = dict(line.split(":", 1) for line in str(server.command("INFO", "stats")).splitlines() if ":" in line)
    volume = int(told["total_net_input_bytes"]) + int(told["total_net_output_bytes"])
    return {"evalsha": sent.get("evalsha", 0.0), "bytes": round(volume / COUNTED)}


def nothing(url: str) -> Work:
    """The least that a script call costs with redis-py."""
    client = redis.Redis.from_url(url)
    digest = client.script_load("return 1")

    def work(calls: int) -> None:
        for _ in range(calls):
            client.evalsha(digest, 0)

    return work


def nothing_async(url: str, runner: asyncio.Runner, callers: int) -> Work:
    """The same in an event loop."""
    client = redis.asyncio.Redis.from_url(url)
    digest = redis.Redis.from_url(url).script_load("return 1")

    async def one() -> None:
        await client.evalsha(digest, 0)

    return in_loop(one, runner, callers)


def ours_async(url: str, runner: asyncio.Runner, callers: int) -> Work:
    """The same in an event loop."""
    limiter = RateLimiter(url)

    async def one() -> None:
        async with limiter.acquire("key", "gpt-4", COST):
            pass

    return in_loop(one, runner, callers)


def in_loop(one: Callable[[], Coroutine[Any, Any, None]], runner: asyncio.Runner, callers: int) -> Work:
    """So many calls, by some callers at a time."""

    async def calling(calls: int) -> None:
        for _ in range(calls):
            await one()

    async def all_of(calls: int) -> None:
        await asyncio.gather(*(calling(calls // callers) for _ in range(callers)))

    return lambda calls: runner.run(calling(calls) if callers == 1 else all_of(calls))


def report(found: dict[str, Any]) -> list[str]:
    """Lines to read."""
    lines = []
    for mode in ("blocking", "async", "at_once"):
        times = found[f"{mode}_us"]
        for name, microseconds in times.items():
            lines.append(
                f"{mode:9s} {name:14s} {microseconds:8.1f} us   {microseconds / times['no-op EVALSHA']:5.2f} x no-op"
                + (f"   {microseconds / times['limits']:5.2f} x limits" if "limits" in times else "")
            )
    for name, counts in found["asked"].items():
        lines.append(f"per call  {name:14s} {counts['evalsha']:5.2f} EVALSHA   {counts['bytes']:6.0f} bytes in and out")
    return lines


if __name__ == "__main__":
    print("\n".join(report(measure())))
