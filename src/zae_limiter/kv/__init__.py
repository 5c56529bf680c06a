"""The key-value limiter: a token bucket per client in a store that only reads and writes. See ``docs/guide/kv.md``."""

from .bucket import TokenBucket
from .cloudflare import CloudflareRepository, WorkersKVRepository
from .dictionary import DictRepository
from .enforce import EnforceRateLimit, RateLimitResult, SyncEnforceRateLimit
from .identity import ClientIdentity
from .policy import RateLimitPolicy
from .port import RateLimitRepository
from .redis import RedisRepository
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
