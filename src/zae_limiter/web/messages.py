"""Limiting the messages of a websocket."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..limiter.limiter import RateLimiter
from .bound_rules import BoundRule
from .fields import Fields
from .middleware import open_limiter
from .proxies import Proxies
from .request import AsgiRequest
from .request_leases import RequestLeases, finish
from .rules import Rule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..core.limit import Limit
    from .asgi import Message, Receive, Scope
    from .rules import Cost, Key


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

    One too many raises `RateLimitExceeded`; where nobody catches it, `RateLimitMiddleware` closes the websocket with
    1013.
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
        rule = Rule(resource=resource, limits=limits, cost=cost, key=key)
        self._rule = BoundRule(rule, open_limiter(limiter, RateLimiter), Fields("none"), max_wait=max_wait)
        self._proxies = Proxies.of(proxies)

    async def take(self, websocket: Any) -> None:
        """Take the tokens of one message; ``websocket`` is its scope, or an object that has it as ``scope``.

        Raises `RateLimitExceeded` where they are not there, and `SeveralKeysError`, after the client's address was
        charged, where the websocket carries several API keys.
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
