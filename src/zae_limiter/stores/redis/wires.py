"""Wires: opening connections and talking over them; all that differs between blocking and async calls.

redis-py connects, encrypts and logs in; commands and answers go without it from then on, each command once. The pools
say how a call failed: `NotSent` that the server cannot have seen the command, `Unknown` that it may have been carried
out.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from inspect import signature
from queue import Empty
from typing import TYPE_CHECKING, Any, TypeAlias

import redis
import redis.asyncio
from redis.connection import AbstractConnection
from redis.exceptions import RedisError

from ..outcomes import NotSent
from ..pools import OpenLink, Pool, ThreadSlots
from .answers import no_answer
from .pipeline import AsyncLink, SharedPool
from .resp import Reader

if TYPE_CHECKING:
    from .settings import Address

_PIECE = 1 << 16
_PROBED = 64

PROTOCOL = 2

_ANONYMOUS: dict[str, Any] = (
    {"driver_info": None}
    if "driver_info" in signature(AbstractConnection).parameters
    else {"lib_name": None, "lib_version": None}
)
"""Spares every connection two commands that only tell the name of the library."""


class BlockingLink:
    """A connection that blocks the calling thread."""

    fresh_seconds = 0.25

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._socket: socket.socket = connection._sock
        self._timeout = 0.0
        self._reader = Reader()
        self.idle_since = time.monotonic()

    def usable(self) -> bool:
        """Return whether there is nothing to read: on an idle connection that would be its end."""
        try:
            return not self._connection.can_read(timeout=0)
        except redis.ConnectionError:
            return False

    def close(self) -> None:
        """Close the socket."""
        self._connection.disconnect()

    def call(self, data: bytes, count: int, deadline: float) -> list[Any]:
        """Send ``data``, which are ``count`` commands, and wait for all answers, until ``deadline``."""
        answers: list[Any] = []
        while len(answers) < count:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            if not left <= self._timeout <= left * 1.01:  # to set it is a system call, which most calls spare
                self._timeout = left * 1.005
                self._socket.settimeout(self._timeout)
            if data:
                self._socket.sendall(data)
                data = b""
                continue
            received = self._socket.recv(_PIECE)
            if not received:
                raise ConnectionError("the connection was closed")
            answers += self._reader.feed(received)
        if len(answers) > count or self._reader.buffer or self._reader.arrays:  # not `is_between_answers`
            raise ConnectionError("it sent more than was asked for")
        self.idle_since = time.monotonic()
        return answers


class BlockingPool(Pool[BlockingLink]):
    """The connections of all threads, each used by one call at a time."""

    def __init__(self, limit: int, where: str, open_link: OpenLink[BlockingLink]) -> None:
        super().__init__(ThreadSlots(limit, f" to {where}"))
        self._where = where
        self._open_link = open_link

    async def call(self, data: bytes, count: int, deadline: float) -> list[Any]:
        """Send ``count`` commands at once and return their answers; an error of the server takes the place of one.

        Raise `NotSent` if there is no connection in time, `Unknown` if there is no answer; the connection is closed
        then.
        """
        try:
            self.slots.take_now()
        except Empty:
            await self.slots.take(deadline - time.monotonic())
        try:
            try:
                link = self._idle.pop()
            except IndexError:
                link = await self._open_link(deadline)
            now = time.monotonic()
            if now - link.idle_since >= link.fresh_seconds:
                link, now = self.reuse(link) or await self._open_link(deadline), time.monotonic()
            if deadline <= now:
                self._idle.append(link)
                raise NotSent(f"no time was left to ask {self._where}")
            try:
                answers = link.call(data, count, deadline)
            except BaseException as error:
                link.close()
                if isinstance(error, RedisError | OSError):
                    raise no_answer(self._where, error) from error
                raise
            self._idle.append(link)
            return answers
        finally:
            if self._over:
                self.close()
            self.slots.give_back()


class BlockingWire:
    """Blocks the calling thread; all threads share the connections."""

    per_loop = False
    new_pool = BlockingPool

    async def open(self, address: Address, login: dict[str, Any], timeout: float) -> BlockingLink:
        """Connect and log in."""
        connection = _new_connection(redis, address, login, timeout, socket_timeout=timeout)
        try:
            connection.connect()
        except BaseException:
            connection.disconnect()
            raise
        return BlockingLink(connection)

    async def ask(self, link: BlockingLink, data: bytes, deadline: float) -> Any:
        """Send one command over a connection that nobody else uses, and return its answer."""
        return link.call(data, 1, deadline)[0]

    async def probe(self, address: Address, data: bytes, timeout: float) -> bytes:
        """Send bytes over a plain connection and return the first that come back, none if there are none in time."""
        try:
            with socket.create_connection(address, timeout) as sock:
                sock.settimeout(timeout)
                sock.sendall(data)
                return sock.recv(_PROBED)
        except OSError:
            return b""


class AsyncWire:
    """Suspends the running task; serves several loops at once."""

    per_loop = True
    new_pool = SharedPool

    async def open(self, address: Address, login: dict[str, Any], timeout: float) -> AsyncLink:
        connection = _new_connection(redis.asyncio, address, login, timeout, socket_timeout=None)
        try:
            async with asyncio.timeout(timeout):
                await connection.connect()
        except BaseException:
            with contextlib.suppress(RuntimeError):  # its event loop is closed
                await connection.disconnect(nowait=True)
            raise
        return AsyncLink(connection, str(address))

    async def ask(self, link: AsyncLink, data: bytes, deadline: float) -> Any:
        (answer,) = await link.send(data, 1, deadline)
        return answer

    async def probe(self, address: Address, data: bytes, timeout: float) -> bytes:
        try:
            async with asyncio.timeout(timeout):
                reader, writer = await asyncio.open_connection(*address)
                try:
                    writer.write(data)
                    return await reader.read(_PROBED)
                finally:
                    writer.transport.abort()
        except OSError:
            return b""


Wire: TypeAlias = BlockingWire | AsyncWire


def _new_connection(module: Any, address: Address, login: dict[str, Any], timeout: float, **options: Any) -> Any:
    if address.port:
        kind = module.SSLConnection if "ssl_cert_reqs" in login else module.Connection
        options |= {"host": address.host, "port": address.port, "socket_keepalive": True}
    else:
        kind = module.UnixDomainSocketConnection
        options["path"] = address.host
    return kind(**options, **login, **_ANONYMOUS, protocol=PROTOCOL, socket_connect_timeout=timeout)
