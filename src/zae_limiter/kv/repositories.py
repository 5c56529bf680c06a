"""Where the buckets are: the port to a key-value store, and its adapters."""

from __future__ import annotations

import heapq
import inspect
import re
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

from ..clock import Clock, SystemClock
from ..core.errors import AccessDeniedError, RateLimiterUnavailable, ValidationError
from ..core.limit import MAX_AMOUNT, MAX_PERIOD_SECONDS, seconds, whole
from ..forks import protect
from .bucket import TokenBucket
from .state import decode, encode

if TYPE_CHECKING:
    import httpx


TTL_SECONDS = 300
LEAST_TTL_SECONDS = 60
"""The shortest expiry that Workers KV accepts."""
API = "https://api.cloudflare.com/client/v4"
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_TOKEN = re.compile(r"[!-~]+")
_BASE_URL = re.compile(r"(?:https://|http://(?:127\.0\.0\.1|localhost|\[::1])(?=[:/]|\Z))[^\s?#@]*")


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


class DictRepository:
    """Buckets in this process; usable from any number of threads and event loops at once.

    When there are more than ``max_entries``, expired ones go, then those that were fullest when they were last written,
    the longest untouched first. A new client's bucket is among the fullest, so a flood of new addresses washes out
    itself and never the empty bucket of its sender.

    ``ttl_seconds``: after how many seconds without a write a bucket expires. ``clock``: the system's unless given.
    ``max_entries``: how many buckets are kept at most.
    """

    blocking = True

    def __init__(self, ttl_seconds: int = TTL_SECONDS, clock: Clock | None = None, max_entries: int = 100_000) -> None:
        self.ttl_seconds: int = whole("ttl_seconds", ttl_seconds, 1, MAX_PERIOD_SECONDS, "seconds")
        self.max_entries: int = whole("max_entries", max_entries, 1, MAX_AMOUNT, "entries")
        self.clock: Clock = clock or SystemClock()
        self.evicted: int = 0
        """How many buckets were dropped for want of room before they had expired."""
        self._entries: dict[str, tuple[TokenBucket, int]] = {}
        """Each bucket and when it expires."""
        self._lock = threading.Lock()
        protect(self._lock)

    def __len__(self) -> int:
        return len(self._entries)

    async def get(self, key: str) -> TokenBucket | None:
        """Return the bucket under ``key``, None if there is none or it has expired."""
        now_ms = self.clock.now_ms()
        with self._lock:
            bucket, expires_ms = self._entries.get(key, (None, now_ms))
            if expires_ms > now_ms:
                return bucket
            self._entries.pop(key, None)
            return None

    async def save(self, key: str, bucket: TokenBucket) -> None:
        """Store a bucket for ``ttl_seconds``, counted from its own instant if our clock is behind that."""
        now_ms = self.clock.now_ms()
        expires_ms = max(now_ms, bucket.last_refill_ms) + self.ttl_seconds * 1000
        with self._lock:
            self._entries[key] = (bucket, expires_ms)
            if len(self._entries) > self.max_entries:
                self._evict(key, now_ms)

    def _evict(self, newest: str, now_ms: int) -> None:
        """Make room for several buckets at once, so that one scan serves them all."""
        for key in [key for key, (_, expires_ms) in self._entries.items() if expires_ms <= now_ms]:
            del self._entries[key]
        if len(self._entries) <= self.max_entries:
            return
        others = (
            (-bucket.tokens / bucket.capacity, expires_ms, key)
            for key, (bucket, expires_ms) in self._entries.items()
            if key != newest
        )
        for _, _, key in heapq.nsmallest(max(1, self.max_entries // 64), others):
            del self._entries[key]
            self.evicted += 1


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


class CloudflareRepository:
    """Buckets over the REST API with httpx, for programs outside of Workers.

    ``account_id``, ``namespace_id``: as the dashboard shows them. ``api_token``: needs the right to edit Workers KV
    Storage; it is in no repr, log or error. ``client``: an httpx client, which is yours to close; without one, one is
    opened here, ``blocking`` or not, and `close` closes it. ``ttl_seconds``: after how many seconds without a write a
    bucket expires. ``base_url``: of the API. ``timeout``: of one request, in seconds.
    """

    def __init__(
        self,
        account_id: str,
        namespace_id: str,
        api_token: str,
        client: httpx.AsyncClient | httpx.Client | None = None,
        ttl_seconds: int = TTL_SECONDS,
        base_url: str = API,
        *,
        blocking: bool = False,
        timeout: float = 2.0,
    ) -> None:
        account = _check_text("account_id", account_id, _ID, "must be an id as the dashboard shows it")
        namespace = _check_text("namespace_id", namespace_id, _ID, "must be an id as the dashboard shows it")
        base = _check_text("base_url", base_url, _BASE_URL, "must be an https URL, without query or user")
        self.ttl_seconds: int = check_ttl(ttl_seconds)
        if not isinstance(api_token, str) or not _TOKEN.fullmatch(api_token):  # before an error of httpx shows it
            raise ValidationError("api_token", "***", "must be a token of printable ASCII characters without spaces")
        self._rights = {"authorization": f"Bearer {api_token}"}
        self._values = f"{base.rstrip('/')}/accounts/{account}/storage/kv/namespaces/{namespace}/values/"
        self._timeout = seconds("timeout", timeout, zero=False)
        self._own = client is None
        self._client = _open_client(client, blocking)
        self.blocking: bool = not hasattr(self._client, "aclose")

    def __repr__(self) -> str:
        return f"CloudflareRepository({self._values!r}, ttl_seconds={self.ttl_seconds})"

    async def get(self, key: str) -> TokenBucket | None:
        """Return the bucket under ``key``, None if there is none. Raises `CorruptStateError` if it is not one."""
        answer = await self._request("GET", key, self._rights)
        return None if answer.status_code == 404 else decode(answer.content)

    async def save(self, key: str, bucket: TokenBucket) -> None:
        """Store a bucket under ``key`` for ``ttl_seconds``."""
        headers = {**self._rights, "content-type": "text/plain; charset=utf-8"}
        options = {"params": {"expiration_ttl": self.ttl_seconds}, "content": encode(bucket)}
        await self._request("PUT", key, headers, **options)

    async def close(self) -> None:
        """Close the client if it was opened here."""
        if self._own:
            if hasattr(self._client, "aclose"):
                await self._client.aclose()
            else:
                self._client.close()

    async def _request(self, method: str, key: str, headers: Mapping[str, str], **options: Any) -> httpx.Response:
        url = self._values + quote(key, safe="")
        answer = self._client.request(method, url, headers=headers, timeout=self._timeout, **options)
        response = await answer if inspect.isawaitable(answer) else answer
        status = response.status_code
        if status in (401, 403):
            raise AccessDeniedError(f"Workers KV answered {status}: the token may not edit Workers KV Storage")
        # 404 says that there is no bucket, or no namespace, which the write then tells
        if not (200 <= status < 300 or (status == 404 and method == "GET")):
            raise RateLimiterUnavailable(f"Workers KV answered {status}")
        return response


class WorkersKVRepository:
    """Buckets over the ``binding`` inside of a Python Worker: ``WorkersKVRepository(env.RATE_LIMIT_KV)``.

    ``ttl_seconds``: after how many seconds without a write a bucket expires.
    """

    blocking = False

    def __init__(self, binding: Any, ttl_seconds: int = TTL_SECONDS) -> None:
        if not all(callable(getattr(binding, verb, None)) for verb in ("get", "put")):
            reason = "must be the binding of a KV namespace, such as env.RATE_LIMIT_KV"
            raise ValidationError("binding", type(binding).__name__, reason)
        self.ttl_seconds: int = check_ttl(ttl_seconds)
        self._binding = binding

    async def get(self, key: str) -> TokenBucket | None:
        """Return the bucket under ``key``, None if there is none. Raises `CorruptStateError` if it is not one."""
        state = await self._binding.get(key)
        if not isinstance(state, str) and not state:  # JavaScript's null is None or a falsy object of Pyodide
            return None
        return decode(state)

    async def save(self, key: str, bucket: TokenBucket) -> None:
        """Store a bucket. Keyword arguments reach a JavaScript function as its last argument, an object."""
        await self._binding.put(key, encode(bucket), expirationTtl=self.ttl_seconds)


def _open_client(given: httpx.AsyncClient | httpx.Client | None, blocking: bool) -> httpx.AsyncClient | httpx.Client:
    try:
        import httpx
    except ImportError:
        raise ImportError('CloudflareRepository needs httpx: pip install "zae-limiter[cloudflare]"') from None
    if given is None:
        return httpx.Client() if blocking else httpx.AsyncClient()
    if not isinstance(given, httpx.AsyncClient | httpx.Client):
        raise ValidationError("client", type(given).__name__, "must be an httpx.AsyncClient or an httpx.Client")
    return given


def check_ttl(value: object) -> int:
    """Check an expiry in seconds against what Workers KV accepts, and return it."""
    return whole("ttl_seconds", value, LEAST_TTL_SECONDS, MAX_PERIOD_SECONDS, "seconds")


def _check_text(field: str, value: object, pattern: re.Pattern[str], reason: str) -> str:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise ValidationError(field, value, reason)
    return value
