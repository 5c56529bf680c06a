"""Limiting the messages of a websocket."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from .charges import Charge
from .fields import Fields
from .modes import Waiting
from .proxies import Proxies
from .request import AsgiRequest
from .rules import Rule
from .tab import charge_look_ups

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..core.limit import Limit
    from ..limiter.lease import Lease
    from ..limiter.limiter import RateLimiter
    from .channels import Message, Receive, Scope
    from .rules import Cost, Key


class MessageLimit:
    """Takes tokens for each message that a client sends over a websocket.

    Either wrap the channel, ``WebSocket(scope, messages.watched(scope, receive), send)``, or ask per message:

    >>> from zae_limiter import Limit, RateLimiter
    >>> messages = MessageLimit(RateLimiter("memory://"), "chat", limits=[Limit.per_minute("messages", 30)])
    >>> async def chat(websocket):
    ...     text = await websocket.receive_text()
    ...     await messages.take(websocket)

    One too many raises `RateLimitExceeded`, unless it fits within ``max_wait`` seconds; where nobody catches it,
    `RateLimitMiddleware` closes the websocket with 1013.
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
        self._charge = Charge(rule, Waiting(limiter), Fields("none"), max_wait=max_wait)
        self._proxies = Proxies.of(proxies)

    async def take(self, websocket: Any) -> None:
        """Take the tokens of one message; ``websocket`` is its scope, or an object that has it as ``scope``."""
        scope: Scope = websocket if isinstance(websocket, dict) else websocket.scope
        lease, refusal = await self._charge.lease(AsgiRequest(scope, self._proxies))
        async with cast("Lease", lease):
            if refusal is not None:
                charge_look_ups(lease, refusal)
        if refusal is not None:
            raise refusal

    def watched(self, scope: Scope, receive: Receive) -> Receive:
        """The channel from the client, with each message of it limited."""

        async def watched() -> Message:
            message = await receive()
            if message["type"] == "websocket.receive":
                await self.take(scope)
            return message

        return watched
