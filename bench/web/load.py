"""The load: keep-alive connections to a server process, each asking again as soon as it was answered."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
REQUEST = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: */*\r\nX-Real-IP: 8.8.8.8\r\n\r\n"
"""As behind a proxy: asgi-ratelimit takes no loopback address for a client."""
TIMEOUT_S = 30.0
STEADY = {"MALLOC_MMAP_THRESHOLD_": str(2**24), "MALLOC_TRIM_THRESHOLD_": str(2**26)}
"""For glibc: asyncio reads into 256 KiB, and it is luck whether the heap has room for that or pages are mapped and
unmapped for every request, which costs more than a limiter does."""
_LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]+)", re.IGNORECASE)


class Server:
    """One app in a process of its own, for the duration of a ``with`` block."""

    def __init__(self, kind: str, app: str, limit: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.web.serving", kind, app, str(limit)],
            cwd=ROOT,
            env=os.environ | STEADY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def told(self) -> int:
        """The next number it says: its port, then answers."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("a server gave up; its words are above")
        return int(line)

    def cpu_ns(self) -> int:
        """Return the CPU time it has used so far."""
        assert self._process.stdin is not None
        print(file=self._process.stdin, flush=True)
        return self.told()

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._process.communicate(timeout=TIMEOUT_S)  # closes its standard input
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()


class Round(NamedTuple):
    """Cost and answers of some requests."""

    cpu_us: float
    """The server's, per request."""
    wall_us: float
    statuses: Counter[int]


class Clients:
    """Some connections to one server, for the duration of a ``with`` block."""

    def __init__(self, runner: asyncio.Runner, server: Server, number: int) -> None:
        self._runner = runner
        self._server = server
        self._number = number
        self._connections: list[Connection] = []

    def ask(self, requests: int) -> Round:
        """Send so many requests, shared among the connections, one at a time each."""
        return self._runner.run(self._ask(requests))

    async def _connect(self, port: int) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(self._number):
            _, connection = await loop.create_connection(Connection, "127.0.0.1", port)
            self._connections.append(connection)

    async def _ask(self, requests: int) -> Round:
        statuses: Counter[int] = Counter()
        shares = [len(range(first, requests, self._number)) for first in range(self._number)]
        cpu, wall = self._server.cpu_ns(), time.perf_counter_ns()
        pending = [each.ask(share, statuses) for each, share in zip(self._connections, shares, strict=True)]
        async with asyncio.timeout(TIMEOUT_S):
            await asyncio.gather(*pending)
        wall = time.perf_counter_ns() - wall
        cpu = self._server.cpu_ns() - cpu
        return Round(cpu / requests / 1000, wall / requests / 1000, statuses)

    async def _hang_up(self) -> None:
        for connection in self._connections:
            connection.hang_up()
        await asyncio.sleep(0)  # the loop closes the sockets in its next turn

    def __enter__(self) -> Clients:
        self._runner.run(self._connect(self._server.told()))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._runner.run(self._hang_up())


class Connection(asyncio.Protocol):
    """One connection that has one request under way at most."""

    def __init__(self) -> None:
        self._buffer = b""
        self._left = 0
        self._done: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The server has accepted."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def ask(self, requests: int, statuses: Counter[int]) -> asyncio.Future[None]:
        """Send so many requests, one after the other; done when the last is answered."""
        self._left, self._statuses = requests, statuses
        self._done = asyncio.get_running_loop().create_future()
        self._next()
        return self._done

    def hang_up(self) -> None:
        """Close it."""
        self._transport.close()

    def _next(self) -> None:
        if self._left:
            self._left -= 1
            self._transport.write(REQUEST)
        elif self._done is not None:
            self._done.set_result(None)

    def data_received(self, data: bytes) -> None:
        """A part of an answer, or all of it."""
        self._buffer += data
        if _is_whole(self._buffer):
            self._statuses[int(self._buffer[9:12])] += 1
            self._buffer = b""
            self._next()

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail all pending requests: no answer will come."""
        if self._done is not None and not self._done.done():
            self._done.set_exception(exc or ConnectionError("the server has hung up"))


def _is_whole(answer: bytes) -> bool:
    head, end, body = answer.partition(b"\r\n\r\n")
    if not end:
        return False
    length = _LENGTH.search(head)
    return len(body) >= int(length[1]) if length else body.endswith(b"0\r\n\r\n")
