"""The channels of ASGI: their types, and answers sent over them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

from .fields import unsaid

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
    return [(_name(name), value.encode("latin-1")) for name, value in lines]


@lru_cache(256)
def _name(name: str) -> bytes:
    return name.lower().encode("latin-1")


def with_lines(message: Message, lines: list[tuple[str, str]]) -> Message:
    """The start of a response with more header lines; what it says already stays said."""
    if not lines:
        return message
    headers = message.get("headers", ())
    more = encoded(lines)
    present = {bytes(name).lower() for name, _ in headers}
    if not present.isdisjoint({name for name, _ in more}):
        more = encoded(unsaid(lines, {name.decode("latin-1") for name in present}))
    return {**message, "headers": [*headers, *more]}
