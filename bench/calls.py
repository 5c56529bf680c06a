"""Store calls per decision, counted at the store port on SQLite: these do not depend on the machine."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

from zae_limiter import Limit, RateLimitExceeded, SyncRateLimiter, SyncRepository
from zae_limiter.stores.opening import open_store
from zae_limiter.testing import FaultyStore, ManualClock

LIMITS = [Limit.per_minute("rpm", 60, burst=10), Limit.per_minute("tpm", 100_000)]


def measure() -> dict[str, float]:
    """Calls per decision for the situations that make up a limiter's day."""
    with tempfile.TemporaryDirectory() as folder:
        clock = ManualClock()
        store = FaultyStore(open_store(f"sqlite:///{Path(folder, 'bench.db')}", blocking=True, clock=clock))
        limiter = SyncRateLimiter(SyncRepository(store))
        limiter.set_system_defaults(LIMITS)
        limiter.create_entity("org")
        limiter.create_entity("project", parent_id="org", cascade=True)
        limiter.create_entity("key", parent_id="project", cascade=True)
        found = {}

        def count(name: str, decisions: int) -> None:
            found[name] = store.calls.total() / decisions
            store.calls.clear()

        def take(entity: str) -> None:
            with contextlib.suppress(RateLimitExceeded), limiter.acquire(entity, "gpt-4", {"rpm": 1, "tpm": 10}):
                pass

        store.calls.clear()
        take("stranger")
        count("first acquire of an unknown entity", 1)
        for _ in range(9):
            take("stranger")
        count("steady acquire", 9)
        for _ in range(100):
            take("stranger")
        count("repeated refusal", 100)
        for _ in range(20):
            clock.advance(1)
            take("stranger")
        count("drained bucket, every grant lives off the refill", 20)
        take("key")
        store.calls.clear()
        for _ in range(9):
            take("key")
        count("steady acquire, key -> project -> organisation", 9)
        clock.advance(10)
        take("stranger")
        store.calls.clear()
        with limiter.acquire("stranger", "gpt-4", {"rpm": 1, "tpm": 10}) as lease:
            lease.adjust(tpm=100)
        count("acquire and adjust", 1)
        limiter.close()
        return found
