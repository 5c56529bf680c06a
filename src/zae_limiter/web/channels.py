"""The channels of ASGI: their types, and answers sent over them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

from .fields import omit_present

if TYPE_CHECKING:
    from .answers import Answer

Message: TypeAlias = MutableMapping[str, Any]
Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]


async def send_answer(answer: Answer, send: Send, *, bodiless: bool = False, kind: str = "http.response") -> None:
    """Send an answer, without its body where the request was ``HEAD``; ``kind`` is how its messages are called."""
    await send({"type": f"{kind}.start", "status": answer.status, "headers": encode_lines(answer.headers)})
    await send({"type": f"{kind}.body", "body": b"" if bodiless else answer.body})


def encode_lines(lines: Sequence[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    """Return header lines as ASGI has them."""
    return [(_encode_name(name), value.encode("latin-1")) for name, value in lines]


@lru_cache(256)
def _encode_name(name: str) -> bytes:
    return name.lower().encode("latin-1")


def add_lines(message: Message, lines: list[tuple[str, str]]) -> Message:
    """Return the start of a response with more header lines; fields that it has already stay as they are."""
    if not lines:
        return message
    headers = [*message.get("headers", ())]
    more = encode_lines(lines)
    names = dict(more)
    for name, _ in headers:
        if bytes(name).lower() in names:
            present = {bytes(name).lower().decode("latin-1") for name, _ in headers}
            more = encode_lines(omit_present(lines, present))
            break
    return {**message, "headers": headers + more}
