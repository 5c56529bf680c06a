"""Buckets in Cloudflare Workers KV: through the REST API, or through the binding of a Python Worker."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ..core.errors import AccessDeniedError, RateLimiterUnavailable, ValidationError
from ..core.limit import MAX_PERIOD_SECONDS, seconds, whole
from .port import TTL_SECONDS
from .state import decode, encode

if TYPE_CHECKING:
    from collections.abc import Mapping

    import httpx

    from .bucket import TokenBucket

LEAST_TTL_SECONDS = 60
"""The shortest expiry that Workers KV accepts."""

API = "https://api.cloudflare.com/client/v4"
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_TOKEN = re.compile(r"[!-~]+")
_BASE_URL = re.compile(r"(?:https://|http://(?:127\.0\.0\.1|localhost|\[::1])(?=[:/]|\Z))[^\s?#@]*")
_TEXT = {"content-type": "text/plain; charset=utf-8"}


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
        self._rights = {"authorization": f"Bearer {_check_token(api_token)}"}
        self._values = f"{base.rstrip('/')}/accounts/{account}/storage/kv/namespaces/{namespace}/values/"
        self._timeout = seconds("timeout", timeout, zero=False)
        self._own = client is None
        self._client = _open_client(client, blocking)
        self.blocking: bool = not hasattr(self._client, "aclose")

    def __repr__(self) -> str:
        return f"CloudflareRepository({self._values!r}, ttl_seconds={self.ttl_seconds})"

    async def get(self, key: str) -> TokenBucket | None:
        """Return the bucket under ``key``, None if there is none. Raises `CorruptStateError` if it is not one."""
        answer = await self._request("GET", key)
        if answer.status_code == 404:  # also if the namespace is missing, which the write then tells
            return None
        _check_status(answer)
        return decode(answer.content)

    async def save(self, key: str, bucket: TokenBucket) -> None:
        """Store a bucket under ``key`` for ``ttl_seconds``."""
        options = {"params": {"expiration_ttl": self.ttl_seconds}, "content": encode(bucket)}
        _check_status(await self._request("PUT", key, _TEXT, **options))

    async def close(self) -> None:
        """Close the client if it was opened here."""
        if not self._own:
            return
        if hasattr(self._client, "aclose"):
            await self._client.aclose()
        else:
            self._client.close()

    async def _request(
        self, method: str, key: str, headers: Mapping[str, str] | None = None, **options: Any
    ) -> httpx.Response:
        url = self._values + quote(key, safe="")
        sent = {**self._rights, **(headers or {})}
        answer = self._client.request(method, url, headers=sent, timeout=self._timeout, **options)
        return await answer if inspect.isawaitable(answer) else answer


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


def _check_status(answer: httpx.Response) -> None:
    status = answer.status_code
    if status in (401, 403):
        raise AccessDeniedError(f"Workers KV answered {status}: the token may not edit Workers KV Storage")
    if not 200 <= status < 300:
        raise RateLimiterUnavailable(f"Workers KV answered {status}")


def check_ttl(value: object) -> int:
    """Check an expiry in seconds against what Workers KV accepts, and return it."""
    return whole("ttl_seconds", value, LEAST_TTL_SECONDS, MAX_PERIOD_SECONDS, "seconds")


def _check_token(value: object) -> str:
    """Check that a token is fit for a header, before an error of the HTTP library shows it; return it."""
    if not isinstance(value, str) or not _TOKEN.fullmatch(value):
        raise ValidationError("api_token", "***", "must be a token of printable ASCII characters without spaces")
    return value


def _check_text(field: str, value: object, pattern: re.Pattern[str], reason: str) -> str:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise ValidationError(field, value, reason)
    return value
