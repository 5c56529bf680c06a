"""A websocket asked without a server, and apps for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from tests.web.drive import Call
from zae_limiter import RateLimiter
from zae_limiter.stores.memory import MemoryStore
from zae_limiter.testing import ManualClock
from zae_limiter.web import asgi

CONNECT = {"type": "websocket.connect"}
ACCEPT = {"type": "websocket.accept"}
App = Callable[[Any, Any, Any], Awaitable[None]]


def text(number: int) -> dict[str, Any]:
    """A message from the client."""
    return {"type": "websocket.receive", "text": str(number)}


class Socket:
    """One websocket as a server has it: what the client sends, and what it gets."""

    def __init__(self, *messages: dict[str, Any], extensions: Any = ..., **fields: Any) -> None:
        self.scope = {**Call("/ws", **fields).scope("websocket"), "subprotocols": [], "extensions": extensions}
        if extensions is ...:
            del self.scope["extensions"]
        self._incoming = [CONNECT, *messages, {"type": "websocket.disconnect", "code": 1000}]
        self.sent: list[dict[str, Any]] = []

    async def receive(self) -> Any:
        await asyncio.sleep(0)
        return self._incoming.pop(0)

    async def send(self, message: Any) -> None:
        await asyncio.sleep(0)
        assert not self.sent or self.sent[-1]["type"] != "websocket.close", "sent after the end"
        self.sent.append(dict(message))

    async def through(self, app: App) -> Socket:
        """Let an app serve it."""
        await app(self.scope, self.receive, self.send)
        return self


def limiter_at(clock: ManualClock | None = None) -> RateLimiter:
    """A limiter on a store of its own."""
    return RateLimiter(MemoryStore(clock or ManualClock()))


def echo(take: Callable[[Any], Awaitable[None]]) -> App:
    """An app that answers each message, after asking whether it may."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send(ACCEPT)
        while (message := await receive())["type"] == "websocket.receive":
            await take(scope)
            await send({"type": "websocket.send", "text": message["text"]})

    return app


def limited(app: App, limiter: RateLimiter | None = None, **options: Any) -> App:
    """The app behind the middleware."""
    return asgi.RateLimitMiddleware(app, limiter or limiter_at(), **options)
