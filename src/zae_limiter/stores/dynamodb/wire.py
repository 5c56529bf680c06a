"""HTTP/1.1 without sockets: bytes in, values out.

Answers come with ``Content-Length``, chunked, or until the connection ends; interim 1xx answers are skipped. Whatever
comes is an answer or `Broken`; its size is bounded, and so is the work: each byte is searched once and copied thrice,
however it comes in pieces.
"""

from __future__ import annotations

import math
import re
from collections.abc import Generator
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
_BROKEN_CHUNK = "the answer has a broken chunk"
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


class Reader:
    """Collects the bytes of one answer with a body of up to ``most`` bytes.

    ``tunnel`` says that it is a proxy's answer to a `connect_bytes`.
    """

    def __init__(self, tunnel: bool = False, most: int = MAX_BODY, _buffer: bytearray | None = None) -> None:
        self.keep_alive = True
        self._tunnel = tunnel
        self._most = most
        self._buffer = bytearray() if _buffer is None else _buffer
        self._start = 0
        self._limit = math.inf
        """Most bytes of an answer that does not say how long it is."""
        self._begun = self._ended = False
        self._parser = self._parse()

    def feed(self, data: bytes) -> Answer | None:
        """Take received bytes and return the answer once it is complete. No bytes mean that the connection ended."""
        self._buffer += data
        self._ended = not data
        if len(self._buffer) > self._limit:
            raise Broken("the answer has no end")
        try:
            next(self._parser)
        except StopIteration as complete:
            self.keep_alive = self.keep_alive and len(self._buffer) == self._start
            answer: Answer = complete.value
            return answer
        if not data:
            when = "in the middle of the answer" if self._begun else "before an answer came"
            raise Broken(f"the connection was closed {when}")
        return None

    def _parse(self) -> Generator[None, None, Answer]:
        """Parse the answer, skipping any 1xx; yields where more bytes are needed."""
        status, version = 0, ""
        while status < 200:
            problem = "the headers of the answer have no end"
            head = yield from self._take_until(b"\r\n\r\n", _MAX_HEAD - self._start, problem)
            first, *lines = head.decode("latin-1").split("\r\n")
            found = _STATUS_LINE.fullmatch(first)
            if found is None:
                raise Broken(f"the answer is not HTTP: {first[:40]!r}")
            status, version = int(found[2]), found[1]
        self._begun = True
        headers: dict[str, str] = {}
        for line in lines:
            name, _, value = line.partition(":")
            name = name.lower()
            if name in _FRAMING and name in headers:
                raise Broken(f"the answer has two headers {name}")
            headers[name] = value.strip()
        connection = headers.get("connection", "").lower()
        self.keep_alive = "close" not in connection and (version != "HTTP/1.0" or "keep-alive" in connection)
        body = b""
        if status not in (204, 304) and not (self._tunnel and status < 300):
            body = yield from self._take_body(headers.get("content-length"), headers.get("transfer-encoding"))
        return Answer(status, headers, body)

    def _take_body(self, length: str | None, coding: str | None) -> Generator[None, None, bytes]:
        if coding is None and length is not None:
            if not _LENGTH.fullmatch(length) or int(length) > self._most:
                raise Broken(f"the answer claims a length of {length[:20]!r}")
            return (yield from self._take(int(length)))
        self._limit = 2 * self._most + _MAX_HEAD
        if coding is not None:
            if coding.lower() != "chunked":
                raise Broken(f"the answer is encoded as {coding[:20]!r}")
            self.keep_alive = self.keep_alive and length is None  # who sends both may mean something else by them
            return (yield from self._take_chunks())
        self.keep_alive = False
        while not self._ended:
            yield
        return (yield from self._take(len(self._buffer) - self._start))

    def _take_chunks(self) -> Generator[None, None, bytes]:
        """Take a body in chunks, and its trailers. Raise `Broken` if that has more framing than content."""
        body_start, content, in_trailers = self._start, bytearray(), False
        while True:
            line = yield from self._take_until(b"\r\n", _MAX_CHUNK_HEAD, _BROKEN_CHUNK)
            if self._start - body_start - len(content) > _MAX_HEAD + len(content) // _FRAMING_SHARE:
                raise Broken("the answer has more framing than content")
            if in_trailers:
                if not line:
                    return bytes(content)
                continue
            found = _CHUNK_HEAD.fullmatch(line)
            size = -1 if found is None else int(found[1], 16)
            if not 0 <= size <= self._most:
                raise Broken(_BROKEN_CHUNK)
            in_trailers = not size
            if size:
                content += yield from self._take(size)
                if (yield from self._take(2)) != b"\r\n":
                    raise Broken(_BROKEN_CHUNK)

    def _take_until(self, mark: bytes, most: int, problem: str) -> Generator[None, None, bytes]:
        """Take up to ``most`` bytes that end before ``mark``, and that. Raise `Broken` with ``problem`` for more."""
        searched = self._start
        while (end := self._buffer.find(mark, searched)) < 0 and len(self._buffer) - self._start <= most:
            searched = max(self._start, len(self._buffer) - len(mark) + 1)
            yield
        if end < 0 or end - self._start > most:
            raise Broken(problem)
        taken = yield from self._take(end - self._start)
        self._start += len(mark)
        return taken

    def _take(self, size: int) -> Generator[None, None, bytes]:
        end = self._start + size
        while len(self._buffer) < end:
            yield
        taken = bytes(memoryview(self._buffer)[self._start : end])
        self._start = end
        return taken
