"""token-throttle: reserves several metrics of one model at once, and refunds; a level is a model."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import token_throttle as library
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from bench.rivals.port import Cost, Path, Quota, Rival

PREFIX = "bench"


def config_of(quotas: Sequence[Quota]) -> Any:
    """The quotas in its words, the same for every model."""
    listed = [library.Quota(metric=each.name, limit=each.amount, per_seconds=each.period_s) for each in quotas]
    return library.PerModelConfig(quotas=library.UsageQuotas(listed))


class Blocking:
    """In threads."""

    def __init__(self, url: str, quotas: Sequence[Quota]) -> None:
        self._client: Any = None
        if url == "memory://":
            backend = library.SyncMemoryBackendBuilder()
        elif url.startswith("sqlite:///"):
            backend = library.SyncSqliteBackendBuilder(url.removeprefix("sqlite:///"), key_prefix=PREFIX)
        else:
            self._client = Redis.from_url(url)
            backend = library.SyncRedisBackendBuilder(self._client, key_prefix=PREFIX)
        self._limiter = library.SyncRateLimiter(config_of(quotas), backend=backend)
        self._nothing = dict.fromkeys([each.name for each in quotas], 0)

    def take(self, key: str, cost: Cost) -> bool:
        """A reservation that is used to the last token."""
        cost = self._nothing | cost
        return self.call((key,), cost, lambda: cost)

    def enter(self, path: Path) -> None:
        """It has no hierarchy."""

    def call(self, path: Path, estimate: Cost, work: Callable[[], Cost]) -> bool:
        """A reservation for each level, one inside the other."""
        try:
            self._call(path, estimate, work)
        except TimeoutError:
            return False
        return True

    def _call(self, path: Path, estimate: Cost, work: Callable[[], Cost]) -> Cost:
        with self._limiter.reserve(estimate, path[0], timeout=0, usage_on_error=self._nothing) as reserved:
            used = self._call(path[1:], estimate, work) if path[1:] else work()
            reserved.set_actual_usage(used)
        return used

    def close(self) -> None:
        """Free what is held."""
        self._limiter.close()
        if self._client is not None:
            self._client.close()


class Async:
    """In an event loop."""

    def __init__(self, url: str, quotas: Sequence[Quota]) -> None:
        self._client: Any = None
        if url == "memory://":
            backend = library.MemoryBackendBuilder()
        elif url.startswith("sqlite:///"):
            backend = library.SqliteBackendBuilder(url.removeprefix("sqlite:///"), key_prefix=PREFIX)
        else:
            self._client = AsyncRedis.from_url(url)
            backend = library.RedisBackendBuilder(self._client, key_prefix=PREFIX)
        self._limiter = library.RateLimiter(config_of(quotas), backend=backend)
        self._nothing = dict.fromkeys([each.name for each in quotas], 0)

    async def take(self, key: str, cost: Cost) -> bool:
        """A reservation that is used to the last token."""
        cost = self._nothing | cost

        async def work() -> Cost:
            return cost

        return await self.call((key,), cost, work)

    async def enter(self, path: Path) -> None:
        """It has no hierarchy."""

    async def call(self, path: Path, estimate: Cost, work: Callable[[], Awaitable[Cost]]) -> bool:
        """A reservation for each level, one inside the other."""
        try:
            await self._call(path, estimate, work)
        except TimeoutError:
            return False
        return True

    async def _call(self, path: Path, estimate: Cost, work: Callable[[], Awaitable[Cost]]) -> Cost:
        async with self._limiter.reserve(estimate, path[0], timeout=0, usage_on_error=self._nothing) as reserved:
            used = await (self._call(path[1:], estimate, work) if path[1:] else work())
            reserved.set_actual_usage(used)
        return used

    async def close(self) -> None:
        """Free what is held."""
        await self._limiter.aclose()
        if self._client is not None:
            await self._client.aclose()


async def _opened(url: str, quotas: Sequence[Quota]) -> Async:
    return Async(url, quotas)


TOKEN_THROTTLE = Rival(
    name="token-throttle",
    package="token-throttle",
    algorithm="token bucket",
    several="one reservation for all metrics of a model, one after the other for levels",
    open=Blocking,
    open_async=_opened,
    stores=("memory", "sqlite", "redis"),
)
