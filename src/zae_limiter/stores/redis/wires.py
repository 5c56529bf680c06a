"""The two wires: all that differs between blocking and async calls.

redis-py connects, encrypts and logs in; commands and answers go without it from then on, each command once. Every
timeout raises `TimeoutError`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from inspect import signature
from typing import TYPE_CHECKING, Any, TypeAlias

import redis
import redis.asyncio
from redis.connection import AbstractConnection

from ..connection_slots import ThreadSlots
from ..outcomes import NoneFree, NotSent
from ..pools import Pool
from .pipeline import AsyncLink, SharedPool
from .resp import Reader

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from ..pools import OpenLink
    from .settings import Address

_PIECE = 1 << 16

PROTOCOL = 2


_ANONYMOUS: dict[str, Any] = (
    {"driver_info": None}
    if "driver_info" in signature(AbstractConnection).parameters
    else {"lib_name": None, "lib_version": None}
)
"""Spares every connection two commands that only tell the name of the library."""


def _arguments(address: Address, login: dict[str, Any], timeout: float) -> dict[str, Any]:
    place = {"host": address.host, "port": address.port, "socket_keepalive": True}
    return {
        **(place if address.port else {"path": address.host}),
        **login,
        **_ANONYMOUS,
        "protocol": PROTOCOL,
        "socket_connect_timeout": timeout,
    }


class BlockingLink:
    """A connection that blocks the calling thread."""

    fresh_seconds = 0.25

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._socket: socket.socket = connection._sock
        self._reader = Reader()
        self.idle_since = 0.0

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
        """Send ``data``, which are ``count`` commands, and wait for all answers."""
        self._limit_wait(deadline)
        self._socket.sendall(data)
        answers: list[Any] = []
        while len(answers) < count:
            self._limit_wait(deadline)
            received = self._socket.recv(_PIECE)
            if not received:
                raise ConnectionError("the connection was closed")
            answers += self._reader.feed(received)
        return answers

    def _limit_wait(self, deadline: float) -> None:
        """Have the socket wait until ``deadline`` at most, give or take a hundredth. Raise `TimeoutError` after it.

        To set the timeout is a system call, which most calls spare because they have about as many seconds.
        """
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        if not left <= (self._socket.gettimeout() or 0.0) <= left * 1.01:
            self._socket.settimeout(left * 1.005)


class BlockingPool(Pool[BlockingLink]):
    """The connections of all threads, each used by one call at a time."""

    def __init__(self, limit: int, where: str, open_link: OpenLink[BlockingLink]) -> None:
        super().__init__(ThreadSlots(limit))
        self._limit = limit
        self._where = where
        self._open_link = open_link

    async def call(self, data: bytes, count: int, deadline: float) -> list[Any]:
        """Send ``count`` commands at once and return their answers; an error of the server takes the place of one.

        Raise `NotSent` if there is no connection in time, `TimeoutError` if there is no answer in time, and `OSError`
        or `RedisError` if there will be none; the connection is closed then.
        """
        if not self.slots.take_now():
            await self._wait_for_slot(deadline)
        try:
            link = self.reuse() or await self._open_link(deadline)
            if deadline <= time.monotonic():
                self.keep(link)
                raise NotSent(f"no time was left to ask {self._where}")
            try:
                answers = link.call(data, count, deadline)
            except BaseException:
                link.close()
                raise
            self.keep(link)
            return answers
        finally:
            self.slots.give_back()

    async def _wait_for_slot(self, deadline: float) -> None:
        left = deadline - time.monotonic()
        try:
            await self.slots.take(left)
        except TimeoutError as error:
            raise NoneFree(self._limit, left, f" to {self._where}") from error


class BlockingWire:
    """Blocks the calling thread; all threads share the connections."""

    per_loop = False

    def on_scope_end(self, close: Callable[[], None]) -> object:
        """Do nothing: threads share the connections to the end."""
        return None

    def new_pool(self, limit: int, where: str, open_link: OpenLink[BlockingLink]) -> BlockingPool:
        """Return a pool for all threads."""
        return BlockingPool(limit, where, open_link)

    async def open(self, address: Address, login: dict[str, Any], timeout: float) -> BlockingLink:
        """Connect and log in; commands are sent and answers read without redis-py from then on."""
        kinds = redis.Connection, redis.SSLConnection, redis.UnixDomainSocketConnection
        connection = _kind(kinds, address, login)(**_arguments(address, login, timeout), socket_timeout=timeout)
        try:
            connection.connect()
        except redis.TimeoutError as error:
            connection.disconnect()
            raise TimeoutError(str(error)) from error
        except BaseException:
            connection.disconnect()
            raise
        return BlockingLink(connection)


class AsyncWire:
    """Suspends the running task; serves several loops at once."""

    per_loop = True

    def new_pool(self, limit: int, where: str, open_link: OpenLink[AsyncLink]) -> SharedPool:
        """Return a pool for the tasks of the running loop."""
        return SharedPool(limit, where, open_link)

    def on_scope_end(self, close: Callable[[], None]) -> object:
        """Have ``close`` called when the loop ends: it then closes its asynchronous generators."""
        waiting = _until_the_end(close)
        with contextlib.suppress(StopIteration):
            waiting.__anext__().send(None)
        return waiting

    async def open(self, address: Address, login: dict[str, Any], timeout: float) -> AsyncLink:
        """Connect and log in; answers are read without redis-py from then on."""
        module = redis.asyncio
        kinds = module.Connection, module.SSLConnection, module.UnixDomainSocketConnection
        connection = _kind(kinds, address, login)(**_arguments(address, login, timeout), socket_timeout=None)
        try:
            async with asyncio.timeout(timeout):
                await connection.connect()
        except redis.TimeoutError as error:
            raise TimeoutError(str(error)) from error
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        return AsyncLink(connection)


Wire: TypeAlias = BlockingWire | AsyncWire
CallPool: TypeAlias = BlockingPool | SharedPool


async def _until_the_end(close: Callable[[], None]) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        close()


def _kind(kinds: tuple[Any, Any, Any], address: Address, login: dict[str, Any]) -> Any:
    plain, encrypted, local = kinds
    if not address.port:
        return local
    return encrypted if "ssl_cert_reqs" in login else plain
