"""Buckets in Redis or Valkey: ``GET`` and ``SET ... EX``, over a client that you already have."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from ..core.errors import ValidationError
from ..core.limit import MAX_PERIOD_SECONDS, whole
from .port import TTL_SECONDS
from .state import decode, encode

if TYPE_CHECKING:
    from .bucket import TokenBucket


class RedisRepository:
    """Buckets over a ``client`` of redis-py, asyncio or blocking, which stays yours to configure and to close.

    ``ttl_seconds``: after how many seconds without a write a bucket expires.
    """

    def __init__(self, client: Any, ttl_seconds: int = TTL_SECONDS) -> None:
        if not callable(getattr(client, "execute_command", None)):
            raise ValidationError("client", type(client).__name__, "must be a client such as redis.Redis.from_url(...)")
        self.ttl_seconds: int = whole("ttl_seconds", ttl_seconds, 1, MAX_PERIOD_SECONDS, "seconds")
        self.blocking: bool = not inspect.iscoroutinefunction(client.execute_command)
        self._client = client

    async def get(self, key: str) -> TokenBucket | None:
        """Return the bucket under ``key``, None if there is none. Raises `CorruptStateError` if it is not one."""
        state = self._client.get(key)
        if inspect.isawaitable(state):
            state = await state
        return None if state is None else decode(state)

    async def save(self, key: str, bucket: TokenBucket) -> None:
        """Store a bucket under ``key``; value and expiry are one command."""
        done = self._client.set(key, encode(bucket), ex=self.ttl_seconds)
        if inspect.isawaitable(done):
            await done
