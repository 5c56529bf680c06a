"""limits: windows only. The fixed one is cheapest; the sliding window counter gives back gradually, as buckets do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from limits import RateLimitItem, aio, parse, storage, strategies

from bench.rivals.port import UNITS, Cost, Quota, Rival


def items_of(quotas: Sequence[Quota]) -> dict[str, RateLimitItem]:
    """The quotas in its words."""
    return {each.name: parse(f"{each.amount}/{UNITS[each.period_s]}") for each in quotas}


FIXED_WINDOW = "FixedWindowRateLimiter"


def hit_of(strategy: str, url: str) -> Callable[..., bool]:
    """Its method for threads, on a store."""
    opened = storage.MemoryStorage() if url == "memory://" else storage.RedisStorage(url)
    hit: Callable[..., bool] = getattr(strategies, strategy)(opened).hit
    return hit


def async_hit_of(strategy: str, url: str) -> Callable[..., Awaitable[bool]]:
    """Its method for event loops, on a store."""
    kinds = aio.storage
    opened = kinds.MemoryStorage() if url == "memory://" else kinds.RedisStorage(url, implementation="redispy")
    hit: Callable[..., Awaitable[bool]] = getattr(aio.strategies, strategy)(opened).hit
    return hit


class Blocking:
    """In threads."""

    def __init__(self, strategy: str, url: str, quotas: Sequence[Quota]) -> None:
        self._hit = hit_of(strategy, url)
        self._items = items_of(quotas)
        self._strategy = strategy

    def take(self, key: str, cost: Cost) -> bool:
        """A hit per limit; those before a refusal stay taken."""
        for name, amount in cost.items():
            if not self._hit(self._items[name], self._strategy, name, key, cost=amount):
                return False
        return True

    def close(self) -> None:
        """There is nothing to free."""


class Async:
    """In an event loop."""

    def __init__(self, strategy: str, url: str, quotas: Sequence[Quota]) -> None:
        self._hit = async_hit_of(strategy, url)
        self._items = items_of(quotas)
        self._strategy = strategy

    async def take(self, key: str, cost: Cost) -> bool:
        """A hit per limit; those before a refusal stay taken."""
        for name, amount in cost.items():
            if not await self._hit(self._items[name], self._strategy, name, key, cost=amount):
                return False
        return True

    async def close(self) -> None:
        """There is nothing to free."""


async def _opened(strategy: str, url: str, quotas: Sequence[Quota]) -> Async:
    return Async(strategy, url, quotas)


def _with(algorithm: str, strategy: str) -> Rival:
    return Rival(
        name=f"limits, {algorithm}",
        package="limits",
        algorithm=algorithm,
        several="a hit per limit",
        open=partial(Blocking, strategy),
        open_async=partial(_opened, strategy),
    )


FIXED = _with("fixed window", FIXED_WINDOW)
SLIDING = _with("sliding window counter", "SlidingWindowCounterRateLimiter")
