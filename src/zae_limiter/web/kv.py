"""Middleware on the key-value limiter: every request of an address takes one token of it.

>>> from fastapi import FastAPI
>>> from zae_limiter.kv import DictRepository, EnforceRateLimit
>>> FastAPI().add_middleware(AsgiKVMiddleware, enforce=EnforceRateLimit(DictRepository()))
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from ..core.errors import ValidationError
from ..kv import ClientIdentity, EnforceRateLimit, SyncEnforceRateLimit
from . import answers
from .channels import respond, with_lines
from .fields import Fields, Standing, unsaid
from .proxies import Proxies
from .request import AsgiRequest, WsgiRequest
from .wsgi import start

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from ..kv import RateLimitResult
    from . import channels, wsgi
    from .answers import Answer
    from .request import Request

AppT = TypeVar("AppT")
EnforceT = TypeVar("EnforceT", EnforceRateLimit, SyncEnforceRateLimit)


class KVMiddleware(Generic[AppT, EnforceT]):
    """What the middlewares for ASGI and WSGI share; ``proxies`` and ``headers`` are as in `RateLimitMiddleware`."""

    _wanted: type[EnforceT]

    def __init__(
        self,
        app: AppT,
        enforce: EnforceT,
        *,
        proxies: Proxies | int | Sequence[str] | None = None,
        headers: Fields | str | Sequence[str] | None = "ietf",
    ) -> None:
        if not isinstance(enforce, self._wanted):
            raise ValidationError("enforce", type(enforce).__name__, f"must be of type {self._wanted.__name__}")
        self.app = app
        self._enforce: EnforceT = enforce
        self._clock = enforce.clock
        self._limit = enforce.policy.to_limit()
        self._fields = Fields.of(headers)
        self._proxies = Proxies.of(proxies)

    def _lines(self, result: RateLimitResult) -> list[tuple[str, str]]:
        """What a client is told who was let in."""
        if result.degraded:
            return []
        return self._fields.lines([self._standing(result, None)], self._clock.now_ms())

    def _answer(self, result: RateLimitResult) -> Answer:
        """What a refused client is told."""
        standing = self._standing(result, result.retry_after_ms)
        return answers.refused([standing], self._clock.now_ms(), self._fields, result.retry_after_ms)

    def _standing(self, result: RateLimitResult, retry_in_ms: int | None) -> Standing:
        full_in_ms = result.reset_time_ms - self._clock.now_ms()
        return Standing(self._limit.name, self._limit, result.tokens_remaining, full_in_ms, retry_in_ms)


class AsgiKVMiddleware(KVMiddleware["channels.App", EnforceRateLimit]):
    """Limits an ASGI app by client address."""

    _wanted = EnforceRateLimit

    async def __call__(self, scope: channels.Scope, receive: channels.Receive, send: channels.Send) -> None:
        """Serve one connection event: http is limited, the others pass through."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = AsgiRequest(scope, self._proxies)
        result = await self._enforce.check(client_of(request))
        if not result.allowed:
            await respond(self._answer(result), send, bodiless=request.method == "HEAD")
            return

        async def introduced(message: channels.Message) -> None:
            if message["type"] == "http.response.start":
                message = with_lines(message, self._lines(result))
            await send(message)

        await self.app(scope, receive, introduced)


class WsgiKVMiddleware(KVMiddleware["wsgi.App", SyncEnforceRateLimit]):
    """Limits a WSGI app by client address."""

    _wanted = SyncEnforceRateLimit

    def __call__(self, environ: wsgi.Environ, start_response: wsgi.StartResponse) -> Iterable[bytes]:
        """Serve one request."""
        request = WsgiRequest(environ, self._proxies)
        result = self._enforce.check(client_of(request))
        if not result.allowed:
            return start(self._answer(result), start_response, bodiless=request.method == "HEAD")

        def introduced(status: str, headers: list[tuple[str, str]], *exc_info: Any) -> Any:
            lines = unsaid(self._lines(result), {name.lower() for name, _ in headers})
            return start_response(status, [*headers, *lines], *exc_info)

        return self.app(environ, introduced)


def client_of(request: Request) -> ClientIdentity:
    """Whom a request counts for."""
    address = request.client
    return ClientIdentity.from_ip(None if address is None else str(address))
