"""zae-limiter: stored limits, one acquire for all of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from bench.rivals.port import Cost, Path, Quota, Rival
from zae_limiter import BackendStats, Limit, RateLimiter, RateLimitExceeded, SyncRateLimiter

RESOURCE = "gpt-4"


def limits_of(quotas: Sequence[Quota]) -> list[Limit]:
    """The quotas in our words."""
    return [Limit.custom(each.name, each.amount, each.amount, each.period_s) for each in quotas]


class Blocking:
    """In threads. Whoever opens a store first sets its limits. ``prefetch`` is that of the limiter."""

    def __init__(self, url: str, quotas: Sequence[Quota], prefetch: float = 0) -> None:
        self._limiter = SyncRateLimiter(url, prefetch=prefetch)
        limits = limits_of(quotas)
        if self._limiter.get_system_defaults()[0] != limits:
            self._limiter.set_system_defaults(limits)

    def take(self, key: str, cost: Cost) -> bool:
        """A lease: acquire and exit."""
        try:
            with self._limiter.acquire(key, RESOURCE, cost):
                return True
        except RateLimitExceeded:
            return False

    def enter(self, path: Path) -> None:
        """Create the entities, each under the next one."""
        for entity, parent in zip(reversed(path), (None, *reversed(path)), strict=False):
            if self._limiter.get_entity(entity) is None:
                self._limiter.create_entity(entity, parent_id=parent, cascade=parent is not None)

    def call(self, path: Path, estimate: Cost, work: Callable[[], Cost]) -> bool:
        """A lease of the key, which its project and organisation are charged with."""
        try:
            with self._limiter.acquire(path[0], RESOURCE, estimate) as lease:
                lease.settle(work())
                return True
        except RateLimitExceeded:
            return False

    def rest(self) -> None:
        """Give back what was drawn in advance, so that nothing is written while nobody asks."""
        self._limiter.flush()

    def stats(self) -> BackendStats:
        """Return what was asked of the store so far."""
        return self._limiter.repository.get_backend_stats()

    def close(self) -> None:
        """Free what is held."""
        self._limiter.close()


class Async:
    """In an event loop."""

    def __init__(self, limiter: RateLimiter) -> None:
        self._limiter = limiter

    @classmethod
    async def opened(cls, url: str, quotas: Sequence[Quota], prefetch: float = 0) -> Async:
        """The first to open a store sets its limits. ``prefetch`` is that of the limiter."""
        limiter, limits = RateLimiter(url, prefetch=prefetch), limits_of(quotas)
        if (await limiter.get_system_defaults())[0] != limits:
            await limiter.set_system_defaults(limits)
        return cls(limiter)

    async def take(self, key: str, cost: Cost) -> bool:
        """A lease: acquire and exit."""
        try:
            async with self._limiter.acquire(key, RESOURCE, cost):
                return True
        except RateLimitExceeded:
            return False

    async def enter(self, path: Path) -> None:
        """Create the entities, each under the next one."""
        for entity, parent in zip(reversed(path), (None, *reversed(path)), strict=False):
            if await self._limiter.get_entity(entity) is None:
                await self._limiter.create_entity(entity, parent_id=parent, cascade=parent is not None)

    async def call(self, path: Path, estimate: Cost, work: Callable[[], Awaitable[Cost]]) -> bool:
        """A lease of the key, which its project and organisation are charged with."""
        try:
            async with self._limiter.acquire(path[0], RESOURCE, estimate) as lease:
                await lease.settle(await work())
                return True
        except RateLimitExceeded:
            return False

    async def rest(self) -> None:
        """Give back what was drawn in advance, so that nothing is written while nobody asks."""
        await self._limiter.flush()

    def stats(self) -> BackendStats:
        """Return what was asked of the store so far."""
        return self._limiter.repository.get_backend_stats()

    async def close(self) -> None:
        """Free what is held."""
        await self._limiter.close()


OURS = Rival(
    name="zae-limiter",
    package="zae-limiter",
    algorithm="token bucket",
    several="one acquire, all or nothing",
    open=Blocking,
    open_async=Async.opened,
    stores=("memory", "sqlite", "redis"),
)
