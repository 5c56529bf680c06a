"""The channels of ASGI: their types, and answers sent over them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from .answers import Answer

Message: TypeAlias = MutableMapping[str, Any]
Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]


async def respond(answer: Answer, send: Send, *, bodiless: bool = False, kind: str = "http.response") -> None:
    """Send an answer."""
    await send({"type": f"{kind}.start", "status": answer.status, "headers": encoded(answer.headers)})
    await send({"type": f"{kind}.body", "body": b"" if bodiless else answer.body})


def encoded(lines: Sequence[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    """Header lines as ASGI has them."""
    return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in lines]


def names_in(message: Message) -> set[str]:
    """Which headers the start of a response has."""
    return {bytes(name).decode("latin-1").lower() for name, _ in message.get("headers", ())}


def with_lines(message: Message, lines: list[tuple[bytes, bytes]]) -> Message:
    """The start of a response with more header lines."""
    return {**message, "headers": [*message.get("headers", ()), *lines]} if lines else message
