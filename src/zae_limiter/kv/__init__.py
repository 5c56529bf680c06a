"""The key-value limiter: a token bucket per client in a store that only reads and writes. See ``docs/guide/kv.md``."""

from .bucket import RateLimitPolicy, TokenBucket
from .enforce import ClientIdentity, EnforceRateLimit, RateLimitResult, SyncEnforceRateLimit
from .repositories import (
    CloudflareRepository,
    DictRepository,
    RateLimitRepository,
    RedisRepository,
    WorkersKVRepository,
)
from .state import CorruptStateError

__all__ = [
    "ClientIdentity",
    "CloudflareRepository",
    "CorruptStateError",
    "DictRepository",
    "EnforceRateLimit",
    "RateLimitPolicy",
    "RateLimitRepository",
    "RateLimitResult",
    "RedisRepository",
    "SyncEnforceRateLimit",
    "TokenBucket",
    "WorkersKVRepository",
]
