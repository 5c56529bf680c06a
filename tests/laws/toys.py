"""Stores of a screenful, which conform: what broken ones are made of."""

from __future__ import annotations

import copy
import json
import threading
from typing import TYPE_CHECKING

from zae_limiter import BackendCapabilities
from zae_limiter.records.algebra import (
    Committed,
    Conflict,
    Guards,
    Image,
    Key,
    Page,
    Query,
    Write,
    apply_write,
    holds,
    is_live,
)
from zae_limiter.stores.ranges import index_entry, page_of
from zae_limiter.testing import Harness

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zae_limiter import Clock


class Toy:
    """A store of the least possible code: a dictionary of JSON."""

    capabilities = BackendCapabilities("toy", True, True, True, False, False)

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.rows: dict[Key, str] = {}
        self.lock = threading.RLock()

    async def read(self, keys: Sequence[Key], *, timeout: float | None = None) -> list[Image | None]:
        with self.lock:
            return [self.load(key) for key in keys]

    async def commit(self, writes: Sequence[Write], *, timeout: float | None = None) -> Committed | Conflict:
        with self.lock:
            before = {write.key: self.load(write.key) for write in writes}
            if not all(self.holds(before[write.key], write.guards) for write in writes):
                return Conflict(before)
            return Committed(tuple(self.apply(write, before[write.key]) for write in writes))

    async def query(self, query: Query, *, timeout: float | None = None) -> Page:
        live = [(key, image) for key in self.rows if (image := self.load(key)) is not None]
        return self.page([row for row in live if self.partition(*row, query.gsi) == query.pk], query)

    async def close(self) -> None: ...

    def load(self, key: Key) -> Image | None:
        image: Image | None = json.loads(self.rows[key]) if key in self.rows else None
        return image if self.live(image) else None

    def live(self, image: Image | None) -> bool:
        return is_live(image, self.clock.now_ms())

    def holds(self, image: Image | None, guards: Guards) -> bool:
        return holds(image, guards)

    def apply(self, write: Write, old: Image | None) -> Image | None:
        if old is None and write.is_check:
            return None
        new = self.applied(old, write)
        self.rows.pop(write.key, None)
        if new is not None:
            self.rows[write.key] = json.dumps(new)
        return new

    def applied(self, old: Image | None, write: Write) -> Image | None:
        return copy.deepcopy(apply_write(old, write))

    def partition(self, key: Key, image: Image, gsi: str | None) -> str | None:
        if gsi is None:
            return key.pk
        entry = index_entry(gsi, image)
        return None if entry is None else entry[0]

    def page(self, rows: list[tuple[Key, Image]], query: Query) -> Page:
        return page_of(rows, query)


def toys(kind: type[Toy], blocking: bool) -> Harness:
    """A harness over one toy, which all its clients share."""
    made: list[Toy] = []

    def opened(clock: Clock, blocking: bool) -> Toy:
        made[:] = made or [kind(clock)]
        return made[0]

    return Harness(opened, blocking=blocking)


class Distant(Toy):
    """A toy that declares itself far away: calls take time, and an atomic commit is not for free."""

    capabilities = BackendCapabilities("distant toy", False, False, False, True, True)


class Hot(Toy):
    """A toy that says how many writes a second it takes for one record."""

    capabilities = BackendCapabilities("hot toy", False, False, True, True, True, partition_writes=1000)
