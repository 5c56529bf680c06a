"""The token bucket of the key-value limiter: whole tokens, and the instant at which the last one was made.

Tokens are made at the instants at which ``produced`` of `core.bucket` grows, so what is added between two looks is a
difference that telescopes, and ``last_refill_ms`` is moved only onto such an instant: no fraction is ever dropped,
however often the bucket is looked at.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..core.bucket import between, first_instant
from ..core.limit import MAX_AMOUNT, whole

if TYPE_CHECKING:
    from .policy import RateLimitPolicy

LAST_INSTANT_MS = 8_640_000_000_000_000
"""The last instant that a JavaScript ``Date`` can hold."""


@dataclass(frozen=True, slots=True)
class TokenBucket:
    """``0 <= tokens <= capacity``, as of ``last_refill_ms``."""

    tokens: int
    last_refill_ms: int
    capacity: int

    def __post_init__(self) -> None:
        capacity = whole("capacity", self.capacity, 1, MAX_AMOUNT, "tokens")
        tokens = whole("tokens", self.tokens, 0, capacity, "tokens")
        last_refill_ms = whole("last_refill_ms", self.last_refill_ms, 0, LAST_INSTANT_MS, "milliseconds")
        for field, number in (("capacity", capacity), ("tokens", tokens), ("last_refill_ms", last_refill_ms)):
            object.__setattr__(self, field, number)

    @classmethod
    def create(cls, capacity: int, now_ms: int) -> TokenBucket:
        """A full bucket."""
        return cls(capacity, now_ms, capacity)

    def refill(self, policy: RateLimitPolicy, now_ms: int) -> TokenBucket:
        """The bucket at ``now_ms`` under ``policy``, whose capacity counts.

        A clock that is behind the one that wrote the bucket neither drains it nor makes tokens.
        """
        rule = policy.rule
        made = between(rule, self.last_refill_ms, max(now_ms, self.last_refill_ms))
        last_ms = first_instant(rule, 0, self.last_refill_ms, made) if made else self.last_refill_ms
        return TokenBucket(min(rule.capacity, self.tokens + made), last_ms, rule.capacity)

    def consume(self) -> TokenBucket | None:
        """The bucket without one token, or None if it has none."""
        return replace(self, tokens=self.tokens - 1) if self.tokens else None

    def ready_ms(self, policy: RateLimitPolicy, now_ms: int) -> int:
        """Milliseconds from ``now_ms`` until there is a token, exact: one earlier there is none."""
        return self._until(policy, 1, now_ms)

    def full_ms(self, policy: RateLimitPolicy, now_ms: int) -> int:
        """Milliseconds from ``now_ms`` until the bucket is full."""
        return self._until(policy, policy.bucket_capacity, now_ms)

    def _until(self, policy: RateLimitPolicy, tokens: int, now_ms: int) -> int:
        if self.tokens >= tokens:
            return 0
        return max(0, first_instant(policy.rule, self.tokens, self.last_refill_ms, tokens) - now_ms)
