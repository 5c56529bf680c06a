"""The start of an ASGI app: the rules of its routes are checked before the first request."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

from ..core.errors import ValidationError
from .rules import Rule

if TYPE_CHECKING:
    from .channels import Message, Receive, Scope, Send
    from .guard import Guard

FindRules: TypeAlias = Callable[[Any], Iterable[Rule]]

ROUTE_RULES: list[FindRules] = []
"""What finds the rules that the routes of an app have for themselves; a framework's module adds its own."""
_INNERMOST = "zae_limiter.innermost"
"""Where the innermost middleware of an app leaves its guard, in the scope of the app's lifespan."""


class Startup:
    """The channels of a lifespan, watched: an app whose rules contradict each other does not start."""

    def __init__(self, guard: Guard, scope: Scope, receive: Receive, send: Send) -> None:
        self._guard = guard
        self._scope = scope
        self._receive = receive
        self._send = send
        if "app" in scope:
            scope[_INNERMOST] = guard

    async def receive(self) -> Message:
        """From the server; raises `ValidationError`, and tells the server, where rules contradict each other."""
        message = await self._receive()
        if message["type"] == "lifespan.startup":
            try:
                self._check()
            except ValidationError as error:
                await self._send({"type": "lifespan.startup.failed", "message": str(error)})
                raise
        return message

    def _check(self) -> None:
        """Routes take their tokens from the innermost middleware, so the others do not look at them."""
        app = self._scope.get("app")
        if app is not None and self._scope.get(_INNERMOST) in (None, self._guard):
            for find in ROUTE_RULES:
                for rule in find(app):
                    self._guard.charge(rule)
