"""An HTTP/1.1 client on a bare socket: it sends what it is told, reads piece by piece and can hang up at any point."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from tests.support.deadlines import PATIENCE

PIECE = 65_536


class Truncated(Exception):
    """The connection ended before the answer did."""


@dataclass(frozen=True, slots=True)
class Response:
    """An answer; ``headers`` as they came, names in lower case."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes = b""

    def every(self, name: str) -> list[str]:
        """All values of a header, one per line of it."""
        return [value for found, value in self.headers if found == name]

    def header(self, name: str) -> str | None:
        """The value of a header that comes at most once."""
        found = self.every(name)
        assert len(found) <= 1, f"{name} comes {len(found)} times"
        return found[0] if found else None

    def json(self) -> Any:
        """The body, decoded."""
        return json.loads(self.body)


class Connection:
    """One connection, used for one request after the other.

    After `request`, `head` reads up to the end of the headers and `piece` what has come of the body; `response` is both
    to the end.
    """

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), PATIENCE)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._unread = bytearray()
        self._method = ""
        self._left: int | None = 0
        self._chunked = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self._socket.sendall(data)

    def request(
        self, method: str, path: str, client: str, *, headers: Iterable[tuple[str, str]] = (), body: bytes | None = None
    ) -> None:
        """Send a request, its body included; without one it is up to the caller to send it."""
        lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"X-Client: {client}"]
        lines += [f"{name}: {value}" for name, value in headers]
        if body is not None:
            lines.append(f"Content-Length: {len(body)}")
        self._method = method
        self.send("\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b""))

    def head(self) -> Response:
        """The next status line and headers; a 1xx answer is one of its own."""
        status = int(self._line().split(" ", 2)[1])
        headers = []
        while line := self._line():
            name, _, value = line.partition(":")
            headers.append((name.lower(), value.strip()))
        found = Response(status, tuple(headers))
        self._chunked = (found.header("transfer-encoding") or "").lower() == "chunked"
        length = found.header("content-length")
        self._left = None if length is None else int(length)
        if self._method == "HEAD" or status < 200 or status in (204, 304):
            self._chunked, self._left = False, 0
        return found

    def piece(self) -> bytes:
        """A chunk, or what has arrived of a body without chunks; empty at its end."""
        if self._chunked:
            return self._chunk()
        if self._left == 0:
            return b""
        if not self._unread and not self._more():
            if self._left is None:
                return b""
            raise Truncated(f"{self._left} bytes of the body are missing")
        found = self._taken(min(len(self._unread), len(self._unread) if self._left is None else self._left))
        if self._left is not None:
            self._left -= len(found)
        return found

    def rest(self) -> bytes:
        """The body to its end."""
        return b"".join(iter(self.piece, b""))

    def response(self) -> Response:
        """The next final answer, whole."""
        head = self.head()
        while head.status < 200:
            head = self.head()
        return Response(head.status, head.headers, self.rest())

    def ask(
        self, method: str, path: str, client: str, *, headers: Iterable[tuple[str, str]] = (), body: bytes | None = None
    ) -> Response:
        """A request and its whole answer."""
        self.request(method, path, client, headers=headers, body=body)
        return self.response()

    def ended(self) -> bool:
        """Whether the server has closed the connection, and nothing more has come: waits for either."""
        with contextlib.suppress(ConnectionResetError):
            return not self._unread and not self._more()
        return True

    def close(self) -> None:
        """Leave politely: the server reads the end of the stream."""
        self._socket.close()

    def reset(self) -> None:
        """Leave at once: the server gets a reset."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def _chunk(self) -> bytes:
        size = int(self._line().partition(";")[0], 16)
        while len(self._unread) < size + 2 and size:
            self._need()
        if size:
            found = self._taken(size)
            self._taken(2)
            return found
        while self._line():  # trailers
            pass
        self._chunked, self._left = False, 0
        return b""

    def _line(self) -> str:
        while (end := self._unread.find(b"\r\n")) < 0:
            self._need()
        line = self._taken(end + 2)[:-2]
        return line.decode("latin-1")

    def _need(self) -> None:
        if not self._more():
            raise Truncated(f"the connection ended after {bytes(self._unread)!r}")

    def _more(self) -> bool:
        data = self._socket.recv(PIECE)
        self._unread += data
        return bool(data)

    def _taken(self, count: int) -> bytes:
        found = bytes(self._unread[:count])
        del self._unread[:count]
        return found
