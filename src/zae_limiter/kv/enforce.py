"""The use case: may this client make a request now?

One read, and one write if it may. A refusal changes nothing, so nothing is written: a client that is refused cannot
use up the writes of a store that takes one a second per key. Whatever fails lets the request through with a warning.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Self

from ..clock import Clock, SystemClock
from ..core import addresses
from ..core.errors import RateLimiterClosedError, ValidationError
from ..logs import KV_REFUSED, KV_RESET, KV_UNAVAILABLE, log_event
from ..runtime.blocking import run
from .bucket import RateLimitPolicy, TokenBucket
from .repositories import RateLimitRepository
from .state import CorruptStateError

UNKNOWN = "unknown"
"""The address of all clients whose address cannot be read: they share a bucket and are never exempt."""
_LARGEST_SKEW_MS = 86_400_000
"""Clocks of workers differ; an instant more than a day ahead of ours is a corrupt one."""


@dataclass(frozen=True, slots=True)
class ClientIdentity:
    """A client by its normalised address; the key shows a hash of it only."""

    normalized_ip: str
    key_hash: str = field(init=False)

    def __post_init__(self) -> None:
        digest = hashlib.sha256(self.normalized_ip.encode()).hexdigest()
        object.__setattr__(self, "key_hash", digest[:16])

    @classmethod
    def from_ip(cls, raw: str | None, ipv6_prefix: int = 64) -> ClientIdentity:
        """Return the client at an address as a server or a header writes it.

        Port, brackets and zone are dropped, IPv4 inside IPv6 is IPv4, and IPv6 is cut to the network of ``ipv6_prefix``
        bits that one client has at its disposal.
        """
        address = addresses.parse(raw) if isinstance(raw, str) else None
        return cls(UNKNOWN if address is None else addresses.network(address, ipv6_prefix))

    @property
    def kv_key(self) -> str:
        """The key of the client's bucket."""
        return f"rate_limit:ip:{self.key_hash}"


@dataclass(frozen=True, slots=True)
class RateLimitResult:
    """The decision about one request, and the bucket as the deciding read saw it.

    ``allowed``: whether the request may pass. ``tokens_remaining``: whole tokens that are left. ``retry_after_ms``:
    when a refused client has a token again, in milliseconds. ``limit``: the capacity, which ``tokens_remaining`` counts
    down from; the body of a 429 says the same. ``reset_time_ms``: the instant at which a refused client has a token
    again, and for one that was allowed the instant at which the bucket is full. ``degraded``: the store failed, so the
    decision does not count.
    """

    allowed: bool
    tokens_remaining: int
    retry_after_ms: int
    limit: int
    reset_time_ms: int
    degraded: bool = False


class EnforceRateLimit:
    """Takes a token of a client's bucket per request.

    ``repository``: where the buckets are. ``policy``: `RateLimitPolicy.standard_ip_policy` unless given. ``clock``: the
    system's unless given.
    """

    def __init__(
        self, repository: RateLimitRepository, policy: RateLimitPolicy | None = None, clock: Clock | None = None
    ) -> None:
        self.repository = repository
        self.policy: RateLimitPolicy = check_policy(policy)
        self.clock: Clock = clock or SystemClock()
        check_expiry(getattr(repository, "ttl_seconds", None), self.policy)
        self._closed = False

    async def check(self, client: ClientIdentity | str | None) -> RateLimitResult:
        """Take a token for a request of ``client``, an identity or an address as a server writes it, if there is one.

        Return whether there was. A store that fails lets the request pass, with a warning.
        """
        self._check_open()
        key = (client if isinstance(client, ClientIdentity) else ClientIdentity.from_ip(client)).kv_key
        policy, limit = self.policy, self.policy.bucket_capacity
        try:
            found = await self.repository.get(key)
            now_ms = self.clock.now_ms()
            if found is not None and found.last_refill_ms > now_ms + _LARGEST_SKEW_MS:
                raise CorruptStateError("lastRefill is more than a day ahead", repr(found))
        except CorruptStateError as error:
            reason, fields = error.reason, {"kv_key": key, "reason": error.reason, "state": error.excerpt}
            log_event(KV_RESET, "bucket %s reset, its state is corrupt: %s", key, reason, **fields)
            found, now_ms = None, self.clock.now_ms()
        except Exception as error:
            warn_unavailable("reading", key, error)
            return RateLimitResult(True, 0, 0, limit, self.clock.now_ms(), degraded=True)
        bucket = TokenBucket.create(limit, now_ms) if found is None else found.refill(policy, now_ms)
        left = bucket.consume()
        if left is None:
            wait_ms = bucket.ready_ms(policy, now_ms)
            message = "rate limit exceeded: next token in %d ms"
            log_event(KV_REFUSED, message, wait_ms, kv_key=key, retry_after_ms=wait_ms)
            return RateLimitResult(False, 0, wait_ms, limit, now_ms + wait_ms)
        degraded = False
        try:
            await self.repository.save(key, left)
        except Exception as error:
            warn_unavailable("writing", key, error)
            degraded = True
        return RateLimitResult(True, left.tokens, 0, limit, now_ms + left.full_ms(policy, now_ms), degraded)

    async def close(self) -> None:
        """Close the connections of the repository, if it has any of its own; closing twice is fine.

        From then on `check` raises `RateLimiterClosedError`: a limiter without a store would let everybody through.
        """
        self._closed = True
        close = getattr(self.repository, "close", None)
        if close is not None:
            await close()

    async def __aenter__(self) -> Self:
        self._check_open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise RateLimiterClosedError


class SyncEnforceRateLimit:
    """`EnforceRateLimit` for blocking code: the same use case, over a repository whose awaits all finish at once."""

    def __init__(
        self, repository: RateLimitRepository, policy: RateLimitPolicy | None = None, clock: Clock | None = None
    ) -> None:
        if not getattr(repository, "blocking", True):
            reason = "serves async code only; pass a blocking client, or use EnforceRateLimit"
            raise ValidationError("repository", type(repository).__name__, reason)
        self._work = EnforceRateLimit(repository, policy, clock)
        self.repository: RateLimitRepository = repository
        self.policy: RateLimitPolicy = self._work.policy
        self.clock: Clock = self._work.clock

    def check(self, client: ClientIdentity | str | None) -> RateLimitResult:
        """Take a token for a request of ``client``, as `EnforceRateLimit.check` does."""
        return run(self._work.check(client))

    def close(self) -> None:
        """Close the connections of the repository, if it has any of its own; closing twice is fine."""
        run(self._work.close())

    def __enter__(self) -> Self:
        self._work._check_open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def check_policy(policy: object) -> RateLimitPolicy:
    """Return a policy, the standard one for None. Raise `ValidationError` for anything else, such as a `Limit`."""
    if policy is None:
        return RateLimitPolicy.standard_ip_policy()
    if getattr(policy, "is_concurrency", False):
        reason = "is a concurrency limit: slots need a store that writes under conditions; use RateLimiter"
        raise ValidationError("policy", policy, reason)
    if not isinstance(policy, RateLimitPolicy):
        raise ValidationError("policy", policy, "must be a RateLimitPolicy, e.g. RateLimitPolicy.create(60)")
    return policy


def check_expiry(ttl_seconds: int | None, policy: RateLimitPolicy) -> None:
    """Refuse an expiry before a bucket is full: it would come back full, and idling be worth more than the rate."""
    needed = -(-policy.calculate_refill_time(policy.bucket_capacity) // 1000)
    if ttl_seconds is not None and ttl_seconds < needed:
        reason = f"is shorter than a bucket takes to fill under {policy}; give the repository at least {needed}"
        raise ValidationError("ttl_seconds", ttl_seconds, reason)


def warn_unavailable(verb: str, key: str, error: Exception) -> None:
    """Log that the store failed and that the request of this client is let through."""
    kind = type(error).__name__
    details = {"kv_key": key, "operation": verb, "error_type": kind}
    log_event(KV_UNAVAILABLE, "%s %s failed, the request is let through: %s: %s", verb, key, kind, error, **details)
