"""Connections that the tasks of an event loop share: requests are sent at once, their answers come in the same order.

A caller that is cancelled leaves its request to the connection, which takes the answer when it comes. A caller whose
time is up gets `Unknown`: its connection takes no new requests then, and is closed when nobody waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from redis.exceptions import InvalidResponse

from ..outcomes import NoneFree, NotSent
from ..pools import IDLE_SECONDS, OpenLink, TaskLine
from .answers import no_answer
from .resp import Reader

DEPTH = 32
"""How many calls may be under way on a connection before another one is opened."""


class Answer(asyncio.Future[list[Any]]):
    """The future of a call: the answers to its commands.

    While it is ``held`` it ignores cancellations: whoever waits for the answer is cancelled when it has come.
    """

    deadline: float
    count: int
    found: list[Any]
    held = False

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancel it unless it is held; the connection still takes the answer."""
        return not self.held and super().cancel(msg)

    def fail(self, error: Exception) -> None:
        """Raise an error in whoever waits for it."""
        if not self.done():
            self.set_exception(error)
            self.exception()  # seen, should nobody wait any more


class AsyncLink(asyncio.Protocol):
    """One connection of an event loop; redis-py has opened it and logged in."""

    def __init__(self, connection: Any, where: str) -> None:
        self.open = True
        self.used_at = time.monotonic()
        self.on_change: Callable[[AsyncLink], object] = bool  # nobody until it is in a pool
        """Called when calls have ended, or the connection."""
        self._loop = asyncio.get_running_loop()
        self._connection = connection
        self._where = where
        self._transport: asyncio.Transport = connection._writer.transport
        self._streams: asyncio.BaseProtocol = self._transport.get_protocol()
        self._transport.set_protocol(self)
        self._reader = Reader()
        self._waiting: deque[Answer] = deque()
        self._writable = True
        self._alarm: asyncio.TimerHandle | None = None
        self._rings_at = 0.0

    @property
    def busy(self) -> bool:
        """Return whether calls are under way."""
        return bool(self._waiting)

    @property
    def room(self) -> int:
        """Return how many more calls may be sent."""
        ready = self.open and self._writable and not self._transport.is_closing()
        return DEPTH - len(self._waiting) if ready else 0

    def send(self, data: bytes, count: int, deadline: float) -> Answer:
        """Send ``data``, which are ``count`` commands; an error that the server answers with is one of the answers."""
        answer = Answer(loop=self._loop)
        answer.deadline, answer.count, answer.found = deadline, count, []
        self._waiting.append(answer)
        self._transport.write(data)
        if self._alarm is None or deadline < self._rings_at:
            self._set_alarm(deadline)
        return answer

    def retire(self) -> None:
        """Take no more calls, and close the connection when nobody waits for an answer."""
        self.open = False
        if all(answer.done() for answer in self._waiting):
            self.close()

    def close(self) -> None:
        """Close the connection at once: an orderly end of TLS would wait for the other side, and the loop may end."""
        self.open = False
        if self._alarm is not None:
            self._alarm.cancel()
        with contextlib.suppress(StopIteration, RuntimeError):  # the loop may be closed already
            self._transport.abort()
            self._connection.disconnect(nowait=True).send(None)  # it does not suspend

    def data_received(self, data: bytes) -> None:
        """Give the answers to those who wait for them, in the order of the calls."""
        waiting = self._waiting
        try:
            for value in self._reader.feed(data):
                answer = waiting[0]
                answer.found.append(value)
                if len(answer.found) == answer.count:
                    waiting.popleft()
                    if not answer.done():
                        answer.set_result(answer.found)
            if not (waiting or self._reader.is_between_answers):
                self.close()  # it sent more than was asked for
        except IndexError:
            self._fail_all("it sent more than was asked for")
        except (InvalidResponse, ConnectionError) as error:
            self._fail_all(str(error))
        self.used_at = time.monotonic()
        if not (waiting or self.open):
            self.close()
        self.on_change(self)

    def eof_received(self) -> None:
        """Take no more calls: the server has closed the connection."""
        self.open = False

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the calls under way: no answer will come."""
        self._streams.connection_lost(exc)
        self._fail_all(str(exc) if exc else "the connection was closed", exc)
        self.on_change(self)

    def pause_writing(self) -> None:
        """Take no new calls while those before cannot be sent."""
        self._writable = False

    def resume_writing(self) -> None:
        """Take calls again."""
        self._writable = True
        self.on_change(self)

    def _fail_all(self, reason: str, cause: Exception | None = None) -> None:
        waiting, self._waiting = self._waiting, deque()
        for answer in waiting:
            error = no_answer(self._where, reason)
            error.__cause__ = cause
            answer.fail(error)
        self.close()

    def _set_alarm(self, deadline: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._rings_at = deadline
        self._alarm = self._loop.call_later(max(0.0, deadline - time.monotonic()), self._ring)

    def _ring(self) -> None:
        self._alarm = None
        now = time.monotonic()
        overdue = [answer for answer in self._waiting if answer.deadline <= now]
        for answer in overdue:
            answer.fail(no_answer(self._where, TimeoutError()))
        later = min((answer.deadline for answer in self._waiting if answer.deadline > now), default=None)
        if later is not None:
            self._set_alarm(later)
        if overdue:
            self.retire()
            self.on_change(self)


class SharedPool:
    """The connections of one event loop to one server; few, because calls share them."""

    def __init__(self, limit: int, where: str, open_link: OpenLink[AsyncLink]) -> None:
        self._ending = self._close_at_the_end()
        with contextlib.suppress(StopIteration):
            self._ending.__anext__().send(None)
        self._limit = limit
        self._where = where
        self._open_link = open_link
        self._links: list[AsyncLink] = []
        self._opening: asyncio.Task[AsyncLink] | None = None
        self._line = TaskLine()
        self._over = False

    def call(self, data: bytes, count: int, deadline: float) -> Awaitable[list[Any]]:
        """Send ``count`` commands and wait for all answers; raise `Unknown` if these do not come.

        Raise `NotSent` if there is no connection in time. One that is being opened is for all who wait, whatever
        becomes of the one for whom it was begun.
        """
        now = time.monotonic()
        if deadline <= now:
            raise NotSent(f"no time was left to ask {self._where}")
        link = self._find(now)
        return self._call_later(data, count, deadline) if link is None else link.send(data, count, deadline)

    def close(self) -> None:
        """Close the idle connections, and those in use when they are done."""
        self._over = True
        for link in list(self._links):
            link.retire()

    async def _close_at_the_end(self) -> AsyncGenerator[None, None]:
        """Wait for the end of the loop, which then closes its asynchronous generators."""
        try:
            yield
        finally:
            self.close()

    def _find(self, now: float) -> AsyncLink | None:
        """Return a connection that can take a call; close those that were idle for too long."""
        for link in self._links:
            if link.room:
                if now - link.used_at < IDLE_SECONDS or link.busy:
                    return link
                link.close()
        return None

    async def _call_later(self, data: bytes, count: int, deadline: float) -> list[Any]:
        """Wait for a connection, which is a new one, or one on which a call has ended; then use it."""
        started = time.monotonic()
        while (link := self._find(time.monotonic())) is None:
            left = deadline - time.monotonic()
            if left <= 0 and self._opening is None:
                raise NoneFree(self._limit, deadline - started, f" to {self._where}")
            if left <= 0:
                raise NotSent(f"no connection to {self._where} in time")
            if self._opening is None and len(self._links) < self._limit:
                self._opening = asyncio.ensure_future(self._open_link())
                self._opening.add_done_callback(self._add)
            await self._line.wait(left)
        return await link.send(data, count, deadline)

    def _add(self, opening: asyncio.Task[AsyncLink]) -> None:
        """Add the connection that was opened and wake those who wait; if it failed and there is no other, fail them."""
        self._opening = None
        error = NotSent("the event loop is ending") if opening.cancelled() else opening.exception()
        if error is None:
            link = opening.result()
            link.on_change = self._notice
            self._links.append(link)
            if self._over:
                opening.get_loop().call_later(IDLE_SECONDS, link.retire)
            self._line.wake(len(self._line.turns))
        elif not any(link.open for link in self._links):  # else those who wait get their turn when a call has ended
            self._line.fail_all(error)

    def _notice(self, link: AsyncLink) -> None:
        """Remove a connection that has ended; wake as many as there is room for, or one who opens another."""
        if self._over and not link.busy:
            link.retire()
        if not link.open and not link.busy and link in self._links:
            self._links.remove(link)
        if self._line.turns:
            self._line.wake(link.room or 1)
