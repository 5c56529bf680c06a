"""HTTP/1.1 without sockets: bytes in, values out.

Answers come with ``Content-Length``, chunked, or until the connection ends; interim 1xx answers are skipped. Whatever
comes is an answer or `Broken`; its size is bounded, and so is the work: each byte is searched once and copied thrice,
however it comes in pieces.
"""

from __future__ import annotations

import math
import re
from collections.abc import Generator
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
    _limit: float = math.inf
    """Most bytes of an answer that does not say how long it is."""
    _begun: bool = False
    _ended: bool = False
    _parser: Generator[None, None, Answer] | None = None

    def feed(self, data: bytes) -> Answer | None:
        """Take received bytes and return the answer once it is complete. No bytes mean that the connection ended."""
        self._buffer += data
        self._ended = not data
        if len(self._buffer) > self._limit:
            raise Broken("the answer has no end")
        parser = self._parser = self._parser or self._parse()
        try:
            next(parser)
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
            end = self._buffer.find(b"\r\n\r\n", self._start, _MAX_HEAD)
            if end < 0:
                problem = "the headers of the answer have no end"
                end = yield from self._find(b"\r\n\r\n", _MAX_HEAD - self._start, problem)
            first, *lines = self._buffer[self._start : end].decode("latin-1").split("\r\n")
            self._start = end + 4
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
        length, coding = headers.get("content-length"), headers.get("transfer-encoding")
        if status in (204, 304) or (self.tunnel and status < 300):
            length, coding = "0", None
        if length is None or coding is not None:
            return Answer(status, headers, (yield from self._take_unsized(length, coding)))
        if not _LENGTH.fullmatch(length) or int(length) > self.most:
            raise Broken(f"the answer claims a length of {length[:20]!r}")
        end = self._start + int(length)
        while len(self._buffer) < end:
            yield
        body, self._start = bytes(memoryview(self._buffer)[self._start : end]), end
        return Answer(status, headers, body)

    def _take_unsized(self, length: str | None, coding: str | None) -> Generator[None, None, bytes]:
        """Take a body in chunks, or up to the end of the connection."""
        self._limit = 2 * self.most + _MAX_HEAD
        if coding is None:
            while not self._ended:
                yield
            self.keep_alive = False
            return bytes(memoryview(self._buffer)[self._start :])
        if coding.lower() != "chunked":
            raise Broken(f"the answer is encoded as {coding[:20]!r}")
        self.keep_alive = self.keep_alive and length is None  # who sends both may mean something else by them
        body_start, content, in_trailers = self._start, bytearray(), False
        while True:
            first, end = self._start, (yield from self._find(b"\r\n", _MAX_CHUNK_HEAD, _BROKEN_CHUNK))
            self._start = end + 2
            if self._start - body_start - len(content) > _MAX_HEAD + len(content) // _FRAMING_SHARE:
                raise Broken("the answer has more framing than content")
            if in_trailers:
                if first == end:
                    return bytes(content)
                continue
            found = _CHUNK_HEAD.fullmatch(bytes(memoryview(self._buffer)[first:end]))
            size = -1 if found is None else int(found[1], 16)
            if not 0 <= size <= self.most:
                raise Broken(_BROKEN_CHUNK)
            in_trailers = not size
            if size:
                content += yield from self._take_chunk(self._start + size)

    def _take_chunk(self, end: int) -> Generator[None, None, bytes]:
        while len(self._buffer) < end + 2:
            yield
        if self._buffer[end : end + 2] != b"\r\n":
            raise Broken(_BROKEN_CHUNK)
        chunk, self._start = bytes(memoryview(self._buffer)[self._start : end]), end + 2
        return chunk

    def _find(self, mark: bytes, most: int, problem: str) -> Generator[None, None, int]:
        """Return where ``mark`` begins. Raise `Broken` with ``problem`` if that is more than ``most`` bytes away."""
        searched = self._start
        while (end := self._buffer.find(mark, searched)) < 0 and len(self._buffer) - self._start <= most:
            searched = max(self._start, len(self._buffer) - len(mark) + 1)
            yield
        if end < 0 or end - self._start > most:
            raise Broken(problem)
        return end
