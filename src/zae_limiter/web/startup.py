"""The start of an ASGI app: the rules of its routes are checked before the first request."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

from ..core.errors import ValidationError
from .rules import Rule

if TYPE_CHECKING:
    from .channels import Message, Receive, Scope, Send
    from .request_limiter import RequestLimiter

FindRules: TypeAlias = Callable[[Any], Iterable[Rule]]

ROUTE_RULES: list[FindRules] = []
"""Functions that find the rules of an app's routes; a framework's module adds its own."""
_INNERMOST = "zae_limiter.innermost"
"""The key of the innermost middleware's `RequestLimiter`, in the scope of the app's lifespan."""


class Startup:
    """The channels of a lifespan, watched: an app whose rules contradict each other does not start."""

    def __init__(self, limiter: RequestLimiter, scope: Scope, receive: Receive, send: Send) -> None:
        self._limiter = limiter
        self._scope = scope
        self._receive = receive
        self._send = send
        if "app" in scope:
            scope[_INNERMOST] = limiter

    async def receive(self) -> Message:
        """Receive from the server. Raises `ValidationError`, and tells the server, where rules are in conflict."""
        message = await self._receive()
        if message["type"] == "lifespan.startup":
            try:
                self._check()
            except ValidationError as error:
                await self._send({"type": "lifespan.startup.failed", "message": str(error)})
                raise
        return message

    def _check(self) -> None:
        """Check the rules of routes; only the innermost middleware does, as routes take their tokens from it."""
        app = self._scope.get("app")
        if app is not None and self._scope.get(_INNERMOST) in (None, self._limiter):
            for find in ROUTE_RULES:
                for rule in find(app):
                    self._limiter.bind(rule)
