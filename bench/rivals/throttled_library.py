"""throttled-py: its token bucket."""

from __future__ import annotations

from collections.abc import Sequence

import throttled
import throttled.asyncio

from bench.rivals.port import UNITS, Cost, Quota, Rival

ROOM = {"MAX_SIZE": 1_000_000}
"""Its memory store forgets the oldest of 1,024 keys unless told otherwise."""


def quota_of(quota: Quota) -> str:
    """A quota in its words."""
    return f"{quota.amount}/{UNITS[quota.period_s][0]} burst {quota.amount}"


class Blocking:
    """In threads."""

    def __init__(self, url: str, quotas: Sequence[Quota]) -> None:
        kinds = throttled.store
        store = kinds.MemoryStore(options=ROOM) if url == "memory://" else kinds.RedisStore(server=url)
        using = throttled.RateLimiterType.TOKEN_BUCKET.value
        self._limits = {
            each.name: throttled.Throttled(using=using, quota=quota_of(each), store=store, key_prefix=each.name).limit
            for each in quotas
        }

    def take(self, key: str, cost: Cost) -> bool:
        """A call per limit; those before a refusal stay taken."""
        for name, amount in cost.items():  # noqa: SIM110 - a generator would cost the rival time
            if self._limits[name](key, amount).limited:
                return False
        return True

    def close(self) -> None:
        """There is nothing to free."""


class Async:
    """In an event loop."""

    def __init__(self, url: str, quotas: Sequence[Quota]) -> None:
        kinds = throttled.asyncio.store
        store = kinds.MemoryStore(options=ROOM) if url == "memory://" else kinds.RedisStore(server=url)
        using = throttled.asyncio.RateLimiterType.TOKEN_BUCKET.value
        kind = throttled.asyncio.Throttled
        self._limits = {
            each.name: kind(using=using, quota=quota_of(each), store=store, key_prefix=each.name).limit
            for each in quotas
        }

    async def take(self, key: str, cost: Cost) -> bool:
        """A call per limit; those before a refusal stay taken."""
        for name, amount in cost.items():
            if (await self._limits[name](key, amount)).limited:
                return False
        return True

    async def close(self) -> None:
        """There is nothing to free."""


async def _opened(url: str, quotas: Sequence[Quota]) -> Async:
    return Async(url, quotas)


THROTTLED = Rival(
    name="throttled-py",
    package="throttled-py",
    algorithm="token bucket",
    several="a call per limit",
    open=Blocking,
    open_async=_opened,
)
