"""The two sockets: all that differs between blocking and async calls.

Everything above is written once, as coroutines over these verbs; the blocking ones never suspend. A deadline is an
instant of `time.monotonic`. The sockets are plain ones that belong to us and not to an event loop, so a loop that is
closed leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeAlias, TypeVar

from ..pools import LoopSlots, ThreadSlots

T = TypeVar("T")

_PIECE = 256 * 1024


def seconds_left(deadline: float) -> float:
    """Return the seconds until an instant of `time.monotonic`. Raise `TimeoutError` if it is over."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


class BlockingSockets:
    """Blocks the calling thread."""

    per_loop = False
    slots = ThreadSlots

    async def resolve(self, host: str, port: int, deadline: float) -> list[Any]:
        """Return the addresses of a host as `getaddrinfo` does; the system's resolver has timeouts of its own."""
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)

    async def connect(self, sock: socket.socket, address: Any, deadline: float) -> None:
        """Connect a new socket."""
        sock.settimeout(seconds_left(deadline))
        sock.connect(address)

    async def send(self, sock: socket.socket, data: bytes, deadline: float) -> None:
        """Send everything."""
        sock.settimeout(seconds_left(deadline))
        sock.sendall(data)

    async def receive(self, sock: socket.socket, deadline: float) -> bytes:
        """Return the next bytes."""
        sock.settimeout(seconds_left(deadline))
        return sock.recv(_PIECE)

    async def yield_thread(self) -> None:
        """Do nothing: other threads run as well."""

    async def pause(self, seconds: float) -> None:
        """Sleep."""
        time.sleep(seconds)  # noqa: ASYNC251  # blocking is what this socket is for

    async def outcome(self, run: Future[T], timeout: float) -> T:
        """Return what a run in another thread returns; raise `TimeoutError` if that takes longer."""
        return run.result(max(0.0, timeout))


class AsyncSockets:
    """Suspends the running task; serves several loops at once."""

    per_loop = True
    slots = LoopSlots

    async def resolve(self, host: str, port: int, deadline: float) -> list[Any]:
        return await _within(asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM), deadline)

    async def connect(self, sock: socket.socket, address: Any, deadline: float) -> None:
        sock.setblocking(False)
        await _within(asyncio.get_running_loop().sock_connect(sock, address), deadline)

    async def send(self, sock: socket.socket, data: bytes, deadline: float) -> None:
        """Send everything; what fits into the socket's buffer leaves at once."""
        seconds_left(deadline)
        try:
            sent = sock.send(data)
        except BlockingIOError:
            sent = 0
        if sent < len(data):
            await _within(asyncio.get_running_loop().sock_sendall(sock, memoryview(data)[sent:]), deadline)

    async def receive(self, sock: socket.socket, deadline: float) -> bytes:
        """Return the next bytes. A timer closes the connection: cheaper than a cancellation, and never lost."""
        loop = asyncio.get_running_loop()
        alarm = loop.call_later(seconds_left(deadline), _hang_up, sock)
        try:
            data = await loop.sock_recv(sock, _PIECE)
        finally:
            alarm.cancel()
        if not data and loop.time() >= alarm.when():
            raise TimeoutError
        return data

    async def yield_thread(self) -> None:
        """Let the other tasks of the loop run: receiving what is there already does not suspend."""
        await asyncio.sleep(0)

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def outcome(self, run: Future[T], timeout: float) -> T:
        waiting = asyncio.wrap_future(run)
        try:
            await asyncio.wait((waiting,), timeout=max(0.0, timeout))
        finally:
            waiting.cancel()  # the run itself goes on
        if waiting.cancelled():
            raise TimeoutError
        return waiting.result()


async def _within(work: Coroutine[Any, Any, T], deadline: float) -> T:
    """Wait for ``work``; raise `TimeoutError` when the time is up. The running task is not cancelled for that."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait((task,), timeout=deadline - time.monotonic())
        if not task.done():
            task.cancel()
            await asyncio.wait((task,))  # until the loop has let go of the socket
    finally:
        task.cancel()
    if task.cancelled():
        raise TimeoutError
    return task.result()


def _hang_up(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


Sockets: TypeAlias = BlockingSockets | AsyncSockets
