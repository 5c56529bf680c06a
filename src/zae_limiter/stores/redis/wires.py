"""The two wires: all that differs between blocking and async calls, over redis-py's connections.

A call is sent once: redis-py's own retries, which would send a command again that may have been carried out, are part
of its clients and not of its connections. Every timeout raises `TimeoutError`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from inspect import signature
from typing import TYPE_CHECKING, Any, Protocol

import redis
import redis.asyncio
from redis.connection import AbstractConnection

from ..turns import LoopTurns, ThreadTurns, Turns

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from .settings import Address

_FRESH_SECONDS = 0.25
"""A connection used so recently is taken to be alive."""

PROTOCOL = 2

_ANY_BYTES = "surrogateescape"


class Link(Protocol):
    """One connection, ready for commands."""

    idle_since: float

    def usable(self) -> bool:
        """Whether the other side is still there."""
        ...

    def close(self) -> object:
        """Let go of it, without waiting."""
        ...

    async def call(self, commands: Sequence[Sequence[Any]], timeout: float) -> list[Any]:
        """Send commands, all at once; an error that the server answers with takes the place of the answer."""
        ...


class Wire(Protocol):
    """What a client needs of the network."""

    def home(self) -> object:
        """What connections belong to: the running loop, or the one home of all threads."""
        ...

    def turns(self, count: int) -> Turns:
        """``count`` turns for the present home."""
        ...

    def attend(self, close: Callable[[], None]) -> object:
        """Have ``close`` called when the present home ends."""
        ...

    async def open(self, address: Address, login: dict[str, Any], timeout: float) -> Link:
        """Connect, encrypt, log in and choose the database."""
        ...


def packed(command: Sequence[Any]) -> bytes:
    """A command as the protocol has it; redis-py's own way takes four times as long."""
    parts = [f"*{len(command)}\r\n"]
    for argument in command:
        text = argument.decode(errors=_ANY_BYTES) if type(argument) is bytes else str(argument)
        size = len(text) if text.isascii() else len(text.encode(errors=_ANY_BYTES))
        parts.append(f"${size}\r\n{text}\r\n")
    return "".join(parts).encode(errors=_ANY_BYTES)


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

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.idle_since = 0.0

    def usable(self) -> bool:
        """Whether the other side is still there: an idle connection has nothing to read but its end."""
        if time.monotonic() - self.idle_since < _FRESH_SECONDS:
            return True
        try:
            return not self._connection.can_read(timeout=0)
        except redis.ConnectionError:
            return False

    def close(self) -> None:
        """Close the socket."""
        self._connection.disconnect()

    async def call(self, commands: Sequence[Sequence[Any]], timeout: float) -> list[Any]:
        """Send commands and wait for all answers."""
        connection = self._connection
        answers: list[Any] = []
        try:
            deadline = time.monotonic() + timeout
            connection.send_packed_command([packed(command) for command in commands])
            for _ in commands:
                try:
                    answers.append(_read(connection, max(0.001, deadline - time.monotonic())))
                except redis.ResponseError as error:
                    answers.append(error)
        except redis.TimeoutError as error:
            raise TimeoutError(str(error)) from error
        return answers


def _read(connection: Any, timeout: float) -> Any:
    """The next answer; before version 8 redis-py waited for it in a call of its own."""
    if _WAITS_FOR_ANSWERS:
        return connection.read_response(timeout=timeout)
    if not connection.can_read(timeout=timeout):
        raise TimeoutError
    return connection.read_response()


_WAITS_FOR_ANSWERS = "timeout" in signature(redis.Connection.read_response).parameters


class BlockingWire:
    """Blocks the calling thread; all threads share the connections."""

    def home(self) -> object:
        """All threads share the connections."""
        return BlockingWire

    def turns(self, count: int) -> Turns:
        """``count`` turns for all threads."""
        return ThreadTurns(count)

    def attend(self, close: Callable[[], None]) -> object:
        """Threads have no end."""
        return None

    async def open(self, address: Address, login: dict[str, Any], timeout: float) -> Link:
        """Connect and log in; what is read later in pieces has as long for each of them."""
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


class AsyncLink:
    """A connection that suspends the running task; it belongs to one loop."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.idle_since = 0.0

    def usable(self) -> bool:
        """Whether the other side is still there; the loop has noticed if it is not."""
        reader = self._connection._reader
        return reader is not None and not reader.at_eof()

    def close(self) -> None:
        """Close the stream at once: an orderly end of TLS would wait for the other side, and the loop may end first."""
        writer = self._connection._writer
        with contextlib.suppress(StopIteration, RuntimeError):
            if writer is not None:
                writer.transport.abort()
            self._connection.disconnect(nowait=True).send(None)  # it does not suspend

    async def call(self, commands: Sequence[Sequence[Any]], timeout: float) -> list[Any]:
        """Send commands and wait for all answers."""
        connection = self._connection
        answers: list[Any] = []
        async with asyncio.timeout(timeout):
            await connection.send_packed_command([packed(command) for command in commands])
            for _ in commands:
                try:
                    answers.append(await connection.read_response())
                except redis.ResponseError as error:
                    answers.append(error)
        return answers


class AsyncWire:
    """Suspends the running task; serves several loops at once."""

    def home(self) -> object:
        """A connection belongs to the loop that opened it."""
        return asyncio.get_running_loop()

    def turns(self, count: int) -> Turns:
        """``count`` turns for the tasks of the running loop."""
        return LoopTurns(count)

    def attend(self, close: Callable[[], None]) -> object:
        """A loop closes the asynchronous generators that were begun in it, as the last thing before it ends."""
        waiting = _until_the_end(close)
        with contextlib.suppress(StopIteration):
            waiting.__anext__().send(None)
        return waiting

    async def open(self, address: Address, login: dict[str, Any], timeout: float) -> Link:
        """Connect and log in. The time of a call is kept around it, which spares redis-py a task for each."""
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
