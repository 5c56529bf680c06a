"""What stores and caches count themselves, as metrics: added up, counted once, never falling."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from pathlib import Path

import pytest

from tests.laws.toys import Toy
from tests.support.backends import BACKENDS, Backend
from tests.support.metrics import Metrics
from zae_limiter import Limit, RateLimiter, SyncRateLimiter, SyncRepository
from zae_limiter.telemetry import instrument, uninstrument
from zae_limiter.telemetry.tally import Series, Tally
from zae_limiter.testing import Harness, ManualClock

LIMITS = [Limit.per_minute("rpm", 10)]
FAR = [backend for backend in BACKENDS if backend.kind in ("redis", "dynamodb")]


@pytest.fixture
def metrics() -> Metrics:
    """A meter provider of its own."""
    return Metrics()


async def take(limiter: RateLimiter, times: int) -> None:
    for _ in range(times):
        async with limiter.acquire("key-1", "gpt-4", {"rpm": 1}, LIMITS):
            pass


@pytest.mark.parametrize("backend", FAR, ids=str)
def test_a_store_that_counts_its_calls(backend: Backend, metrics: Metrics, tmp_path: Path) -> None:
    async def work(harness: Harness) -> None:
        limiter = harness.limiter()
        await take(limiter, 2)
        before = limiter.repository.get_backend_stats()
        instrument(limiter, meter_provider=metrics.provider)
        await take(limiter, 3)
        after = limiter.repository.get_backend_stats()
        calls = Counter(after.calls)
        calls.subtract(before.calls)
        assert metrics.counts("backend.calls", "operation") == {name: count for name, count in calls.items() if count}
        assert sum(calls.values()) == 3
        sent, units = after.bytes_sent - before.bytes_sent, after.write_units - before.write_units
        found = metrics.collected()
        assert ("backend.bytes" in found, "backend.units" in found) == (bool(sent), bool(units))
        assert metrics.counts("backend.bytes", "direction").get("sent", 0) == sent
        assert metrics.counts("backend.units", "operation").get("write", 0) == units
        assert {tuple(given) for given, _ in metrics.lines("backend.calls")} == {("backend", "operation")}
        assert {given["backend"] for given, _ in metrics.lines("backend.calls")} == {backend.kind}

    with backend.harness(tmp_path) as harness:
        harness.run(work(harness))


def test_a_store_that_counts_nothing_has_no_metrics_of_its_calls(metrics: Metrics) -> None:
    limiter = instrument(SyncRateLimiter("memory://"), meter_provider=metrics.provider)
    with limiter.acquire("key-1", "gpt-4", {"rpm": 1}, LIMITS):
        pass
    assert not [name for name in metrics.collected() if name.startswith("backend.")]


def hits(metrics: Metrics) -> dict[str, float]:
    found: dict[str, float] = metrics.counts("config.cache", "result")
    return found


def acquire(limiter: SyncRateLimiter, times: int) -> None:
    for _ in range(times):
        with limiter.acquire("key-1", "gpt-4", {"rpm": 1}):
            pass


def test_cache_hits_and_misses_are_those_of_the_cache(metrics: Metrics) -> None:
    repository = SyncRepository("memory://")
    limiter = instrument(SyncRateLimiter(repository), meter_provider=metrics.provider)
    limiter.set_system_defaults(LIMITS)
    acquire(limiter, 5)
    stats = repository.get_cache_stats()
    assert hits(metrics) == {"hit": stats.hits, "miss": stats.misses}
    assert stats.hits >= 4
    assert stats.misses >= 1
    repository.invalidate_config_cache()
    acquire(limiter, 1)
    assert hits(metrics)["miss"] == repository.get_cache_stats().misses > stats.misses


def test_two_limiters_of_one_repository_count_its_cache_once(metrics: Metrics) -> None:
    repository = SyncRepository("memory://")
    first, second = (instrument(SyncRateLimiter(repository), meter_provider=metrics.provider) for _ in range(2))
    first.set_system_defaults(LIMITS)
    acquire(first, 3)
    acquire(second, 3)
    stats = repository.get_cache_stats()
    assert hits(metrics) == {"hit": stats.hits, "miss": stats.misses}
    uninstrument(first)
    acquire(first, 1)
    assert hits(metrics)["hit"] == repository.get_cache_stats().hits, "the other one still looks"


def test_counts_stay_when_a_limiter_goes(metrics: Metrics) -> None:
    limiter = instrument(SyncRateLimiter("memory://"), meter_provider=metrics.provider)
    instrument(limiter, meter_provider=metrics.provider)
    limiter.set_system_defaults(LIMITS)
    acquire(limiter, 4)
    before = hits(metrics)
    uninstrument(limiter)
    acquire(limiter, 2)
    assert hits(metrics) == before, "not measured"
    instrument(limiter, meter_provider=metrics.provider)
    acquire(limiter, 1)
    assert hits(metrics) == {**before, "hit": before["hit"] + 1}
    del limiter
    gc.collect()
    assert hits(metrics) == {**before, "hit": before["hit"] + 1}


def test_a_measured_limiter_goes_as_soon_as_nobody_has_it(metrics: Metrics) -> None:
    limiter = instrument(SyncRateLimiter("memory://"), meter_provider=metrics.provider)
    acquire_one = limiter.acquire("key-1", "gpt-4", {"rpm": 1}, LIMITS)
    with acquire_one:
        pass
    gone = weakref.ref(limiter._inner)
    gc.disable()
    try:
        del limiter, acquire_one
        assert gone() is None
    finally:
        gc.enable()


def test_a_tally_adds_up_what_different_owners_count() -> None:
    tally, calls, other = Tally(), Series("calls", (("store", "a"),)), Series("bytes", ())
    counts = [Counter({calls: 5, other: 1}), Counter({calls: 7})]
    names = [tally.join(each, lambda each=each: dict(each)) for each in counts]  # type: ignore[misc]  # bound per loop
    assert tally.totals("calls") == {}, "what was before does not count"
    counts[0][calls] += 2
    counts[1][calls] += 3
    assert tally.totals("calls") == {calls.attributes: 5}
    assert tally.totals("bytes") == {}
    tally.leave(names[0])
    tally.drop_leaving()
    counts[0][calls] += 100
    counts[1][calls] += 1
    assert tally.totals("calls") == {calls.attributes: 6}


def test_what_prefetch_has_done(metrics: Metrics) -> None:
    clock = ManualClock()
    limiter = SyncRateLimiter(SyncRepository(Toy(clock)), prefetch=0.5)
    instrument(limiter, meter_provider=metrics.provider)
    assert "prefetch.held" not in metrics.collected(), "nothing was held yet"
    for _ in range(60):
        with limiter.acquire("key-1", "gpt-4", {"rps": 1}, [Limit.per_second("rps", 1_000)]):
            clock.advance_ms(10)
    stats = limiter.repository.get_backend_stats().prefetch
    counted = {name: sum(metrics.counts(f"prefetch.{name}").values()) for name in ("grants", "spared", "held")}
    assert counted == {"grants": stats.granted, "spared": stats.spared_writes, "held": stats.held}
    assert min(counted.values()) > 0
    limiter.flush()
    assert sum(metrics.counts("prefetch.returned").values()) == limiter.repository.get_backend_stats().prefetch.returned
    assert sum(metrics.counts("prefetch.held").values()) == 0
