"""Accuracy of a limit across regions: the real limiter on stores that replicate as DynamoDB global tables do.

A region writes its own copy of a record and sends it to the others, which take it, whole, if it was written later than
theirs: the last writer wins. ``python -m bench.regions`` prints how many requests are admitted under one limit.
"""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from zae_limiter import Limit, RateLimitExceeded, SyncRateLimiter
from zae_limiter.records.algebra import Committed, Conflict, Write
from zae_limiter.stores.memory import MemoryStore
from zae_limiter.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zae_limiter.records.algebra import Image, Key, Page, Query

CAPACITY = 600
"""Requests of an hour under the limit."""
SECONDS = 60
STEP_MS = 50


@dataclass
class Region:
    """A store with a copy of all records, and the limiter of the region's servers."""

    place: int
    network: Network

    def __post_init__(self) -> None:
        self.memory = MemoryStore(self.network.clock)
        self.capabilities = self.memory.capabilities
        self.clock = self.memory.clock
        self.written: dict[Key, tuple[int, int]] = {}
        """When, and where, each copy here was written."""
        self.limiter = SyncRateLimiter(self)
        self.admitted = 0

    async def read(self, keys: Sequence[Key], *, timeout: float | None = None) -> list[Image | None]:
        """Return the copies of this region."""
        return await self.memory.read(keys, timeout=timeout)

    async def query(self, query: Query, *, timeout: float | None = None) -> Page:
        """Return a page of the copies of this region."""
        return await self.memory.query(query, timeout=timeout)

    async def commit(self, writes: Sequence[Write], *, timeout: float | None = None) -> Committed | Conflict:
        """Change the copies of this region, under guards that look at these alone, and send them to the others."""
        outcome = await self.memory.commit(writes, timeout=timeout)
        if isinstance(outcome, Committed):
            for write, image in zip(writes, outcome.images, strict=True):
                self.written[write.key] = (self.clock.now_ms(), self.place)
                self.network.send(self, write.key, image)
        return outcome

    async def close(self) -> None:
        """Close the copy."""
        await self.memory.close()

    async def receive(self, key: Key, image: Image | None, written: tuple[int, int]) -> None:
        """Replace the copy by one that was written later."""
        if written > self.written.get(key, (0, 0)):
            self.written[key] = written
            await self.memory.commit([Write(key, delete=True)])
            if image is not None:
                await self.memory.commit([Write(key, put=dict(image))])

    def request(self, entity: str) -> None:
        """Ask for one token."""
        try:
            with self.limiter.acquire(entity, "api", {"rph": 1}):
                self.admitted += 1
        except RateLimitExceeded:
            pass


@dataclass
class Network:
    """Regions that replicate to each other, ``delay_ms`` late."""

    count: int
    delay_ms: int
    clock: ManualClock = field(default_factory=ManualClock)

    def __post_init__(self) -> None:
        self._order = itertools.count()
        self._under_way: list[tuple[int, int, Region, Key, Image | None, tuple[int, int]]] = []
        self.regions = [Region(place, self) for place in range(self.count)]

    def send(self, source: Region, key: Key, image: Image | None) -> None:
        """Send a copy to all others."""
        for region in self.regions:
            if region is not source:
                due = self.clock.now_ms() + self.delay_ms
                heapq.heappush(self._under_way, (due, next(self._order), region, key, image, source.written[key]))

    def advance(self, milliseconds: int) -> None:
        """Let time pass, and deliver what arrives."""
        from zae_limiter.runtime.blocking import run

        self.clock.advance_ms(milliseconds)
        while self._under_way and self._under_way[0][0] <= self.clock.now_ms():
            _, _, region, key, image, written = heapq.heappop(self._under_way)
            run(region.receive(key, image, written))


class Traffic(NamedTuple):
    """Requests a second in each region, under a limit for all of them together."""

    name: str
    requests: tuple[int, ...]


TRAFFIC = (
    Traffic("two busy regions", (100, 100)),
    Traffic("three busy regions", (100, 100, 100)),
    Traffic("a busy and a quiet region", (100, 5)),
)


def simulate(traffic: Traffic, delay_ms: int, arrangement: str, seconds: int = SECONDS) -> int:
    """Return how many requests are admitted.

    ``shared`` is one bucket for all regions, ``shares`` one for each with its part of the limit, ``home`` one bucket
    that all of them write in the first region.
    """
    network = Network(len(traffic.requests), delay_ms)
    parts = len(network.regions) if arrangement == "shares" else 1
    network.regions[0].limiter.set_system_defaults([Limit.per_hour("rph", CAPACITY // parts)])
    network.advance(delay_ms)
    sent = [0] * len(network.regions)
    for elapsed_ms in range(STEP_MS, seconds * 1000 + 1, STEP_MS):
        network.advance(STEP_MS)
        for region, rate in zip(network.regions, traffic.requests, strict=True):
            while sent[region.place] < rate * elapsed_ms // 1000:
                sent[region.place] += 1
                at = network.regions[0] if arrangement == "home" else region
                at.request(f"key@{region.place}" if arrangement == "shares" else "key")
    return sum(region.admitted for region in network.regions)


def allowed(seconds: int = SECONDS) -> int:
    """Return how many requests the limit allows: what the bucket holds, and what it is refilled with."""
    return CAPACITY + CAPACITY * seconds // 3600


def main() -> None:
    """Print a table of all of it."""
    print(f"limit: {CAPACITY} an hour; allowed in the first {SECONDS} s: {allowed()}")
    print(f"{'traffic':<28}{'replication':>12}{'one bucket':>12}{'shares':>8}{'home region':>13}")
    for traffic in TRAFFIC:
        for delay_ms in (100, 500, 2000):
            found = [simulate(traffic, delay_ms, each) for each in ("shared", "shares", "home")]
            print(f"{traffic.name:<28}{delay_ms:>9} ms{found[0]:>12}{found[1]:>8}{found[2]:>13}")


if __name__ == "__main__":
    main()
