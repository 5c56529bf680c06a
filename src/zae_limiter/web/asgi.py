"""ASGI middleware: Starlette, FastAPI, Litestar, Quart, Django. It never buffers and never looks into a body.

Tokens are taken before the app runs. The charge stays, whether the body was sent, broke off, the client had gone or the
app has raised, and what the app has settled by then is written. It goes back when the request is refused inside of the
app, or when the rule refunds the status; an exception without an answer counts as 500.

Slots are held until the body has ended or a websocket is closed, and at the latest until the app has returned, as it
does when the client has gone. They are freed before the last piece is sent: a client that has the whole answer can have
the slot again. With ``free_slots="after"`` they are freed when the server has taken the last piece.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping, Sequence
from functools import lru_cache
from operator import attrgetter, itemgetter
from typing import Any, TypeAlias

from ..core.errors import ValidationError
from ..core.limit import Limit
from ..limiter.lease import Lease
from ..limiter.limiter import RateLimiter
from .answers import Answer
from .fields import Fields, omit_present
from .middleware import Middleware, open_limiter
from .profiles import Line
from .proxies import Proxies
from .request import AsgiRequest, Request, encode_name
from .request_leases import LEASES, RequestLeases, find_leases, finish, is_refusal
from .rules import BoundRule, Cost, Key, Rule

Message: TypeAlias = MutableMapping[str, Any]
Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

ROUTE_RULES: list[Callable[[Any], Iterable[Rule]]] = []
"""Functions that find the rules of an app's routes; a framework's module adds its own."""
_name_of = itemgetter(0)
_BODY = "http.response.body"
_BODIES = frozenset({_BODY, "http.response.zerocopysend", "http.response.pathsend"})
_INNERMOST = "zae_limiter.innermost"
"""The key of the innermost `Middleware`, in the scope of the app's lifespan."""
_WEBSOCKET_RESPONSE = "websocket.http.response"
_CLOSE_REASONS = {
    400: (1008, "several API keys"),
    413: (1009, "costs more than the maximum"),
    414: (1008, "the path is too long"),
}
"""Code and reason of a websocket's refusal that retrying does not help, by the status of its answer."""


class RateLimitMiddleware(Middleware[App, RateLimiter]):
    """Limits the requests of an ASGI app.

    ``app``: the app. ``limiter``: a `RateLimiter` or a store URL. ``limits``: for every request that no rule of
    ``rules`` is for. ``key``: whose tokens are taken if a rule does not say (`by_ip`). ``proxies``: how many, or
    which, stand in front (nobody is believed by default). ``headers``: the profiles in which clients are told how much
    is left. ``respond(request, answer, error)``: may return another `Answer`, or an ASGI app such as a Starlette
    response, for a refusal. ``prefixes``: what the app takes off a path by itself before it routes, such as
    ``["/api"]``, if that cannot be seen from outside. ``free_slots``: whether slots are freed ``"before"`` the last
    piece of a body is sent, or ``"after"`` the server has taken it.

    >>> from fastapi import FastAPI
    >>> from zae_limiter import Limit
    >>> app = FastAPI()
    >>> app.add_middleware(RateLimitMiddleware, limiter="memory://", limits=[Limit.per_minute("rpm", 60)])
    """

    def _limiter_type(self) -> type[RateLimiter]:
        return RateLimiter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection: http and the handshakes of websockets are limited."""
        watch = _EXCHANGES.get(scope["type"])
        if watch is None:
            await self._serve_other(scope, receive, send)
            return
        request = AsgiRequest(scope, self.proxies, self.prefixes)
        scope[LEASES] = leases = RequestLeases(self, scope.get(LEASES))
        exchange = watch(self, leases, receive, send)
        try:
            pending = self.admit(request, leases)
            if pending is not None:
                await pending
            await self.app(scope, exchange.receive, exchange.send)
        except Exception as error:
            if not leases.is_empty:
                await leases.settle_error(error, untouched=exchange.untouched)
            if not is_refusal(error):
                raise
            await exchange.refuse(request, error)
        finally:
            leases.is_over = True
            if not leases.try_settle():
                await leases.settle()

    async def _serve_other(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await self.app(scope, receive, send)
            return
        try:
            await self.app(scope, self._check_startup(scope, receive, send), send)
        finally:
            await self._close_store()

    def _check_startup(self, scope: Scope, receive: Receive, send: Send) -> Receive:
        """Return the channel of a lifespan, watched: an app whose routes have rules in conflict does not start.

        Only the innermost middleware checks them, as routes take their tokens from it.
        """
        if "app" in scope:
            scope[_INNERMOST] = self

        async def receive_checked() -> Message:
            message = await receive()
            if message["type"] == "lifespan.startup" and "app" in scope and scope.get(_INNERMOST) in (None, self):
                try:
                    for rule in [rule for find in ROUTE_RULES for rule in find(scope["app"])]:
                        self.bind(rule)
                except ValidationError as error:
                    await send({"type": "lifespan.startup.failed", "message": str(error)})
                    raise
            return message

        return receive_checked


class Exchange:
    """The two channels of one request, watched: has the answer begun, has it ended, has the client gone."""

    started = False
    gone = False

    def __init__(self, middleware: RateLimitMiddleware, leases: RequestLeases, receive: Receive, send: Send) -> None:
        self._middleware = middleware
        self._leases = leases
        self._receive = receive
        self._send = send

    @property
    def untouched(self) -> bool:
        """Whether nothing has been answered and the client has not hung up: one that hangs up pays."""
        return not (self.started or self.gone)

    async def receive(self) -> Message:
        """Receive from the client."""
        message = await self._receive()
        if message["type"] in ("http.disconnect", "websocket.disconnect"):
            self.gone = True
        return message

    def send(self, message: Message) -> Awaitable[None]:
        """Send to the client; the end of the body settles the leases."""
        kind, leases = message["type"], self._leases
        if kind == "http.response.start":
            self.started = True
            leases.note_status(message["status"])
            lines = self._middleware.lines(leases)
            if lines:
                message = add_lines(message, lines)
            if leases.failed:
                return self._send_failure(message)
        elif not self.started:
            return self._send_early(message)
        elif kind in _BODIES and not message.get("more_body") and not leases.try_settle():
            return self._send_last(message)
        return self._send(message)

    async def refuse(self, request: Request, error: Exception) -> None:
        """Answer a refusal, by the app's own responder if there is one; raise it if an answer has begun."""
        if self.started:
            raise error
        made = await self._middleware.respond(request, self._middleware.answer(error), error)
        if isinstance(made, Answer):
            await send_answer(made, self._send, bodiless=request.raw["method"] == "HEAD")
        else:
            await made(request.raw, self._receive, self._send)

    async def _send_early(self, message: Message) -> None:
        """Send what goes ahead of an answer."""
        try:
            await self._send(message)
        except BaseException:
            self.gone = True
            raise

    async def _send_failure(self, message: Message) -> None:
        """Charge for an answer that is a failure, then send its start: who has it has been charged for it."""
        await self._leases.charge_failure()
        await self._send(message)

    async def _send_last(self, message: Message) -> None:
        """Send the end of a body and settle: before it, if slots are held; but all of a file is such an end.

        Where slots are freed late the end is sent on its own. A server such as uvicorn takes a piece of any size at
        once, and makes the next one wait until its buffer has room.
        """
        if message["type"] == _BODY and self._leases.hold_slots:
            if not self._middleware.frees_late:
                await self._leases.settle()
            elif message.get("body"):
                await self._send({**message, "more_body": True})
                message = {"type": _BODY, "body": b"", "more_body": False}
        await self._send(message)
        await self._leases.settle()


class Handshake(Exchange):
    """The two channels of a websocket, watched: an answer has begun when it is accepted, and it may be over."""

    _connected = False

    async def receive(self) -> Message:
        """Receive from the client."""
        message = await super().receive()
        self._connected = True
        return message

    async def send(self, message: Message) -> None:
        """Send to the client; before the end, slots are freed. One that is closed at once was answered with 403."""
        kind = message["type"]
        if kind == f"{_WEBSOCKET_RESPONSE}.start" or (kind == "websocket.close" and not (self.started or self.gone)):
            self._leases.note_status(message.get("status", 403))
            if self._leases.failed:
                await self._leases.charge_failure()
        self.started = self.started or kind == "websocket.accept"
        self.gone = self.gone or kind in ("websocket.close", f"{_WEBSOCKET_RESPONSE}.start")
        ends = kind == "websocket.close" or (kind == f"{_WEBSOCKET_RESPONSE}.body" and not message.get("more_body"))
        if ends and self._leases.hold_slots and not self._middleware.frees_late:
            await self._leases.settle()
        await self._send(message)

    async def refuse(self, request: Request, error: Exception) -> None:
        """Refuse the websocket: with the answer itself if nothing was accepted yet and the server can send it.

        Else it is closed: 1013 to try again later, 1009 if retrying does not help, 1008 for the rest. If it is over
        already, the refusal is raised.
        """
        if self.gone:
            raise error
        answer = self._middleware.answer(error)
        # a server expects that the first message is received, and the app may not have come to it
        if not self._connected and (await self.receive())["type"] == "websocket.disconnect":
            return
        if not self.started and _WEBSOCKET_RESPONSE in (request.raw.get("extensions") or ()):
            await send_answer(answer, self._send, kind=_WEBSOCKET_RESPONSE)
            return
        wait = dict(answer.headers).get("Retry-After")
        code, reason = _CLOSE_REASONS.get(answer.status, (1008, "refused"))
        if wait is not None:
            code, reason = 1013, f"retry in {wait} s"
        await self._send({"type": "websocket.close", "code": code, "reason": reason})


_EXCHANGES = {"http": Exchange, "websocket": Handshake}


async def send_answer(answer: Answer, send: Send, *, bodiless: bool = False, kind: str = "http.response") -> None:
    """Send an answer, without its body if the request was ``HEAD``; ``kind`` is how its messages are called."""
    await send({"type": f"{kind}.start", "status": answer.status, "headers": [*map(_encode_line, answer.headers)]})
    await send({"type": f"{kind}.body", "body": b"" if bodiless else answer.body})


@lru_cache(1024)
def _encode_line(line: Line) -> tuple[bytes, bytes]:
    """Return a line of an answer as ASGI has it; refusals of one rule say much the same."""
    name, value = line
    return encode_name(name), value.encode("latin-1")


def add_lines(message: Message, lines: list[Line]) -> Message:
    """Return the start of a response with more header lines; fields that it has already stay as they are."""
    headers = [*message.get("headers", ())]
    # every field that could be there already has this in its name
    if b"ratelimit" in b" ".join(map(_name_of, headers)).lower():
        lines = omit_present(lines, {bytes(name).lower().decode("latin-1") for name, _ in headers})
    headers += [(encode_name(name), value.encode("latin-1")) for name, value in lines]
    return {**message, "headers": headers}


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
    settled through the lease, and told to the client as those of a rule are. A refusal that nobody catches is answered
    by the middleware; if a framework catches everything, see `answer_of`.
    """
    leases = find_leases(request)
    lease: Lease = leases.middleware.limiter.acquire(entity_id, resource, consume, limits, None, max_wait)
    await finish(leases.take(lease))
    return lease


class MessageLimit:
    """Takes tokens for each message that a client sends over a websocket.

    ``limiter``: a `RateLimiter` or a store URL. ``resource``: what the tokens are for. ``limits``: else the stored
    ones. ``cost``: of one message, a number or amounts by limit. ``key``: whose tokens are taken (`by_ip`).
    ``proxies``: as for `RateLimitMiddleware`. ``max_wait``: how many seconds a message may wait for its tokens.

    Either wrap the channel, ``WebSocket(scope, messages.wrap(scope, receive), send)``, or ask per message:

    >>> from zae_limiter import Limit, RateLimiter
    >>> messages = MessageLimit(RateLimiter("memory://"), "chat", limits=[Limit.per_minute("messages", 30)])
    >>> async def chat(websocket):
    ...     text = await websocket.receive_text()
    ...     await messages.take(websocket)

    A message beyond the limit raises `RateLimitExceeded`; if the app does not catch it, `RateLimitMiddleware` closes
    the websocket with 1013.
    """

    def __init__(
        self,
        limiter: RateLimiter | str,
        resource: str = "websocket",
        *,
        limits: Sequence[Limit] | None = None,
        cost: Cost = 1,
        key: Key | None = None,
        proxies: Proxies | int | Sequence[str] | None = None,
        max_wait: float | None = None,
    ) -> None:
        rule = Rule(resource=resource, limits=limits, cost=cost, key=key, max_wait=max_wait)
        for limit in filter(attrgetter("is_concurrency"), rule.limits or ()):
            reason = "is a concurrency limit, and a message holds no slot; take one for the websocket with acquire()"
            raise ValidationError("limits", limit.name, reason)
        self._rule = BoundRule(rule, open_limiter(limiter, RateLimiter), Fields("none"))
        self._proxies = Proxies.of(proxies)

    async def take(self, websocket: Any) -> None:
        """Take the tokens of one message; ``websocket`` is its scope, or an object that has it as ``scope``.

        Raises `RateLimitExceeded` if they are not there, and `SeveralKeysError`, after the client's address was
        charged, if the websocket carries several API keys.
        """
        scope: Scope = websocket if isinstance(websocket, dict) else websocket.scope
        leases = RequestLeases()
        try:
            await finish(leases.take_for(self._rule, AsgiRequest(scope, self._proxies)))
        finally:
            await leases.settle()

    def wrap(self, scope: Scope, receive: Receive) -> Receive:
        """Return the channel from the client, ``receive``, with each message of it limited."""

        async def receive_limited() -> Message:
            message = await receive()
            if message["type"] == "websocket.receive":
                await self.take(scope)
            return message

        return receive_limited
