"""HTTP/1.1 without sockets: bytes in, values out.

Answers come with ``Content-Length``, chunked, or until the connection ends; interim 1xx answers are skipped. Whatever
comes is an answer or `Broken`; its size is bounded, and so is the work: each byte is searched once and copied twice,
however it comes in pieces.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

_MAX_HEAD = 64 * 1024
MAX_BODY = 2 * 1024 * 1024
"""The bytes of an answer, unless its reader is told another number."""
_MAX_CHUNK_HEAD = 4096
_FRAMING_SHARE = 16
"""Beside `_MAX_HEAD` bytes, heads of chunks and trailers take at most one byte in as many of the content."""
_FIXED = "accept-encoding: identity\r\nuser-agent: zae-limiter\r\n"
_STATUS_LINE = re.compile(r"(HTTP/1\.[0-9]) ([0-9]{3})(?: .*)?", re.DOTALL)
_LENGTH = re.compile(r"[0-9]{1,12}")
_CHUNK_HEAD = re.compile(rb"[ \t]*([0-9a-fA-F]{1,12})[ \t]*(;.*)?", re.DOTALL)
_FRAMING = frozenset(("content-length", "transfer-encoding"))


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
    """Collects the bytes of one answer with a body of up to ``most`` bytes.

    ``tunnel`` says that it is a proxy's answer to a `connect_bytes`.
    """

    tunnel: bool = False
    most: int = MAX_BODY
    keep_alive: bool = True
    _buffer: bytearray = field(default_factory=bytearray)
    _start: int = 0
    """Everything before is done with."""
    _searched: int = 0
    """No end of a line, or of the headers, begins before."""
    _status: int = 0
    _headers: dict[str, str] = field(default_factory=dict)
    _length: int | None = None
    _chunks: _Chunks | None = None

    def feed(self, data: bytes) -> Answer | None:
        """Take received bytes and return the answer once it is complete. No bytes mean that the connection ended."""
        self._buffer += data
        if self._status or self._take_head():
            end = self._end_of_body(ended=not data) if self._length is None else self._start + self._length
            if end is not None and len(self._buffer) >= end:
                self.keep_alive = self.keep_alive and len(self._buffer) == end
                parts = [memoryview(self._buffer)[self._start : end]] if self._chunks is None else self._chunks.parts
                return Answer(self._status, self._headers, b"".join(parts))
        if not data:
            when = "in the middle of the answer" if self._status else "before an answer came"
            raise Broken(f"the connection was closed {when}")
        return None

    def _take_head(self) -> bool:
        """Read status and headers, skipping any 1xx. Return False while they are incomplete."""
        while True:
            end = self._buffer.find(b"\r\n\r\n", self._searched)
            if (len(self._buffer) if end < 0 else end) > _MAX_HEAD:
                raise Broken("the headers of the answer have no end")
            if end < 0:
                self._searched = max(self._start, len(self._buffer) - 3)
                return False
            first, *lines = self._buffer[self._start : end].decode("latin-1").split("\r\n")
            self._start = self._searched = end + 4
            found = _STATUS_LINE.fullmatch(first)
            if found is None:
                raise Broken(f"the answer is not HTTP: {first[:40]!r}")
            self._status = int(found[2])
            if self._status >= 200:
                break
            self._status = 0
        for line in lines:
            name, _, value = line.partition(":")
            name = name.lower()
            if name in _FRAMING and name in self._headers:
                raise Broken(f"the answer has two headers {name}")
            self._headers[name] = value.strip()
        connection = self._headers.get("connection", "").lower()
        self.keep_alive = "close" not in connection and (found[1] != "HTTP/1.0" or "keep-alive" in connection)
        self._find_length()
        return True

    def _find_length(self) -> None:
        """Find out where the body ends, from the headers."""
        length, coding = self._headers.get("content-length"), self._headers.get("transfer-encoding")
        if self._status in (204, 304) or (self.tunnel and self._status < 300):
            self._length = 0
        elif coding is not None:
            if coding.lower() != "chunked":
                raise Broken(f"the answer is encoded as {coding[:20]!r}")
            self.keep_alive = self.keep_alive and length is None  # who sends both may mean something else by them
            self._chunks = _Chunks(self._buffer, self._start, self.most)
        elif length is not None:
            if not _LENGTH.fullmatch(length) or int(length) > self.most:
                raise Broken(f"the answer claims a length of {length[:20]!r}")
            self._length = int(length)
        else:
            self.keep_alive = False

    def _end_of_body(self, ended: bool) -> int | None:
        """Return where a body of unknown length ends, or None while that has not come."""
        if len(self._buffer) > 2 * self.most + _MAX_HEAD:
            raise Broken("the answer has no end")
        if self._chunks is None:
            return len(self._buffer) if ended else None
        return self._chunks.start if self._chunks.take() else None


class _Chunks:
    """The chunks of a body in a buffer that grows: those that were complete, and where the next one begins."""

    __slots__ = ("_buffer", "_content", "_first", "_framing", "_in_trailers", "_most", "_searched", "parts", "start")

    def __init__(self, buffer: bytearray, start: int, most: int) -> None:
        self.parts: list[bytes] = []
        self.start = start
        """Everything before is done with; while a chunk is awaited, its end."""
        self._buffer = buffer
        self._most = most
        self._searched = start
        self._first: int | None = None
        """The first byte of the chunk that is awaited, None while its head is."""
        self._in_trailers = False
        self._framing = self._content = 0

    def take(self) -> bool:
        """Take what is complete. Return whether that is all, with ``start`` after it."""
        while not self._in_trailers:
            if self._first is None and not self._take_head():
                return False
            if self._first is not None and not self._take_content(self._first):
                return False
        while (line := self._next_line()) is not None:
            if not line:
                return True
        return False

    def _take_head(self) -> bool:
        """Read the head of a chunk. Return False while it is incomplete."""
        head = self._next_line()
        if head is None:
            return False
        found = _CHUNK_HEAD.fullmatch(head)
        size = -1 if found is None else int(found[1], 16)
        if not 0 <= size <= self._most:
            raise Broken("the answer has a broken chunk")
        if size:
            self._first, self.start = self.start, self.start + size + 2
        else:
            self._in_trailers = True
        return True

    def _take_content(self, first: int) -> bool:
        """Take the content of a chunk. Return False while it is incomplete."""
        end = self.start
        if len(self._buffer) < end:
            return False
        if self._buffer[end - 2 : end] != b"\r\n":
            raise Broken("the answer has a broken chunk")
        self.parts.append(bytes(memoryview(self._buffer)[first : end - 2]))
        self._content += end - 2 - first
        self._framing += 2
        self._first, self._searched = None, end
        return True

    def _next_line(self) -> bytes | None:
        """Take the next line, without its end, or None if it is incomplete."""
        end = self._buffer.find(b"\r\n", self._searched)
        if (len(self._buffer) if end < 0 else end) - self.start > _MAX_CHUNK_HEAD:
            raise Broken("the answer has a broken chunk")
        if end < 0:
            self._searched = max(self.start, len(self._buffer) - 1)
            return None
        self._framing += end - self.start + 2
        if self._framing > _MAX_HEAD + self._content // _FRAMING_SHARE:
            raise Broken("the answer has more framing than content")
        line = bytes(self._buffer[self.start : end])
        self.start = self._searched = end + 2
        return line
