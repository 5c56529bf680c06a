"""Middleware on the key-value limiter: every request of an address takes one token of it.

`create_rate_limit_middleware` sets up all of it for a Python Worker; elsewhere it is put together:

>>> from fastapi import FastAPI
>>> from zae_limiter.kv import DictRepository, EnforceRateLimit
>>> FastAPI().add_middleware(AsgiKVMiddleware, enforce=EnforceRateLimit(DictRepository()))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableMapping, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

from ..core.errors import ValidationError
from ..kv import ClientIdentity, EnforceRateLimit, RateLimitPolicy, SyncEnforceRateLimit, WorkersKVRepository
from ..kv.enforce import RateLimitResult, check_expiry, check_policy, warn_unavailable
from ..kv.repositories import TTL_SECONDS, check_ttl
from . import answers, asgi, wsgi
from .asgi import add_lines, send_answer
from .fields import Fields, omit_present
from .profiles import LimitView
from .proxies import Proxies
from .request import AsgiRequest, Request, WsgiRequest
from .wsgi import start_answer

AppT = TypeVar("AppT")
EnforceT = TypeVar("EnforceT", EnforceRateLimit, SyncEnforceRateLimit)

PerRequest: TypeAlias = Callable[[MutableMapping[str, Any]], EnforceT]
"""Returns the use case for one request, given its ASGI scope or WSGI environment."""

WORKERS_HEADER = "cf-connecting-ip"
"""Where Cloudflare writes the address of the client, whatever the client has sent under that name."""


class KVMiddleware(Generic[AppT, EnforceT]):
    """The base of the middlewares for ASGI and WSGI; ``proxies`` and ``headers`` are as in `RateLimitMiddleware`.

    ``app``: the app. ``enforce``: the use case, or a function that returns it given the scope or environment of a
    request, for a store that arrives with each request. If that function raises, the request is let through with a
    warning.

    ``client_header``: names the header in which the platform writes the address of the client. It is believed whoever
    connects, so it must be one that clients cannot set themselves, such as ``cf-connecting-ip`` inside of a Worker.
    """

    _wanted: type[EnforceT]

    def __init__(
        self,
        app: AppT,
        enforce: EnforceT | PerRequest[EnforceT],
        *,
        client_header: str | None = None,
        proxies: Proxies | int | Sequence[str] | None = None,
        headers: Fields | str | Sequence[str] | None = "ietf",
    ) -> None:
        if client_header is not None and proxies is not None:
            raise ValidationError("client_header", client_header, "cannot be combined with proxies; give one of them")
        self._open: PerRequest[EnforceT]
        if isinstance(enforce, self._wanted):
            self._open = lambda _: enforce
        elif callable(enforce) and not isinstance(enforce, type):
            self._open = enforce
        else:
            reason = f"must be of type {self._wanted.__name__}, or a function that returns one for a request"
            raise ValidationError("enforce", type(enforce).__name__, reason)
        self.app = app
        self._fields = Fields.of(headers)
        self._proxies = Proxies.of(proxies) if client_header is None else Proxies(1, header=client_header)

    def _find(self, request: Request, client: ClientIdentity) -> EnforceT | None:
        """Return the use case for a request; None, with a warning, if there is none."""
        try:
            found: EnforceT = self._open(request.raw)
            if not isinstance(found, self._wanted):
                raise ValidationError("enforce", type(found).__name__, f"must return a {self._wanted.__name__}")
        except Exception as error:
            warn_unavailable("opening", client.kv_key, error)
            return None
        return found

    def _lines(self, enforce: EnforceT, result: RateLimitResult) -> list[tuple[str, str]]:
        """Return the header lines for a client whose request was granted."""
        return [] if result.degraded else self._fields.lines(*self._view(enforce, result))

    def _answer(self, enforce: EnforceT, result: RateLimitResult) -> answers.Answer:
        return answers.quota_exceeded(*self._view(enforce, result), self._fields, result.retry_after_ms)

    def _view(self, enforce: EnforceT, result: RateLimitResult) -> tuple[list[LimitView], int]:
        """Return what a client is told of its limit, and the present instant."""
        limit, now_ms = enforce.policy.to_limit(), enforce.clock.now_ms()
        retry_in_ms = None if result.allowed else result.retry_after_ms
        view = LimitView(limit.name, limit, result.tokens_remaining, result.reset_time_ms - now_ms, retry_in_ms)
        return [view], now_ms


class AsgiKVMiddleware(KVMiddleware["asgi.App", EnforceRateLimit]):
    """Limits an ASGI app by client address."""

    _wanted = EnforceRateLimit

    async def __call__(self, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        """Serve one connection event: http is limited, the others pass through."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = AsgiRequest(scope, self._proxies)
        client = ClientIdentity.from_ip(request.origin)
        enforce = self._find(request, client)
        if enforce is None:
            await self.app(scope, receive, send)
            return
        result = await enforce.check(client)
        if not result.allowed:
            await send_answer(self._answer(enforce, result), send, bodiless=request.method == "HEAD")
            return

        async def send_with_lines(message: asgi.Message) -> None:
            if message["type"] == "http.response.start":
                message = add_lines(message, self._lines(enforce, result))
            await send(message)

        await self.app(scope, receive, send_with_lines)


class WsgiKVMiddleware(KVMiddleware["wsgi.App", SyncEnforceRateLimit]):
    """Limits a WSGI app by client address."""

    _wanted = SyncEnforceRateLimit

    def __call__(self, environ: wsgi.Environ, start_response: wsgi.StartResponse) -> Iterable[bytes]:
        """Serve one request."""
        request = WsgiRequest(environ, self._proxies)
        client = ClientIdentity.from_ip(request.origin)
        enforce = self._find(request, client)
        if enforce is None:
            return self.app(environ, start_response)
        result = enforce.check(client)
        if not result.allowed:
            return start_answer(self._answer(enforce, result), start_response, bodiless=request.method == "HEAD")

        def start_with_lines(status: str, headers: list[tuple[str, str]], *exc_info: Any) -> Any:
            lines = omit_present(self._lines(enforce, result), {name.lower() for name, _ in headers})
            return start_response(status, [*headers, *lines], *exc_info)

        return self.app(environ, start_with_lines)


def create_rate_limit_middleware(
    kv: Any,
    policy: RateLimitPolicy | None = None,
    *,
    ttl_seconds: int = TTL_SECONDS,
    client_header: str | None = WORKERS_HEADER,
    headers: Fields | str | Sequence[str] | None = "ietf",
) -> Callable[[asgi.App], AsgiKVMiddleware]:
    """Return a function that puts the limiter in front of an ASGI app inside of a Python Worker.

    ``kv``: the binding of a KV namespace; or its name, if the environment comes with each request as ``scope["env"]``;
    or a function that returns the binding given the scope. ``policy``: `RateLimitPolicy.standard_ip_policy` unless
    given. ``ttl_seconds``: after how many seconds without a request a bucket expires. ``client_header`` and
    ``headers``: as for `AsgiKVMiddleware`. Outside of Workers put one together instead: there, clients choose what
    ``client_header`` says.

    >>> limited = create_rate_limit_middleware("RATE_LIMIT_KV", RateLimitPolicy.create(60))
    """
    chosen = check_policy(policy)
    check_expiry(check_ttl(ttl_seconds), chosen)

    def open_use_case(binding: Any) -> EnforceRateLimit:
        return EnforceRateLimit(WorkersKVRepository(binding, ttl_seconds), chosen)

    def open_for(scope: MutableMapping[str, Any]) -> EnforceRateLimit:
        return open_use_case(getattr(scope["env"], kv) if isinstance(kv, str) else kv(scope))

    comes_with_requests = isinstance(kv, str) or (callable(kv) and not hasattr(kv, "put"))
    enforce = open_for if comes_with_requests else open_use_case(kv)
    return lambda app: AsgiKVMiddleware(app, enforce, client_header=client_header, headers=headers)
