"""An event loop whose time jumps, and a store with latency in it: many processes on one bucket in a second."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import selectors
from collections import Counter
from typing import TYPE_CHECKING, Any, TypeVar

from zae_limiter.records.algebra import Committed, Conflict, Image, Key, Page, Query, Write
from zae_limiter.stores.memory import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from zae_limiter import RateLimiter

T = TypeVar("T")

EPOCH_MS = 1_794_000_000_000


class _Jump(selectors.SelectSelector):
    """Waits for nothing: adds the time it should have waited."""

    elapsed = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.elapsed += max(0.0, timeout or 0.0)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in which sleeping takes no time."""

    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        return self._jump.elapsed

    def now_ms(self) -> int:
        """The loop's time as a clock for stores."""
        return EPOCH_MS + int(self.time() * 1000)


def run_virtually(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)


def put_apart(limiter: RateLimiter) -> RateLimiter:
    """Return a limiter as in a process of its own: what others give back does not wake those who wait here."""
    limiter._lines.occupied = set()
    return limiter


class Distant:
    """One process's connection to a shared store: every call takes a random time each way."""

    def __init__(self, shared: MemoryStore, rng: random.Random, one_way_ms: tuple[float, float] = (1, 8)) -> None:
        self._shared = shared
        self._rng = rng
        self._one_way_ms = one_way_ms
        self.capabilities = dataclasses.replace(shared.capabilities, instant=False)
        self.clock = shared.clock
        self.calls: Counter[str] = Counter()
        self.charged: list[Write] = []

    async def _travel(self) -> None:
        await asyncio.sleep(self._rng.uniform(*self._one_way_ms) / 1000)

    async def read(self, keys: Sequence[Key], *, timeout: float | None = None) -> list[Image | None]:
        self.calls["read"] += 1
        await self._travel()
        images = await self._shared.read(keys)
        await self._travel()
        return images

    async def commit(self, writes: Sequence[Write], *, timeout: float | None = None) -> Committed | Conflict:
        self.calls["commit"] += 1
        await self._travel()
        outcome = await self._shared.commit(writes)
        if isinstance(outcome, Committed):
            self.charged.extend(writes)
        await self._travel()
        return outcome

    async def query(self, query: Query, *, timeout: float | None = None) -> Page:
        self.calls["query"] += 1
        return await self._shared.query(query)

    async def close(self) -> None:
        pass
