"""The token bucket of the key-value limiter: whole tokens, and the instant at which the last one was made.

Refill is counted from ``last_refill_ms``, so a bucket that was full at one instant has its next token a whole interval
later: in any window of ``w`` no more than ``capacity + rate * w`` tokens can be taken. An interval is seldom a whole
number of milliseconds; ``carry`` keeps the part of a token that the rest of the last millisecond has made. So no
fraction is ever dropped, however often the bucket is looked at.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..core.errors import ValidationError
from ..core.limit import MAX_AMOUNT, Limit, whole
from ..core.production import Rule

MINUTE_MS = 60_000
LAST_INSTANT_MS = 8_640_000_000_000_000
"""The last instant that a JavaScript ``Date`` can hold."""


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
        return self.rule.reaches(whole("tokens", tokens, 0, MAX_AMOUNT, "tokens"))

    def to_limit(self, name: str = "rpm") -> Limit:
        """Return the same as a `Limit` of the exact limiter."""
        return Limit.per_minute(name, self.requests_per_minute, self.bucket_capacity)


@dataclass(frozen=True, slots=True)
class TokenBucket:
    """A bucket as of one instant.

    ``tokens``: from 0 to ``capacity``. ``last_refill_ms``: the instant. ``capacity``: what it holds at most. ``carry``:
    the part of the next token that was made by then, in 60,000ths. A reader that ignores it gives that token less than
    a millisecond later, never earlier.
    """

    tokens: int
    last_refill_ms: int
    capacity: int
    carry: int = 0

    def __post_init__(self) -> None:
        capacity = whole("capacity", self.capacity, 1, MAX_AMOUNT, "tokens")
        for field, least, most, unit in (
            ("capacity", 1, MAX_AMOUNT, "tokens"),
            ("tokens", 0, capacity, "tokens"),
            ("last_refill_ms", 0, LAST_INSTANT_MS, "milliseconds"),
            ("carry", 0, MINUTE_MS - 1, "60,000ths of a token"),
        ):
            object.__setattr__(self, field, whole(field, getattr(self, field), least, most, unit))

    @classmethod
    def create(cls, capacity: int, now_ms: int) -> TokenBucket:
        """Return a full bucket of ``capacity`` tokens as of ``now_ms``."""
        return cls(capacity, now_ms, capacity)

    def refill(self, policy: RateLimitPolicy, now_ms: int) -> TokenBucket:
        """Return the bucket at ``now_ms`` under ``policy``, whose capacity counts.

        A full bucket makes nothing, so its next token is counted from ``now_ms``. A clock that is behind the one that
        wrote the bucket neither drains it nor makes tokens.
        """
        now_ms = max(now_ms, self.last_refill_ms)
        rule = self._rule(policy)
        made = rule.produced(now_ms - self.last_refill_ms)
        if self.tokens + made >= rule.capacity:
            return TokenBucket.create(rule.capacity, now_ms)
        if not made:
            return replace(self, capacity=rule.capacity)
        passed_ms = rule.reaches(made)
        carry = passed_ms * rule.amount + self.carry - made * rule.period
        return TokenBucket(self.tokens + made, self.last_refill_ms + passed_ms, rule.capacity, carry)

    def consume(self) -> TokenBucket | None:
        """Return the bucket without one token, None if it has none."""
        return replace(self, tokens=self.tokens - 1) if self.tokens else None

    def ready_ms(self, policy: RateLimitPolicy, now_ms: int) -> int:
        """Return the milliseconds from ``now_ms`` until there is a token, exact: one earlier there is none."""
        return self._until(policy, 1, now_ms)

    def full_ms(self, policy: RateLimitPolicy, now_ms: int) -> int:
        """Return the milliseconds from ``now_ms`` until the bucket is full."""
        return self._until(policy, policy.bucket_capacity, now_ms)

    def _until(self, policy: RateLimitPolicy, tokens: int, now_ms: int) -> int:
        if self.tokens >= tokens:
            return 0
        return max(0, self.last_refill_ms + self._rule(policy).fits_at(self.tokens, 0, tokens) - now_ms)

    def _rule(self, policy: RateLimitPolicy) -> Rule:
        """Return the rule for instants that are counted from ``last_refill_ms``."""
        return policy.rule._replace(phase=self.carry)
