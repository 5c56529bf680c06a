"""Room for a check of the limiter: namespaces of its own, so that all checks can share one store."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from zae_limiter.testing.conformance.room import at_once as at_once, read as read

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from zae_limiter import RateLimiter
    from zae_limiter.testing import Harness


async def new_limiter(harness: Harness, **options: Any) -> RateLimiter:
    """Return a limiter in a namespace of its own."""
    name = f"c{secrets.token_hex(8)}"
    repository = harness.repository(namespace=name)
    await repository.register_namespace(name)
    return harness.limiter(repository, **options)


def beside(harness: Harness, limiter: RateLimiter, **options: Any) -> RateLimiter:
    """Return a limiter as another process has it: the same data, and nothing else in common."""
    return harness.limiter(harness.repository(namespace=limiter.repository.namespace), **options)


async def new_limiters(harness: Harness, count: int, **options: Any) -> list[RateLimiter]:
    """Return several limiters in one namespace of their own, each as another process has it."""
    first = await new_limiter(harness, **options)
    return [first, *(beside(harness, first, **options) for _ in range(count - 1))]


async def take(limiter: RateLimiter, entity_id: str, resource: str, costs: Sequence[dict[str, int]]) -> None:
    """Acquire several times in a row, without any adjustment."""
    for cost in costs:
        async with limiter.acquire(entity_id, resource, cost):
            pass
