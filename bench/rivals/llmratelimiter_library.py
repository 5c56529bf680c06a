"""LLMRateLimiter: a queue per model in Redis, for event loops only; a level is a model."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from llmratelimiter import RateLimiter
from redis.asyncio import Redis

from bench.rivals.port import Cost, Path, Quota, Rival


class Blocking:
    """It has none: nothing can be asked of this one."""

    def __init__(self, url: str, quotas: Sequence[Quota]) -> None:
        """There is nothing to open."""

    def take(self, key: str, cost: Cost) -> bool:
        """Raise: it needs an event loop."""
        raise NotImplementedError("LLMRateLimiter is for event loops only")

    def close(self) -> None:
        """There is nothing to free."""


class Async:
    """In an event loop. What it has no room for it keeps waiting, and there is no way to ask without."""

    def __init__(self, url: str, quotas: Sequence[Quota]) -> None:
        self._client: Any = Redis.from_url(url)
        amounts = {each.name: each.amount for each in quotas}
        self._limits = {"rpm": amounts.get("rpm", amounts.get("rps", 0)), "tpm": amounts.get("tpm", 0)}
        (self._window,) = {each.period_s for each in quotas}
        self._limiters: dict[str, RateLimiter] = {}

    def _of(self, key: str) -> RateLimiter:
        limiter = self._limiters.get(key)
        if limiter is None:
            limiter = self._limiters[key] = RateLimiter(
                redis=self._client, model=key, window_seconds=self._window, smooth_requests=False, **self._limits
            )
        return limiter

    async def take(self, key: str, cost: Cost) -> bool:
        """Wait until there is room."""
        await self._of(key).acquire(input_tokens=0, output_tokens=cost.get("tpm", 0))
        return True

    async def enter(self, path: Path) -> None:
        """It has no hierarchy."""

    async def call(self, path: Path, estimate: Cost, work: Callable[[], Awaitable[Cost]]) -> bool:
        """Acquire for each level, then adjust each; a request that has failed stays counted."""
        tokens, taken = estimate["tpm"], []
        used = 0
        try:
            for key in path:
                limiter = self._of(key)
                taken.append((limiter, (await limiter.acquire(input_tokens=0, output_tokens=tokens)).record_id))
            used = (await work())["tpm"]
        finally:
            for limiter, record in taken:
                await limiter.adjust(record, actual_output=used)
        return True

    async def left(self, key: str) -> int:
        """The tokens that are left, as it cannot be asked for them without waiting."""
        status = await self._of(key).get_status()
        return int(status.tokens_limit - status.tokens_used)

    async def close(self) -> None:
        """Free what is held."""
        await self._client.aclose()


async def _opened(url: str, quotas: Sequence[Quota]) -> Async:
    return Async(url, quotas)


LLM_RATE_LIMITER = Rival(
    name="LLMRateLimiter",
    package="LLMRateLimiter",
    algorithm="sliding window with a queue",
    several="one acquire for all limits of a model, one after the other for levels",
    open=Blocking,
    open_async=_opened,
    stores=("redis",),
    modes=("async",),
    waits=True,
)
