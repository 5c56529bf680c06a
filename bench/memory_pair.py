"""The same work twice: 1 of rpm and 500 of tpm for one key, in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from limits import parse
from limits.storage import MemoryStorage
from limits.strategies import FixedWindowRateLimiter

from bench.timing import best_of
from zae_limiter import Limit, RateLimiter, SyncRateLimiter

LIMITS = [Limit.per_minute("rpm", 1_000_000), Limit.per_minute("tpm", 1_000_000_000)]
COST = {"rpm": 1, "tpm": 500}


def ours(url: str = "memory://") -> Callable[[int], None]:
    """A two-limit lease: acquire and exit."""
    limiter = SyncRateLimiter(url)
    limiter.set_system_defaults(LIMITS)

    def work(calls: int) -> None:
        for _ in range(calls):
            with limiter.acquire("key", "gpt-4", COST):
                pass

    return work


def ours_async() -> Callable[[int], None]:
    """The same in an event loop; starting the loop is paid once per round."""
    limiter = RateLimiter("memory://")
    runner = asyncio.Runner()
    runner.run(limiter.set_system_defaults(LIMITS))

    async def leases(calls: int) -> None:
        for _ in range(calls):
            async with limiter.acquire("key", "gpt-4", COST):
                pass

    return lambda calls: runner.run(leases(calls))


def rival(storage: Any) -> Callable[[int], None]:
    """Two hits with `limits`, its cheapest strategy."""
    strategy = FixedWindowRateLimiter(storage)
    rpm, tpm = parse("1000000/minute"), parse("1000000000/minute")

    def work(calls: int) -> None:
        for _ in range(calls):
            strategy.hit(rpm, "key", "gpt-4")
            strategy.hit(tpm, "key", "gpt-4", cost=500)

    return work


def measure() -> dict[str, float]:
    """Microseconds of CPU per piece of work."""
    return best_of({"zae-limiter": ours(), "zae-limiter async": ours_async(), "limits": rival(MemoryStorage())})
