"""The wire between a client and an engine, recorded and scriptable.

A proxy on 127.0.0.1 that keeps connections alive on both sides, notes every request with its answer, and does to the
next ones what a test asks for. What a client has been answered has been noted before.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace
from email.utils import formatdate
from typing import Any, TypeVar
from urllib.parse import urlsplit

from tests.support.aws.http1 import Message, receive
from tests.support.deadlines import PATIENCE

T = TypeVar("T")
Forward = Callable[[], Awaitable[Message]]
Fault = Callable[[Forward], Awaitable[Message | None]]
"""What happens instead of plain forwarding; None closes the connection without an answer."""

READS = frozenset({"GetItem", "BatchGetItem", "Query", "Scan"})
"""Seconds after which a fault that waits for a test goes on by itself, so that a failing test ends."""

JSON = "application/x-amz-json-1.0"


@dataclass(frozen=True, slots=True)
class Call:
    """One request and what became of it."""

    operation: str
    request: dict[str, Any]
    status: int
    answer: dict[str, Any]
    delivered: bool
    connection: int
    arrived: float
    answered: float
    sent: int
    received: int

    @property
    def reads(self) -> bool:
        """Whether it changes nothing."""
        return self.operation in READS

    def overlaps(self, other: Call) -> bool:
        """Whether both were under way at the same time."""
        return self.arrived < other.answered and other.arrived < self.answered


class Hold:
    """Answers kept back: the engine has answered, the client does not know yet."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._released = asyncio.Event()
        self.reached = threading.Event()

    def release(self) -> None:
        """Let the answers through."""
        self._loop.call_soon_threadsafe(self._released.set)

    async def __call__(self, forward: Forward) -> Message:
        answer = await forward()
        self.reached.set()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._released.wait(), PATIENCE)
        return answer


class Together:
    """Requests kept back until so many have arrived: one that waits for another's answer first comes too late.

    ``met`` is false as soon as one had to go on alone.
    """

    def __init__(self, number: int) -> None:
        self._missing = number
        self._all = asyncio.Event()
        self.met = True

    async def __call__(self, forward: Forward) -> Message:
        self._missing -= 1
        if self._missing == 0:
            self._all.set()
        try:
            await asyncio.wait_for(self._all.wait(), PATIENCE)
        except TimeoutError:
            self.met = False
        return await forward()


async def _lose(forward: Forward) -> None:
    await forward()


async def _drop(forward: Forward) -> None:
    return None


@dataclass(slots=True)
class _Scripted:
    fault: Fault
    operation: str | None
    times: int


class Wire:
    """A recording proxy; a context manager. Faults are used up in the order in which they were asked for."""

    def __init__(self, engine: str) -> None:
        parts = urlsplit(engine)
        self._engine = (parts.hostname or "127.0.0.1", parts.port or (443 if parts.scheme == "https" else 80))
        self._secure = parts.scheme == "https"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="wire", daemon=True)
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._number = 0
        self._script: deque[_Scripted] = deque()
        self._calls: list[Call] = []
        self._port = 0
        self.date: Callable[[], float] | None = None
        """The engine's clock as the client is to see it, in seconds since the epoch; None leaves ``Date`` alone."""
        self.page: int | None = None
        """The most items on a page of a query, whatever the client asks for, as when items are large."""

    def __enter__(self) -> Wire:
        self._thread.start()
        self.up()
        return self

    def __exit__(self, *error: object) -> None:
        self.down()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def url(self) -> str:
        """Where clients connect to; it stays the same through `down` and `up`."""
        return f"http://127.0.0.1:{self._port}"

    # What was seen

    def mark(self) -> int:
        """The place in the record that `calls` can start from."""
        return len(self._calls)

    def calls(self, since: int = 0) -> list[Call]:
        """What was requested since a mark, in the order of arrival."""
        return sorted(self._calls[since:], key=lambda call: call.arrived)

    def operations(self, since: int = 0) -> list[str]:
        """The names of the operations since a mark."""
        return [call.operation for call in self.calls(since)]

    # What shall happen

    def lose(self, *, operation: str | None = None, times: int = 1) -> None:
        """The engine carries out the next requests, the client never hears of it."""
        self._ask(_lose, operation, times)

    def drop(self, *, operation: str | None = None, times: int = 1) -> None:
        """The next requests end with the connection, and the engine never sees them."""
        self._ask(_drop, operation, times)

    def hold(self, *, operation: str | None = None, times: int = 1) -> Hold:
        """The answers to the next requests wait until released."""
        hold = self._run(self._made(lambda: Hold(self._loop)))
        self._ask(hold, operation, times)
        return hold

    def together(self, number: int, *, operation: str | None = None) -> Together:
        """The next requests are forwarded only when so many are under way; ``met`` tells whether that happened."""
        meeting = self._run(self._made(lambda: Together(number)))
        self._ask(meeting, operation, number)
        return meeting

    def instead(self, status: int, code: str, *, operation: str | None = None, times: int = 1) -> None:
        """The next requests are answered by an error of DynamoDB and never reach the engine."""
        body = json.dumps({"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": "scripted"}).encode()
        answer = Message(
            f"HTTP/1.1 {status} Scripted", (("Content-Type", JSON), ("Date", formatdate(usegmt=True))), body
        )

        async def answered(forward: Forward) -> Message:
            return answer

        self._ask(answered, operation, times)

    def throttle(self, *, operation: str | None = None, times: int = 1) -> None:
        """The next requests are refused for their rate."""
        self.instead(400, "ProvisionedThroughputExceededException", operation=operation, times=times)

    def shift(self, seconds: float) -> None:
        """The engine's clock is ahead by so much, as far as the client can see."""
        self.date = lambda: time.time() + seconds

    def heal(self) -> None:
        """Forget what was asked for and not yet used."""
        self._script.clear()

    def down(self) -> None:
        """Refuse connections and end those that are open."""
        self._run(self._close())

    def up(self) -> None:
        """Accept connections (again)."""
        self._run(self._listen())

    # How it works

    def _ask(self, fault: Fault, operation: str | None, times: int) -> None:
        self._script.append(_Scripted(fault, operation, times))

    def _next(self, operation: str) -> Fault | None:
        for scripted in self._script:
            if scripted.operation in (None, operation):
                scripted.times -= 1
                if scripted.times <= 0:
                    self._script.remove(scripted)
                return scripted.fault
        return None

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)

    async def _made(self, make: Callable[[], T]) -> T:
        return make()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        """Ends what is open, and what is half accepted too."""
        if self._server is not None:
            for listener in self._server.sockets:
                self._loop.remove_reader(listener.fileno())
            for _ in range(3):  # asyncio never closes a connection that was accepted and finds its server closed
                await asyncio.sleep(0)
            self._server.close()
            self._server = None
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in self._connections:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
        for _ in range(2):  # transports take their leave in the loop's next turns
            await asyncio.sleep(0)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._server is None:
            writer.transport.abort()
            return
        self._number += 1
        task = asyncio.ensure_future(self._serve(reader, writer, self._number))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        task.add_done_callback(lambda _: writer.transport.abort())  # also one that was cancelled before it began

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        upstream = _Upstream(*self._engine, secure=self._secure)
        try:
            while (request := await receive(reader)) is not None:
                answer = await self._pass_on(request, upstream, number)
                if answer is None:
                    break
                writer.write(answer.encoded())
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass  # a side went away: so does the connection
        finally:
            await upstream.close()
            await _closed(writer)

    def _paged(self, operation: str, request: Message) -> Message:
        if self.page is None or operation != "Query":
            return request
        wish = _parsed(request)
        wish["Limit"] = min(self.page, wish.get("Limit", self.page))
        return replace(request, body=json.dumps(wish).encode())

    async def _pass_on(self, request: Message, upstream: _Upstream, number: int) -> Message | None:
        arrived = time.monotonic()
        operation = (request.header("X-Amz-Target") or "").rpartition(".")[2]
        if not operation:  # of another service than DynamoDB, which is neither recorded nor disturbed
            return await upstream.exchange(request)
        seen: list[Message] = []

        async def forward() -> Message:
            seen.append(await upstream.exchange(self._paged(operation, request)))
            return seen[0]

        fault = self._next(operation)
        answer = await forward() if fault is None else await fault(forward)
        if answer is not None and self.date is not None:
            answer = answer.having("Date", formatdate(self.date(), usegmt=True))
        known = answer or (seen[0] if seen else None)
        self._calls.append(
            Call(
                operation=operation,
                request=_parsed(request),
                status=known.status if known else 0,
                answer=_parsed(known) if known else {},
                delivered=answer is not None,
                connection=number,
                arrived=arrived,
                answered=time.monotonic(),
                sent=len(request.encoded()),
                received=len(answer.encoded()) if answer else 0,
            )
        )
        return answer


class _Upstream:
    """The engine's side of a client's connection, opened when it is first needed."""

    def __init__(self, host: str, port: int, *, secure: bool) -> None:
        self._address = (host, port)
        self._secure = secure
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def exchange(self, request: Message) -> Message:
        """Send a request, wait for its answer."""
        if self._streams is None or self._streams[0].at_eof():
            await self.close()
            self._streams = await asyncio.open_connection(*self._address, ssl=True if self._secure else None)
        reader, writer = self._streams
        writer.write(request.encoded())
        answer = await receive(reader)
        if answer is None:
            raise ConnectionResetError("the engine closed the connection")
        return answer

    async def close(self) -> None:
        """Give the connection up."""
        if self._streams is not None:
            await _closed(self._streams[1])
            self._streams = None


async def _closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


def _parsed(message: Message) -> dict[str, Any]:
    try:
        found = json.loads(message.body or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
