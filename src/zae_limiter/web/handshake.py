"""The handshake of a websocket: how it is refused depends on how far it has come."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .channels import send_answer

if TYPE_CHECKING:
    from .answers import Answer
    from .channels import Message, Receive, Scope, Send

_RESPONSE = "websocket.http.response"
_REFUSED = (1008, "refused")
_FINAL = {
    400: (1008, "several API keys"),
    413: (1009, "costs more than the maximum"),
    414: (1008, "the path is too long"),
}
"""Code and reason of a refusal that retrying does not help, by the status of its answer."""


class Handshake:
    """The two channels of a websocket, watched: has it been accepted, is it over."""

    __slots__ = ("_accepted", "_receive", "_send", "over")

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._accepted = False
        self.over = False

    @property
    def untouched(self) -> bool:
        """Whether nothing has been answered and nobody has hung up."""
        return not (self._accepted or self.over)

    async def receive(self) -> Message:
        """Receive from the client."""
        message = await self._receive()
        self.over = self.over or message["type"] == "websocket.disconnect"
        return message

    async def send(self, message: Message) -> None:
        """Send to the client."""
        self._accepted = self._accepted or message["type"] == "websocket.accept"
        self.over = self.over or message["type"] in ("websocket.close", f"{_RESPONSE}.start")
        await self._send(message)

    async def refuse(self, answer: Answer, scope: Scope) -> None:
        """Refuse the websocket: with the answer itself where nothing was accepted yet and the server can send it."""
        if self._accepted or _RESPONSE not in (scope.get("extensions") or ()):
            await self._send(_make_close(answer))
        else:
            await send_answer(answer, self._send, kind=_RESPONSE)


def _make_close(answer: Answer) -> Message:
    """Return the message that closes: 1013 to try again later, 1009 where retrying does not help, 1008 for the rest."""
    wait = dict(answer.headers).get("Retry-After")
    code, reason = _FINAL.get(answer.status, _REFUSED) if wait is None else (1013, f"retry in {wait} s")
    return {"type": "websocket.close", "code": code, "reason": reason}
