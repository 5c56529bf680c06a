"""ASGI middleware: Starlette, FastAPI, Litestar, Quart, Django. It never buffers and never looks into a body.

Tokens are taken before the app runs. The charge stays, whether the body was sent, broke off, nobody was there to read
it or the app has raised, and what the app has adjusted by then is settled. It goes back when the request is refused
inside of the app, or when the rule refunds the status; an exception that nobody answers counts as 500.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from .answers import Answer
from .channels import App, respond, with_lines
from .guard import REFUSALS
from .handshake import Handshake
from .middleware import Middleware
from .modes import Waiting
from .request import AsgiRequest
from .startup import Startup
from .tab import TAB, Tab, tab_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping, Sequence

    from ..core.limit import Limit
    from ..limiter.lease import Lease
    from ..limiter.limiter import RateLimiter
    from .channels import Message, Receive, Scope, Send
    from .modes import Mode

_BODIES = frozenset({"http.response.body", "http.response.zerocopysend", "http.response.pathsend"})


class RateLimitMiddleware(Middleware[App, "RateLimiter"]):
    """Limits the requests of an ASGI app.

    ``limiter`` is a `RateLimiter` or a store URL. ``limits`` are for every request that no rule of ``rules`` is for;
    ``key`` says whose tokens are taken where a rule does not (`by_ip`). ``proxies``: how many, or which, stand in front
    (nobody is believed by default). ``headers``: the profiles in which clients are told where they stand.
    ``respond(request, answer, error)`` may return another `Answer`, or an ASGI app such as a Starlette response, for a
    refusal. ``prefixes``: what the app takes off a path by itself before it routes, such as ``["/api"]``, where that
    cannot be seen from outside.

    >>> from fastapi import FastAPI
    >>> from zae_limiter import Limit
    >>> app = FastAPI()
    >>> app.add_middleware(RateLimitMiddleware, limiter="memory://", limits=[Limit.per_minute("rpm", 60)])
    """

    def _mode(self, limiter: RateLimiter | str) -> Mode:
        return Waiting(limiter)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection event: http is limited, websocket and lifespan pass through."""
        if scope["type"] != "http":
            await self._other(scope, receive, send)
            return
        guard = self.guard
        request = AsgiRequest(scope, guard.proxies, self._prefixes)
        scope[TAB] = tab = Tab(guard, scope.get(TAB))
        exchange = Exchange(tab, receive, send)
        try:
            pending = guard.admit(request, tab)
            if pending is not None:
                await pending
            await self.app(scope, exchange.receive, exchange.send)
        except Exception as error:
            await tab.settle_failed(error, untouched=exchange.untouched)
            if exchange.started or not isinstance(error, REFUSALS):
                raise
            await _reply(await guard.response(request, error), scope, receive, send)
        finally:
            if not tab.settle_at_once():
                await tab.settle()

    async def _other(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind == "websocket":
            await self._websocket(scope, receive, send)
        elif kind == "lifespan":
            try:
                await self.app(scope, Startup(self.guard, scope, receive, send).receive, send)
            finally:
                await self.guard.mode.close()
        else:
            await self.app(scope, receive, send)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass through; a refusal that the app does not catch closes it."""
        scope[TAB] = tab = Tab(self.guard, scope.get(TAB))
        handshake = Handshake(receive, send)
        try:
            await self.app(scope, handshake.receive, handshake.send)
        except Exception as error:
            await tab.settle_failed(error, untouched=handshake.untouched)
            if handshake.over or not isinstance(error, REFUSALS):
                raise
            await handshake.refuse(self.guard.answer(error), scope)
        finally:
            await tab.settle()


class Exchange:
    """The two channels of one request, watched: has the answer begun, has it ended, has the client gone."""

    started = False
    _gone = False

    def __init__(self, tab: Tab, receive: Receive, send: Send) -> None:
        self._tab = tab
        self._receive = receive
        self._send = send

    @property
    def untouched(self) -> bool:
        """Whether nothing has been answered and nobody has hung up: who hangs up pays."""
        return not (self.started or self._gone)

    async def receive(self) -> Message:
        """From the client."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self._gone = True
        return message

    def send(self, message: Message) -> Awaitable[None]:
        """To the client; the end of the body settles the tab."""
        kind = message["type"]
        if kind == "http.response.start":
            self.started = True
            message = self._introduced(message)
            if self._tab.failed:
                return self._charged(message)
        elif not self.started:
            return self._announced(message)
        elif kind in _BODIES and not message.get("more_body") and not self._tab.settle_at_once():
            return self._ended(message)
        return self._send(message)

    async def _announced(self, message: Message) -> None:
        """What goes ahead of an answer."""
        try:
            await self._send(message)
        except BaseException:
            self._gone = True
            raise

    async def _charged(self, message: Message) -> None:
        """The start of an answer that is a failure: who has it has been charged for it."""
        await self._tab.charge_failure()
        await self._send(message)

    async def _ended(self, message: Message) -> None:
        """The end of a body, and the settlement."""
        await self._send(message)
        await self._tab.settle()

    def _introduced(self, message: Message) -> Message:
        """The start of an answer, with where the client stands."""
        tab = self._tab
        tab.answered(message["status"])
        return with_lines(message, tab.guard.lines(tab))


async def acquire(
    request: Any,
    entity_id: str,
    resource: str,
    consume: Mapping[str, int],
    limits: Sequence[Limit] | None = None,
    max_wait: float | None = None,
) -> Lease:
    """Take tokens inside a handler, when their number or their owner is known only there.

    They are held until the response is done, adjusted through the lease, and told to the client as those of a rule are.
    A refusal that nobody catches is answered by the middleware; where a framework catches everything, see `answer_of`.
    """
    tab = tab_of(request)
    lease = cast("Lease", tab.guard.mode.lease(entity_id, resource, consume, limits, max_wait))
    pending = tab.take(lease)
    if pending is not None:
        await pending
    return lease


async def _reply(response: Any, scope: Scope, receive: Receive, send: Send) -> None:
    if isinstance(response, Answer):
        await respond(response, send, bodiless=scope["method"] == "HEAD")
    else:
        await response(scope, receive, send)
