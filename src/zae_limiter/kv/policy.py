"""The policy of a client: so many requests a minute, and so many at once."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.bucket import Rule, first_instant
from ..core.errors import ValidationError
from ..core.limit import MAX_AMOUNT, Limit, whole

MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True)
class RateLimitPolicy:
    """``requests_per_minute`` in the long run, up to ``bucket_capacity`` at once.

    >>> RateLimitPolicy.standard_ip_policy()
    RateLimitPolicy(requests_per_minute=10, bucket_capacity=10)
    """

    requests_per_minute: int
    bucket_capacity: int

    def __post_init__(self) -> None:
        for field, unit in (("requests_per_minute", "requests"), ("bucket_capacity", "tokens")):
            object.__setattr__(self, field, whole(field, getattr(self, field), 1, MAX_AMOUNT, unit))
        if self.bucket_capacity < self.requests_per_minute:
            reason = f"must be at least requests_per_minute ({self.requests_per_minute}); leave it out to have the same"
            raise ValidationError("bucket_capacity", self.bucket_capacity, reason)

    @classmethod
    def create(cls, requests_per_minute: int, bucket_capacity: int | None = None) -> RateLimitPolicy:
        """Return a policy; without ``bucket_capacity`` it allows the requests of one minute at once."""
        return cls(requests_per_minute, requests_per_minute if bucket_capacity is None else bucket_capacity)

    @classmethod
    def standard_ip_policy(cls) -> RateLimitPolicy:
        """Return the policy of clients that are known by their address only: 10 requests a minute, 10 at once."""
        return cls(10, 10)

    @property
    def refill_interval_ms(self) -> float:
        """Milliseconds per token, for display; the arithmetic is `rule`'s, in integers."""
        return MINUTE_MS / self.requests_per_minute

    @property
    def rule(self) -> Rule:
        """The rate in whole tokens and milliseconds."""
        return Rule(self.bucket_capacity, self.requests_per_minute, MINUTE_MS)

    def calculate_refill_time(self, tokens: int) -> int:
        """Return the milliseconds in which ``tokens`` are made, rounded up."""
        return first_instant(self.rule, 0, 0, whole("tokens", tokens, 0, MAX_AMOUNT, "tokens"))

    def to_limit(self, name: str = "rpm") -> Limit:
        """Return the same as a `Limit` of the exact limiter."""
        return Limit.per_minute(name, self.requests_per_minute, self.bucket_capacity)
