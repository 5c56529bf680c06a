"""HTTP/1.1 without sockets: bytes in, values out.

Answers come with ``Content-Length``, chunked, or until the connection ends; interim 1xx answers are skipped.
"""

from __future__ import annotations

from typing import NamedTuple

_MAX_HEAD = 64 * 1024
_MAX_BODY = 32 * 1024 * 1024
_FIXED = "accept-encoding: identity\r\nuser-agent: zae-limiter\r\n"
_HEX = b"0123456789abcdefABCDEF"
_NO_BODY = frozenset((204, 304))


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


class Reader:
    """Collects the bytes of one answer."""

    __slots__ = ("_buffer", "_headers", "_length", "_status", "_tunnel", "keep_alive")

    def __init__(self, *, tunnel: bool = False) -> None:
        self._buffer = bytearray()
        self._status = 0
        self._headers: dict[str, str] = {}
        self._length: int | None = None
        self._tunnel = tunnel
        self.keep_alive = True

    def feed(self, data: bytes) -> Answer | None:
        """Take received bytes and return the answer once it is complete. No bytes mean that the connection ended."""
        self._buffer += data
        if not self._status and not self._take_head():
            if not data:
                raise Broken("the connection was closed before an answer came")
            return None
        body = self._body(ended=not data)
        if body is None:
            if not data:
                raise Broken("the connection was closed in the middle of the answer")
            return None
        return Answer(self._status, self._headers, body)

    def _take_head(self) -> bool:
        """Read status and headers, skipping any 1xx. Return False while they are incomplete."""
        while True:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                if len(self._buffer) > _MAX_HEAD:
                    raise Broken("the headers of the answer have no end")
                return False
            lines = self._buffer[:end].decode("latin-1").split("\r\n")
            del self._buffer[: end + 4]
            version, status = _status_line(lines[0])
            if status >= 200:
                break
        self._status = status
        for line in lines[1:]:
            name, _, value = line.partition(":")
            self._headers[name.lower()] = value.strip()
        connection = self._headers.get("connection", "").lower()
        self.keep_alive = "close" not in connection and (version != "HTTP/1.0" or "keep-alive" in connection)
        self._length = self._content_length()
        return True

    def _content_length(self) -> int | None:
        if self._status in _NO_BODY or (self._tunnel and self._status < 300):
            return 0
        text = self._headers.get("content-length")
        if text is None or "transfer-encoding" in self._headers:
            return None
        if not (text.isascii() and text.isdigit()) or int(text) > _MAX_BODY:
            raise Broken(f"the answer claims a length of {text[:20]!r}")
        return int(text)

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


def _status_line(line: str) -> tuple[str, int]:
    version, _, rest = line.partition(" ")
    status = rest[:3]
    if not version.startswith("HTTP/1.") or not (status.isascii() and status.isdigit()) or len(status) < 3:
        raise Broken(f"the answer is not HTTP: {line[:40]!r}")
    return version, int(status)


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
