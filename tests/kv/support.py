"""What the tests of the key-value limiter share: both modes, and repositories that count and fail."""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.support import modes
from zae_limiter import Clock
from zae_limiter.kv import (
    ClientIdentity,
    DictRepository,
    EnforceRateLimit,
    RateLimitPolicy,
    RateLimitRepository,
    RateLimitResult,
    SyncEnforceRateLimit,
    TokenBucket,
)

CLIENT = "203.0.113.7"
KEY = ClientIdentity.from_ip(CLIENT).kv_key

Check = Callable[[ClientIdentity | str | None], RateLimitResult]


class Mode(modes.Mode):
    """A mode in which the use case is checked."""

    def check(
        self, repository: RateLimitRepository, policy: RateLimitPolicy | None = None, clock: Clock | None = None
    ) -> Check:
        """The ``check`` of the use case, as blocking code."""
        if self.blocking:
            return SyncEnforceRateLimit(repository, policy, clock).check
        work = EnforceRateLimit(repository, policy, clock)
        return lambda client: self.run(work.check(client))


class Watched:
    """A dictionary that counts its calls, and fails where it is told to."""

    def __init__(self, clock: Clock, failing: dict[str, BaseException] | None = None) -> None:
        self.inner = DictRepository(clock=clock)
        self.calls: list[str] = []
        self.failing = failing or {}

    async def get(self, key: str) -> TokenBucket | None:
        self._called("get")
        return await self.inner.get(key)

    async def save(self, key: str, bucket: TokenBucket) -> None:
        self._called("save")
        await self.inner.save(key, bucket)

    def _called(self, verb: str) -> None:
        self.calls.append(verb)
        if verb in self.failing:
            raise self.failing[verb]


def somebody() -> str:
    """An address that no other test uses on a server that several share."""
    return ".".join(str(random.SystemRandom().randint(1, 254)) for _ in range(4))
