"""Middleware on the key-value limiter: every request of an address takes one token of it.

>>> app.add_middleware(AsgiKVMiddleware, enforce=EnforceRateLimit(RedisRepository(client)))  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from ..core.errors import ValidationError
from ..kv import ClientIdentity, EnforceRateLimit, SyncEnforceRateLimit
from . import answers
from .channels import encoded, names_in, respond, with_lines
from .fields import Fields, Standing, unsaid
from .proxies import Proxies
from .request import AsgiRequest, WsgiRequest
from .wsgi import start

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence, Set
    from typing import Any

    from ..kv import RateLimitResult
    from . import channels, wsgi
    from .answers import Answer
    from .request import Request

T = TypeVar("T")


class AsgiKVMiddleware:
    """Limits an ASGI app by client address; ``proxies`` and ``headers`` are as in `RateLimitMiddleware`."""

    def __init__(
        self,
        app: channels.App,
        enforce: EnforceRateLimit,
        *,
        proxies: Proxies | int | Sequence[str] | None = None,
        headers: Fields | str | Sequence[str] | None = "ietf",
    ) -> None:
        self.app = app
        self._enforce = _checked(enforce, EnforceRateLimit)
        self._told = _Told(enforce, headers)
        self._proxies = Proxies.of(proxies)

    async def __call__(self, scope: channels.Scope, receive: channels.Receive, send: channels.Send) -> None:
        """Serve one connection event: http is limited, the others pass through."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = AsgiRequest(scope, self._proxies)
        result = await self._enforce.check(client_of(request))
        if not result.allowed:
            await respond(self._told.answer(result), send, bodiless=request.method == "HEAD")
            return

        async def introduced(message: channels.Message) -> None:
            if message["type"] == "http.response.start":
                message = with_lines(message, encoded(self._told.lines(result, names_in(message))))
            await send(message)

        await self.app(scope, receive, introduced)


class WsgiKVMiddleware:
    """Limits a WSGI app by client address; ``proxies`` and ``headers`` are as in `RateLimitMiddleware`."""

    def __init__(
        self,
        app: wsgi.App,
        enforce: SyncEnforceRateLimit,
        *,
        proxies: Proxies | int | Sequence[str] | None = None,
        headers: Fields | str | Sequence[str] | None = "ietf",
    ) -> None:
        self.app = app
        self._enforce = _checked(enforce, SyncEnforceRateLimit)
        self._told = _Told(enforce, headers)
        self._proxies = Proxies.of(proxies)

    def __call__(self, environ: wsgi.Environ, start_response: wsgi.StartResponse) -> Iterable[bytes]:
        """Serve one request."""
        request = WsgiRequest(environ, self._proxies)
        result = self._enforce.check(client_of(request))
        if not result.allowed:
            return start(self._told.answer(result), start_response, bodiless=request.method == "HEAD")

        def introduced(status: str, headers: list[tuple[str, str]], *exc_info: Any) -> Any:
            lines = self._told.lines(result, {name.lower() for name, _ in headers})
            return start_response(status, [*headers, *lines], *exc_info)

        return self.app(environ, introduced)


class _Told:
    """What clients are told of a result."""

    def __init__(self, enforce: EnforceRateLimit | SyncEnforceRateLimit, headers: Any) -> None:
        self._fields = Fields.of(headers)
        self._clock = enforce.clock
        self._limit = enforce.policy.to_limit()

    def lines(self, result: RateLimitResult, present: Set[str]) -> list[tuple[str, str]]:
        if result.degraded:
            return []
        return unsaid(self._fields.lines([self._standing(result, None)], self._clock.now_ms()), present)

    def answer(self, result: RateLimitResult) -> Answer:
        standing = self._standing(result, result.retry_after_ms)
        return answers.refused([standing], self._clock.now_ms(), self._fields, result.retry_after_ms)

    def _standing(self, result: RateLimitResult, retry_in_ms: int | None) -> Standing:
        full_in_ms = result.reset_time_ms - self._clock.now_ms()
        return Standing(self._limit.name, self._limit, result.tokens_remaining, full_in_ms, retry_in_ms)


def _checked(enforce: T, wanted: type[T]) -> T:
    if not isinstance(enforce, wanted):
        raise ValidationError("enforce", type(enforce).__name__, f"must be of type {wanted.__name__}")
    return enforce


def client_of(request: Request) -> ClientIdentity:
    """Whom a request counts for."""
    address = request.client
    return ClientIdentity.from_ip(None if address is None else str(address))
