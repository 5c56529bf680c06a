"""A DynamoDB that answers by script: good answers, bad ones, half ones and none. It listens on this host only."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import ssl
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import pytest

from tests.support.modes import Mode
from tests.support.paths import CERTIFICATE
from zae_limiter.stores.dynamodb.client import Client, Options

T = TypeVar("T")


def isolate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing of the developer's own AWS setup, or of a proxy, reach a test."""
    for name in list(os.environ):
        if name.startswith("AWS_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, os.devnull)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


class Step(NamedTuple):
    """What the server does with one request."""

    data: bytes = b""
    close: bool = False
    hang: bool = False
    before: Callable[[], object] | None = None


HANG = Step(hang=True)
"""Take the request and never answer."""

CLOSE = Step(close=True)
"""Take the request and close."""


def reply(
    content: Mapping[str, Any] | bytes = b"{}",
    status: int = 200,
    *,
    date: str | None = None,
    crc: int | None = None,
    headers: tuple[str, ...] = ("x-amzn-RequestId: REQ1",),
    close: bool = False,
) -> Step:
    """A whole answer."""
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    lines = [f"HTTP/1.1 {status} Any", f"Content-Length: {len(body)}", *headers]
    lines.append(f"x-amz-crc32: {zlib.crc32(body) if crc is None else crc}")
    if date is not None:
        lines.append(f"Date: {date}")
    return Step("\r\n".join([*lines, "", ""]).encode() + body, close)


def refusal(code: str, message: str = "", status: int = 400, *, date: str | None = None, **more: Any) -> Step:
    """An error of the service's."""
    kind = f"com.amazonaws.dynamodb.v20120810#{code}"
    return reply({"__type": kind, "message": message, **more}, status, date=date)


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
FORMS = {
    "chunked": Step(CHUNKED + b'5\r\n{"a":\r\n4;x=y\r\n "b"\r\n1\r\n}\r\n0\r\n\r\n'),
    "until the end": Step(b'HTTP/1.1 200 OK\r\n\r\n{"a": "b"}', close=True),
    "http 1.0": Step(b'HTTP/1.0 200 OK\r\nContent-Length: 10\r\n\r\n{"a": "b"}', close=True),
    "after 100": Step(b'HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n{"a": "b"}'),
    "with a trailer": Step(CHUNKED + b'a\r\n{"a": "b"}\r\n0\r\nX: y\r\n\r\n'),
}
"""One content in every form that HTTP has for it."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A request that arrived."""

    line: str
    headers: dict[str, str]
    body: bytes

    @property
    def operation(self) -> str:
        """The API operation it names."""
        return self.headers.get("x-amz-target", "").partition(".")[2]


TLS_HANDSHAKE = b"\x16"


class ScriptedServer:
    """One listening port; every connection has a thread. The script is shared, an empty one answers ``{}``."""

    def __init__(self, *, tls: bool = False) -> None:
        self.script: deque[Step] = deque()
        self.seen: list[Seen] = []
        self.accepted = 0
        self.tls: ssl.SSLContext | None = None
        if tls:
            self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.tls.load_cert_chain(CERTIFICATE)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"https://localhost:{self.port}" if tls else f"http://127.0.0.1:{self.port}"
        self._over = threading.Event()
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]

    def __enter__(self) -> ScriptedServer:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.drop_connections()
        for thread in self._threads:
            thread.join()

    def drop_connections(self) -> None:
        """Hang up on everybody."""
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while not self._over.is_set():
                connection, _ = self._listener.accept()
                self.accepted += 1
                self._open.append(connection)
                thread = threading.Thread(target=self._serve, args=(connection,))
                self._threads.append(thread)
                thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            if self.tls is None or self._tunnelled(connection):
                self._answer_all(connection)
                return
            with self.tls.wrap_socket(connection, server_side=True) as secured:
                self._answer_all(secured)
                secured.unwrap()

    def _tunnelled(self, connection: socket.socket) -> bool:
        """Play the proxy when the first byte is no TLS record; True if the script refused the tunnel."""
        if connection.recv(1, socket.MSG_PEEK) != b"C":
            return False
        self._read(connection)
        step = self.script.popleft() if self.script else Step(b"HTTP/1.1 200 Connection established\r\n\r\n")
        connection.sendall(step.data)
        return step.close

    def _answer_all(self, connection: socket.socket) -> None:
        while self._read(connection):
            step = self.script.popleft() if self.script else reply()
            if step.before is not None:
                step.before()
            if step.hang:
                self._over.wait()
            connection.sendall(step.data)
            if step.close:
                return

    def _read(self, connection: socket.socket) -> bool:
        data = b""
        while b"\r\n\r\n" not in data:
            piece = connection.recv(65536)
            if not piece or (not data and piece.startswith(TLS_HANDSHAKE)):
                return False  # as HTTP servers hang up on a client that begins with a TLS handshake
            data += piece
        head, _, body = data.partition(b"\r\n\r\n")
        line, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (text.partition(":") for text in lines)}
        while len(body) < int(headers.get("content-length", 0)):
            body += connection.recv(65536)
        self.seen.append(Seen(line, headers, body))
        return True


class Driven(Mode):
    """A client in one of the modes, called as blocking code whichever it is."""

    def __init__(self, mode: str, client: Client) -> None:
        super().__init__(mode)
        self.client = client
        self.pauses: list[float] = []
        client.connections.sockets.pause = self._pause  # type: ignore[method-assign]  # tests never sleep

    async def _pause(self, seconds: float) -> None:
        self.pauses.append(seconds)

    def call(self, operation: str = "GetItem", request: Mapping[str, Any] | None = None, **options: Any) -> Any:
        """One call."""
        return self.run(self.client.call(operation, request or {"TableName": "t"}, **options))

    def close(self) -> None:
        """Close the client and the loop."""
        self.run(self.client.close())
        super().close()


@contextlib.contextmanager
def driven(
    mode: str,
    url: str,
    *,
    timer: Callable[[], float] = time.monotonic,
    chance: Callable[[], float] = random.random,
    **options: Any,
) -> Iterator[Driven]:
    """A client of the server at ``url``, in ``mode``."""
    told = Options("t", region="eu-west-1", endpoint_url=url, **options)
    subject = Driven(mode, Client(told, blocking=mode == "blocking", timer=timer, chance=chance))
    try:
        yield subject
    finally:
        subject.close()
