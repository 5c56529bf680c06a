"""As much of HTTP/1.1 as a proxy between a DynamoDB client and an engine needs: heads, lengths, chunks."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Message:
    """A request or an answer: its first line, its headers in order, its body whole."""

    start: str
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def header(self, name: str) -> str | None:
        """The value of the first header of that name, in any case."""
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)

    def having(self, name: str, value: str) -> Message:
        """The same with one header replaced or added."""
        kept = tuple(pair for pair in self.headers if pair[0].lower() != name.lower())
        return replace(self, headers=(*kept, (name, value)))

    @property
    def status(self) -> int:
        """The status code of an answer."""
        return int(self.start.split(" ", 2)[1])

    def encoded(self) -> bytes:
        """The bytes on the wire, with the body's length stated."""
        framed = tuple(pair for pair in self.headers if pair[0].lower() not in {"content-length", "transfer-encoding"})
        lines = [self.start, *(f"{name}: {value}" for name, value in framed), f"Content-Length: {len(self.body)}"]
        return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + self.body


async def receive(reader: asyncio.StreamReader) -> Message | None:
    """The next message of a connection, None when the other side is done."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    start, *lines = head.decode("latin-1").strip().split("\r\n")
    headers = tuple((name.strip(), value.strip()) for name, _, value in (line.partition(":") for line in lines))
    bare = Message(start, headers, b"")
    if (bare.header("Transfer-Encoding") or "").lower() == "chunked":
        return replace(bare, body=await _chunks(reader))
    return replace(bare, body=await reader.readexactly(int(bare.header("Content-Length") or 0)))


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        body += (await reader.readexactly(size + 2))[:-2]
    await reader.readuntil(b"\r\n")
    return body
