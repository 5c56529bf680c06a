"""ASGI middleware: Starlette, FastAPI, Litestar, Quart, Django. It never buffers and never looks into a body.

Tokens are taken before the app runs. The charge stays, whether the body was sent, broke off, nobody was there to read
it or the app has raised, and what the app has adjusted by then is settled. It goes back when the request is refused
inside of the app, or when the rule refunds the status; an exception that nobody answers counts as 500.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from ..limiter.limiter import RateLimiter
from .answers import Answer
from .channels import App, add_lines, send_answer
from .handshake import Handshake
from .middleware import Middleware
from .request import AsgiRequest
from .request_leases import LEASES, REFUSALS, RequestLeases, find_leases, finish
from .request_limiter import LIMITER, find_limiter
from .startup import Startup

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping, Sequence

    from ..core.limit import Limit
    from ..limiter.lease import Lease
    from .channels import Message, Receive, Scope, Send
    from .request_limiter import RequestLimiter

_BODIES = frozenset({"http.response.body", "http.response.zerocopysend", "http.response.pathsend"})


class RateLimitMiddleware(Middleware[App, RateLimiter]):
    """Limits the requests of an ASGI app.

    ``app``: the app. ``limiter``: a `RateLimiter` or a store URL. ``limits``: for every request that no rule of
    ``rules`` is for. ``key``: whose tokens are taken where a rule does not say (`by_ip`). ``proxies``: how many, or
    which, stand in front (nobody is believed by default). ``headers``: the profiles in which clients are told how much
    is left. ``respond(request, answer, error)``: may return another `Answer`, or an ASGI app such as a Starlette
    response, for a refusal. ``prefixes``: what the app takes off a path by itself before it routes, such as
    ``["/api"]``, where that cannot be seen from outside.

    >>> from fastapi import FastAPI
    >>> from zae_limiter import Limit
    >>> app = FastAPI()
    >>> app.add_middleware(RateLimitMiddleware, limiter="memory://", limits=[Limit.per_minute("rpm", 60)])
    """

    def _limiter_type(self) -> type[RateLimiter]:
        return RateLimiter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection event: http is limited, websocket and lifespan pass through."""
        if scope["type"] != "http":
            await self._serve_other(scope, receive, send)
            return
        limiter = scope[LIMITER] = self.limiter
        request = AsgiRequest(scope, limiter.proxies, self._prefixes)
        scope[LEASES] = leases = RequestLeases(scope.get(LEASES))
        exchange = Exchange(limiter, leases, receive, send)
        try:
            pending = limiter.admit(request, leases)
            if pending is not None:
                await pending
            await self.app(scope, exchange.receive, exchange.send)
        except Exception as error:
            if not leases.is_empty:
                await leases.settle_error(error, untouched=exchange.untouched)
            if exchange.started or not isinstance(error, REFUSALS):
                raise
            response = await limiter.respond(request, error)
            if not isinstance(response, Answer):
                await response(scope, receive, send)
            else:
                await send_answer(response, send, bodiless=scope["method"] == "HEAD")
        finally:
            if not leases.try_settle():
                await leases.settle()

    async def _serve_other(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind == "websocket":
            await self._serve_websocket(scope, receive, send)
        elif kind == "lifespan":
            try:
                await self.app(scope, Startup(self.limiter, scope, receive, send).receive, send)
            finally:
                await self._close_store()
        else:
            await self.app(scope, receive, send)

    async def _serve_websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass through; a refusal that the app does not catch closes it."""
        scope[LIMITER] = self.limiter
        scope[LEASES] = leases = RequestLeases(scope.get(LEASES))
        handshake = Handshake(receive, send)
        try:
            await self.app(scope, handshake.receive, handshake.send)
        except Exception as error:
            await leases.settle_error(error, untouched=handshake.untouched)
            if handshake.over or not isinstance(error, REFUSALS):
                raise
            await handshake.refuse(self.limiter.answer(error), scope)
        finally:
            await leases.settle()


class Exchange:
    """The two channels of one request, watched: has the answer begun, has it ended, has the client gone."""

    started = False
    _gone = False

    def __init__(self, limiter: RequestLimiter, leases: RequestLeases, receive: Receive, send: Send) -> None:
        self._limiter = limiter
        self._leases = leases
        self._receive = receive
        self._send = send

    @property
    def untouched(self) -> bool:
        """Whether nothing has been answered and nobody has hung up: who hangs up pays."""
        return not (self.started or self._gone)

    async def receive(self) -> Message:
        """Receive from the client."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self._gone = True
        return message

    def send(self, message: Message) -> Awaitable[None]:
        """Send to the client; the end of the body settles the leases."""
        kind = message["type"]
        if kind == "http.response.start":
            self.started = True
            self._leases.note_status(message["status"])
            message = add_lines(message, self._limiter.lines(self._leases))
            if self._leases.failed:
                return self._send_failure(message)
        elif not self.started:
            return self._send_early(message)
        elif kind in _BODIES and not message.get("more_body") and not self._leases.try_settle():
            return self._send_last(message)
        return self._send(message)

    async def _send_early(self, message: Message) -> None:
        """Send what goes ahead of an answer."""
        try:
            await self._send(message)
        except BaseException:
            self._gone = True
            raise

    async def _send_failure(self, message: Message) -> None:
        """Charge for an answer that is a failure, then send its start: who has it has been charged for it."""
        await self._leases.charge_failure()
        await self._send(message)

    async def _send_last(self, message: Message) -> None:
        """Send the end of a body, then settle."""
        await self._send(message)
        await self._leases.settle()


async def acquire(
    request: Any,
    entity_id: str,
    resource: str,
    consume: Mapping[str, int],
    limits: Sequence[Limit] | None = None,
    max_wait: float | None = None,
) -> Lease:
    """Take tokens inside a handler, when their number or their owner is known only there, and return the lease.

    ``request``: the ASGI scope, or the request object of a framework. ``entity_id``, ``resource``, ``consume``,
    ``limits`` and ``max_wait`` are as for `RateLimiter.acquire`. The tokens are held until the response is done,
    adjusted through the lease, and told to the client as those of a rule are. A refusal that nobody catches is answered
    by the middleware; where a framework catches everything, see `answer_of`.
    """
    limiter = cast("RateLimiter", find_limiter(request).limiter)
    lease = limiter.acquire(entity_id, resource, consume, limits, None, max_wait)
    await finish(find_leases(request).take(lease))
    return lease
