"""The handshake of a websocket: what a refusal has to be depends on how far it has come."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .channels import respond

if TYPE_CHECKING:
    from .answers import Answer
    from .channels import Message, Receive, Scope, Send

_RESPONSE = "websocket.http.response"
_REFUSED = (1008, "refused")
_FINAL = {
    400: (1008, "several API keys"),
    413: (1009, "more than a limit ever holds"),
    414: (1008, "the path is too long"),
}
"""Code and reason of a refusal that no waiting helps, by the status of its answer."""


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
        """From the client."""
        message = await self._receive()
        self.over = self.over or message["type"] == "websocket.disconnect"
        return message

    async def send(self, message: Message) -> None:
        """To the client."""
        self._accepted = self._accepted or message["type"] == "websocket.accept"
        self.over = self.over or message["type"] in ("websocket.close", f"{_RESPONSE}.start")
        await self._send(message)

    async def refuse(self, answer: Answer, scope: Scope) -> None:
        """Say no: with the answer itself where nothing was accepted yet and the server can send it."""
        if self._accepted or _RESPONSE not in (scope.get("extensions") or ()):
            await self._send(_closing(answer))
        else:
            await respond(answer, self._send, kind=_RESPONSE)


def _closing(answer: Answer) -> Message:
    """The end of a websocket: 1013 is to try again later, 1009 that it is too much for ever, 1008 any other refusal."""
    wait = dict(answer.headers).get("Retry-After")
    code, reason = _FINAL.get(answer.status, _REFUSED) if wait is None else (1013, f"retry in {wait} s")
    return {"type": "websocket.close", "code": code, "reason": reason}
