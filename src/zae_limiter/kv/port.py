"""The port to a key-value store: a bucket is read, a bucket is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from .bucket import TokenBucket

TTL_SECONDS = 300


class RateLimitRepository(Protocol):
    """Buckets by key. Nothing is expected to be atomic, and whatever fails is raised.

    A repository that forgets may have ``ttl_seconds``: a policy whose buckets take longer to fill is then refused. One
    that can serve only async code has ``blocking = False``. One that holds connections has ``async def close()``.
    """

    async def get(self, key: str) -> TokenBucket | None:
        """Return the bucket under ``key``, None if there is none. Raises `CorruptStateError` if it is not one."""
        ...

    async def save(self, key: str, bucket: TokenBucket) -> None:
        """Store a bucket under ``key`` for ``ttl_seconds``."""
        ...
