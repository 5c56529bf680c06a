"""Store calls per decision, counted at the store port on SQLite: these do not depend on the machine."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

from zae_limiter import Limit, RateLimitExceeded, SyncRateLimiter, SyncRepository
from zae_limiter.stores.opening import open_store
from zae_limiter.testing import FaultyStore, ManualClock

LIMITS = [Limit.per_minute("rpm", 60, burst=10), Limit.per_minute("tpm", 100_000)]
COST = {"rpm": 1, "tpm": 10}


class Counter:
    """A limiter whose store counts, and what was counted."""

    def __init__(self, path: Path) -> None:
        self.clock = ManualClock()
        self._store = FaultyStore(open_store(f"sqlite:///{path}", blocking=True, clock=self.clock))
        self.limiter = SyncRateLimiter(SyncRepository(self._store))
        self.limiter.set_system_defaults(LIMITS)
        self.limiter.create_entity("org")
        self.limiter.create_entity("project", parent_id="org", cascade=True)
        self.limiter.create_entity("key", parent_id="project", cascade=True)
        self.found: dict[str, float] = {}
        self.forget()

    def forget(self) -> None:
        """Begin to count anew."""
        self._store.calls.clear()

    def note(self, name: str, decisions: int) -> None:
        """Note that this many decisions were made since the last note."""
        self.found[name] = round(self._store.calls.total() / decisions, 2)
        self.forget()

    def take(self, entity: str, times: int, every_s: float = 0) -> None:
        """Try that often, with a pause before each try."""
        for _ in range(times):
            self.clock.advance(every_s)
            with contextlib.suppress(RateLimitExceeded), self.limiter.acquire(entity, "gpt-4", COST):
                pass


def measure() -> dict[str, float]:
    """Calls per decision for the situations that make up a limiter's day."""
    with tempfile.TemporaryDirectory() as folder:
        counter = Counter(Path(folder, "bench.db"))
        counter.take("stranger", 1)
        counter.note("first acquire of an unknown entity", 1)
        counter.take("stranger", 9)
        counter.note("steady acquire", 9)
        counter.take("stranger", 100)
        counter.note("repeated refusal", 100)
        counter.take("stranger", 20, every_s=1)
        counter.note("drained bucket, every grant lives off the refill", 20)
        counter.take("key", 1)
        counter.forget()
        counter.take("key", 9)
        counter.note("steady acquire, key -> project -> organisation", 9)
        counter.take("stranger", 1, every_s=10)
        counter.forget()
        with counter.limiter.acquire("stranger", "gpt-4", COST) as lease:
            lease.adjust(tpm=100)
        counter.note("acquire and adjust", 1)
        counter.limiter.close()
        return counter.found
