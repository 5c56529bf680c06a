"""Acquires whose body does nothing: what most tests need of one."""

from __future__ import annotations

from typing import Any

from zae_limiter import Lease, RateLimiter, RateLimitExceeded


async def take(
    limiter: RateLimiter, cost: dict[str, int], entity: str = "key", resource: str = "gpt-4", **options: Any
) -> Lease:
    """Acquire, and return the lease when it is over."""
    async with limiter.acquire(entity, resource, cost, **options) as lease:
        return lease


async def granted(limiter: RateLimiter, cost: dict[str, int], entity: str = "key", **options: Any) -> bool:
    """Acquire, and return whether it was granted."""
    try:
        await take(limiter, cost, entity, **options)
    except RateLimitExceeded:
        return False
    return True
