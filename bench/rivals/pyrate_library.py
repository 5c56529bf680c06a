"""PyrateLimiter: its token bucket, with the factory that its documentation has for a bucket per key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pyrate_limiter import (
    BucketAsyncWrapper,
    BucketFactory,
    Limiter,
    MonotonicClock,
    Rate,
    RateItem,
    RedisStateStore,
    StateBucket,
    TokenBucket,
    WallClock,
)
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from bench.rivals.port import Cost, Quota, Rival


class PerKey(BucketFactory):  # type: ignore[misc]  # the rival is not installed where types are checked
    """Makes the bucket of a key when it is first asked for."""

    def __init__(self, clock: Any, made: Callable[[str], Any]) -> None:
        self._clock = clock
        self._made = made
        self._buckets: dict[str, Any] = {}

    def wrap_item(self, name: str, weight: int = 1) -> RateItem:
        """The moment of a request."""
        return RateItem(name, self._clock.now(), weight=weight)

    def get(self, item: RateItem) -> Any:
        """The bucket of a key."""
        bucket = self._buckets.get(item.name)
        if bucket is None:
            bucket = self._buckets[item.name] = self._made(item.name)
        return bucket


def limiter_of(quota: Quota, client: Any, wrap: Callable[[Any], Any]) -> Limiter:
    """A limiter for one quota, in memory if there is no client."""
    rates = [Rate(quota.amount, quota.period_s * 1000)]

    def made(key: str) -> Any:
        store = None if client is None else RedisStateStore(client, f"{quota.name}:{key}")
        return wrap(StateBucket(rates, algorithm=TokenBucket(), store=store))

    return Limiter(PerKey(MonotonicClock() if client is None else WallClock(), made))


class Blocking:
    """In threads."""

    def __init__(self, url: str, quotas: Sequence[Quota]) -> None:
        self._client = None if url == "memory://" else Redis.from_url(url)
        self._limiters = {each.name: limiter_of(each, self._client, lambda bucket: bucket) for each in quotas}

    def take(self, key: str, cost: Cost) -> bool:
        """A call per limit; those before a refusal stay taken."""
        for name, amount in cost.items():  # noqa: SIM110 - a generator would cost the rival time
            if not self._limiters[name].try_acquire(key, amount, blocking=False):
                return False
        return True

    def close(self) -> None:
        """Free what is held."""
        for each in self._limiters.values():
            each.close()
        if self._client is not None:
            self._client.close()


class Async:
    """In an event loop; a bucket in memory is wrapped as documented."""

    def __init__(self, url: str, quotas: Sequence[Quota]) -> None:
        self._client = None if url == "memory://" else AsyncRedis.from_url(url)
        wrap = BucketAsyncWrapper if self._client is None else lambda bucket: bucket
        self._limiters = {each.name: limiter_of(each, self._client, wrap) for each in quotas}

    async def take(self, key: str, cost: Cost) -> bool:
        """A call per limit; those before a refusal stay taken."""
        for name, amount in cost.items():
            if not await self._limiters[name].try_acquire_async(key, amount, blocking=False):
                return False
        return True

    async def close(self) -> None:
        """Free what is held."""
        for each in self._limiters.values():
            each.close()
        if self._client is not None:
            await self._client.aclose()


async def _opened(url: str, quotas: Sequence[Quota]) -> Async:
    return Async(url, quotas)


PYRATE = Rival(
    name="PyrateLimiter",
    package="pyrate-limiter",
    algorithm="token bucket",
    several="a call per limit",
    open=Blocking,
    open_async=_opened,
)
