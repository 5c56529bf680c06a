"""A store that fails on purpose, and counts what it is asked."""

from __future__ import annotations

import dataclasses
import enum
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from ..core.errors import RateLimiterUnavailable
from ..core.values import BackendCapabilities
from ..records.algebra import Committed, Conflict, Image, Key, Page, Query, Write
from ..stores.port import Store

if TYPE_CHECKING:
    from ..clock import Clock


T = TypeVar("T")


class Fault(enum.Enum):
    """The kinds of failure of one call."""

    FAIL_BEFORE = enum.auto()
    """The store cannot be reached: nothing happens, the caller is told at once."""
    FAIL_AFTER = enum.auto()
    """The call takes effect, then the connection breaks."""
    DROP_ANSWER = enum.auto()
    """The call takes effect, but the answer never comes: the caller hears of it when its time is up."""
    DELAY = enum.auto()
    """The answer is late; past the caller's timeout it never comes."""
    REFUSE = enum.auto()
    """A commit is answered with a conflict although its guards hold; nothing happens."""


class Planned(NamedTuple):
    """A fault waiting for its call."""

    fault: Fault
    verb: str | None
    seconds: float


class FaultyStore:
    """Wraps a store. Without faults it only counts; `inject` plans what goes wrong with the next calls.

    ``suspend`` makes every call give way to the event loop before and after it acts, as a network would, so
    that a cancellation can hit on either side of the commit.
    """

    def __init__(self, inner: Store, *, suspend: bool = False, free_atomic_commit: bool | None = None) -> None:
        self.inner = inner
        self.calls: Counter[str] = Counter()
        self.writes: int = 0
        self._suspend = suspend
        self._atomic = free_atomic_commit
        self._planned: deque[Planned] = deque()

    @property
    def capabilities(self) -> BackendCapabilities:
        """Those of the store inside, as far as they are not overridden."""
        own = self.inner.capabilities
        atomic = own.free_atomic_commit if self._atomic is None else self._atomic
        return dataclasses.replace(own, instant=own.instant and not self._suspend, free_atomic_commit=atomic)

    @property
    def clock(self) -> Clock:
        """That of the store inside."""
        return self.inner.clock

    def inject(self, fault: Fault, *, verb: str | None = None, times: int = 1, seconds: float = 0.0) -> None:
        """Plan a fault for the next ``times`` calls (of ``verb`` only: ``read``, ``commit`` or ``query``)."""
        self._planned.extend(Planned(fault, verb, seconds) for _ in range(times))

    def heal(self) -> None:
        """Forget all planned faults."""
        self._planned.clear()

    async def read(self, keys: Sequence[Key], *, timeout: float | None = None) -> list[Image | None]:
        """Read from the store inside, or fail as planned."""
        return await self._call("read", lambda: self.inner.read(keys, timeout=timeout), timeout)

    async def commit(self, writes: Sequence[Write], *, timeout: float | None = None) -> Committed | Conflict:
        """Commit to the store inside, or fail as planned."""
        self.writes += len(writes)
        if self._next_is(Fault.REFUSE, "commit"):
            self._planned.popleft()
            self.calls["commit"] += 1
            keys = [write.key for write in writes]
            return Conflict(dict(zip(keys, await self.inner.read(keys), strict=True)))
        return await self._call("commit", lambda: self.inner.commit(writes, timeout=timeout), timeout)

    async def query(self, query: Query, *, timeout: float | None = None) -> Page:
        """Query the store inside, or fail as planned."""
        return await self._call("query", lambda: self.inner.query(query, timeout=timeout), timeout)

    async def close(self) -> None:
        """Close the store inside."""
        await self.inner.close()

    def _next_is(self, fault: Fault, verb: str) -> bool:
        return bool(self._planned) and self._planned[0].fault is fault and self._planned[0].verb in (None, verb)

    async def _call(self, verb: str, act: Callable[[], Awaitable[T]], timeout: float | None) -> T:
        self.calls[verb] += 1
        await self._yield_thread()
        planned: Planned | None = None
        if self._planned and self._planned[0].verb in (None, verb):
            planned = self._planned.popleft()
        if planned is not None and planned.fault is Fault.FAIL_BEFORE:
            raise RateLimiterUnavailable(f"{verb}: the store cannot be reached (injected)")
        if planned is not None and planned.fault is Fault.DELAY:
            await self._delay(verb, planned.seconds, timeout)
        result = await act()
        await self._yield_thread()
        if planned is not None and planned.fault is Fault.DROP_ANSWER:
            await self._delay(verb, float("inf"), timeout if timeout is not None else 1.0)
        if planned is not None and planned.fault is Fault.FAIL_AFTER:
            raise RateLimiterUnavailable(f"{verb}: the connection broke after the call (injected)")
        return result

    async def _delay(self, verb: str, seconds: float, timeout: float | None) -> None:
        late = timeout is not None and seconds > timeout
        await self._pause(timeout if late and timeout is not None else seconds)
        if late:
            raise RateLimiterUnavailable(f"{verb}: no answer within {timeout:g} s (injected)")

    async def _pause(self, seconds: float) -> None:
        pause = getattr(self.clock, "pause", None)
        if pause is not None:
            await pause(seconds)
        elif self._suspend:
            import asyncio

            await asyncio.sleep(seconds)
        else:
            import time

            time.sleep(seconds)  # noqa: ASYNC251  # in blocking mode the thread is what waits

    async def _yield_thread(self) -> None:
        if self._suspend:
            import asyncio

            await asyncio.sleep(0)
