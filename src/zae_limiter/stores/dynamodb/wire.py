"""HTTP/1.1 without sockets: bytes in, values out.

Answers come with ``Content-Length``, chunked, or until the connection ends; interim 1xx answers are skipped.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

_MAX_HEAD = 64 * 1024
_MAX_BODY = 32 * 1024 * 1024
_FIXED = "accept-encoding: identity\r\nuser-agent: zae-limiter\r\n"
_STATUS_LINE = re.compile(r"(HTTP/1\.[^ ]*) ([0-9]{3})")
_HEX = b"0123456789abcdefABCDEF"


class Broken(Exception):
    """The received bytes are not a complete HTTP answer."""


class Answer(NamedTuple):
    """One answer. Header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


def request_bytes(path: str, headers: dict[str, str], body: bytes) -> bytes:
    """Return a POST in one piece, so that it is sent at once."""
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    head = f"POST {path} HTTP/1.1\r\n{lines}{_FIXED}content-length: {len(body)}\r\n\r\n"
    return head.encode("latin-1") + body


def connect_bytes(host: str, port: int, authorization: str | None) -> bytes:
    """Return the request that asks a proxy for a tunnel."""
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    credentials = "" if authorization is None else f"proxy-authorization: {authorization}\r\n"
    return f"CONNECT {where} HTTP/1.1\r\nhost: {where}\r\n{credentials}\r\n".encode("latin-1")


@dataclass(slots=True)
class Reader:
    """Collects the bytes of one answer; ``tunnel`` says that it is a proxy's answer to a `connect_bytes`."""

    tunnel: bool = False
    keep_alive: bool = True
    _buffer: bytearray = field(default_factory=bytearray)
    _status: int = 0
    _headers: dict[str, str] = field(default_factory=dict)
    _length: int | None = None

    def feed(self, data: bytes) -> Answer | None:
        """Take received bytes and return the answer once it is complete. No bytes mean that the connection ended."""
        self._buffer += data
        if self._status or self._take_head():
            body = self._body(ended=not data)
            if body is not None:
                return Answer(self._status, self._headers, body)
        if not data:
            when = "in the middle of the answer" if self._status else "before an answer came"
            raise Broken(f"the connection was closed {when}")
        return None

    def _take_head(self) -> bool:
        """Read status and headers, skipping any 1xx. Return False while they are incomplete."""
        while True:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                if len(self._buffer) > _MAX_HEAD:
                    raise Broken("the headers of the answer have no end")
                return False
            first, *lines = self._buffer[:end].decode("latin-1").split("\r\n")
            del self._buffer[: end + 4]
            found = _STATUS_LINE.match(first)
            if found is None:
                raise Broken(f"the answer is not HTTP: {first[:40]!r}")
            status = int(found[2])
            if status >= 200:
                break
        self._status = status
        for line in lines:
            name, _, value = line.partition(":")
            self._headers[name.lower()] = value.strip()
        connection = self._headers.get("connection", "").lower()
        self.keep_alive = "close" not in connection and (found[1] != "HTTP/1.0" or "keep-alive" in connection)
        length = self._headers.get("content-length")
        if status in (204, 304) or (self.tunnel and status < 300):
            self._length = 0
        elif length is not None and "transfer-encoding" not in self._headers:
            if not (length.isascii() and length.isdigit()) or int(length) > _MAX_BODY:
                raise Broken(f"the answer claims a length of {length[:20]!r}")
            self._length = int(length)
        return True

    def _body(self, ended: bool) -> bytes | None:
        buffer = self._buffer
        if self._length is not None:
            if len(buffer) < self._length:
                return None
            self.keep_alive = self.keep_alive and len(buffer) == self._length
            return bytes(buffer[: self._length])
        if len(buffer) > 2 * _MAX_BODY:
            raise Broken("the answer has no end")
        if self._headers.get("transfer-encoding", "").lower() == "chunked":
            return _join_chunks(buffer)
        self.keep_alive = False
        return bytes(buffer) if ended else None


def _join_chunks(buffer: bytearray) -> bytes | None:
    """Return the joined chunks, or None while some are missing."""
    parts: list[bytes] = []
    start = 0
    while True:
        end = buffer.find(b"\r\n", start)
        if end < 0:
            return None
        digits = buffer[start:end].partition(b";")[0].strip()
        if not digits or digits.strip(_HEX):
            raise Broken("the answer has a broken chunk")
        size = int(digits, 16)
        if size == 0:
            return b"".join(parts) if buffer.find(b"\r\n\r\n", end) >= 0 else None
        start = end + 2 + size + 2
        if start > len(buffer):
            return None
        parts.append(bytes(buffer[end + 2 : start - 2]))
