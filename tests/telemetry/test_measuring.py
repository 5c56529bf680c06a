"""What is measured of a limiter: decisions, how long they took, and how good the estimates were."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.backends import BACKENDS, Backend
from tests.support.metrics import Metrics
from zae_limiter import (
    Limit,
    NamespaceNotFoundError,
    RateLimiter,
    RateLimiterUnavailable,
    RateLimitExceeded,
    SyncRateLimiter,
    ValidationError,
)
from zae_limiter.stores.memory import MemoryStore
from zae_limiter.telemetry import instrument, uninstrument
from zae_limiter.testing import Fault, FaultyStore, Harness

RPM = [Limit.per_minute("rpm", 10)]
BOTH = [*RPM, Limit.per_minute("tpm", 10_000)]
EMBEDDED = [backend for backend in BACKENDS if backend.kind in ("memory", "sqlite")]


@pytest.fixture(params=EMBEDDED, ids=str)
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
    """Stores inside the process, in both modes."""
    backend: Backend = request.param
    with backend.harness(tmp_path) as made:
        yield made


@pytest.fixture
def metrics() -> Metrics:
    """A meter provider of its own."""
    return Metrics()


class Measured:
    """A measured limiter on a store that can fail."""

    def __init__(self, harness: Harness, metrics: Metrics, labels: tuple[str, ...] = (), **options: Any) -> None:
        self.store = FaultyStore(harness.store())
        self.limiter = instrument(
            harness.limiter(self.store, **options), meter_provider=metrics.provider, labels=labels
        )

    async def take(self, amount: int = 1, entity: str = "key-1", **options: Any) -> None:
        try:
            async with self.limiter.acquire(entity, "gpt-4", {"rpm": amount}, RPM, **options):
                pass
        except (RateLimitExceeded, RateLimiterUnavailable):
            pass


async def every_outcome(measured: Measured) -> None:
    take, store = measured.take, measured.store
    for _ in range(10):
        await take()
    await take()
    await take(2)
    await take(11)
    for policy in ("allow", "block", "allow"):
        store.inject(Fault.FAIL_BEFORE, times=10)
        await take(entity="key-2", on_unavailable=policy)
        store.heal()


async def test_every_outcome_is_counted_and_timed(harness: Harness, metrics: Metrics) -> None:
    measured = Measured(harness, metrics)
    await every_outcome(measured)
    expected = {"granted": 10, "refused": 2, "never": 1, "unavailable_allowed": 2, "unavailable_blocked": 1}
    assert metrics.counts("decisions", "outcome") == expected
    assert metrics.counts("decision.duration", "outcome") == expected
    assert metrics.counts("wait.duration", "outcome") == {}


async def test_soft_limits_that_were_exceeded_and_thresholds_that_were_crossed(
    harness: Harness, metrics: Metrics
) -> None:
    measured = Measured(harness, metrics)
    limits = [Limit.per_day("soft", 5, soft=True), Limit.per_day("rpd", 10, alerts=(0.5, 0.8))]
    for _ in range(3):
        async with measured.limiter.acquire("key-1", "gpt-4", {"soft": 3, "rpd": 3}, limits):
            pass
    assert metrics.counts("overdrawn", "limit") == {"soft": 2}
    assert metrics.counts("alerts", "limit", "threshold") == {("rpd", "0.5"): 1, ("rpd", "0.8"): 1}


async def test_who_is_limited_is_no_attribute_unless_asked_for(harness: Harness, metrics: Metrics) -> None:
    measured = Measured(harness, metrics)
    await every_outcome(measured)
    async with measured.limiter.acquire("key-2", "gpt-4", {"rpm": 1}, RPM, max_wait=1) as lease:
        await lease.adjust(rpm=1)
    where = {"backend", "namespace"}
    expected = {
        "decisions": {*where, "outcome"},
        "decision.duration": {*where, "outcome"},
        "wait.duration": {*where, "outcome"},
        "estimate.error": {*where, "limit", "direction"},
        "estimate.ratio": {*where, "limit"},
        "config.cache": {*where, "result"},
    }
    found = {name: {key for given, _ in metrics.lines(name) for key in given} for name in metrics.collected()}
    assert found == expected
    values = {value for name in found for given, _ in metrics.lines(name) for value in given.values()}
    assert not values & {"key-1", "key-2", "gpt-4"}


@pytest.mark.parametrize("labels", [("resource",), ("entity_id",), ("resource", "entity_id")], ids="-".join)
def test_labels_that_were_asked_for(labels: tuple[str, ...], metrics: Metrics) -> None:
    limiter = instrument(SyncRateLimiter("memory://"), meter_provider=metrics.provider, labels=labels)
    with limiter.acquire("key-1", "gpt-4", {"rpm": 1}, RPM, max_wait=1) as lease:
        lease.adjust(rpm=1)
    who = {"resource": "gpt-4", "entity_id": "key-1"}
    for name in ("decisions", "decision.duration", "wait.duration", "estimate.error", "estimate.ratio"):
        ((attributes, _),) = metrics.lines(name)
        assert {key: attributes[key] for key in who if key in attributes} == {key: who[key] for key in labels}, name


async def test_more_tokens_in_the_body_are_decisions_too(harness: Harness, metrics: Metrics) -> None:
    measured = Measured(harness, metrics)
    async with measured.limiter.acquire("key-1", "gpt-4", {"rpm": 5}, RPM) as lease:
        await lease.consume(rpm=5)
        with pytest.raises(RateLimitExceeded):
            await lease.consume(rpm=1)
    assert metrics.counts("decisions", "outcome") == {"granted": 2, "refused": 1}


async def test_bad_input_is_no_decision_and_a_missing_namespace_a_failed_one(
    harness: Harness, metrics: Metrics
) -> None:
    measured = Measured(harness, metrics)
    for entity, consume in (("key-1", {"tpm": 1}), ("key#1", {"rpm": 1})):
        with pytest.raises(ValidationError):
            async with measured.limiter.acquire(entity, "gpt-4", consume, RPM):
                pass
    assert metrics.counts("decisions", "outcome") == {}
    repository = harness.repository(measured.store, namespace="missing")
    lost = instrument(harness.limiter(repository), meter_provider=metrics.provider)
    with pytest.raises(NamespaceNotFoundError):
        async with lost.acquire("key-1", "gpt-4", {"rpm": 1}, RPM):
            pass
    assert metrics.counts("decisions", "outcome", "namespace") == {("failed", "missing"): 1}


async def test_time_in_line_is_apart_from_the_time_to_decide(harness: Harness, metrics: Metrics) -> None:
    started_ms = harness.clock.now_ms()
    measured = Measured(harness, metrics)
    await measured.take(10)
    measured.store.inject(Fault.DELAY, seconds=0.5)
    await measured.take(5, max_wait=60, timeout=2)
    await measured.take(10, max_wait=30)
    assert harness.clock.now_ms() - started_ms == 60_000
    assert metrics.counts("wait.duration", "outcome") == {"granted": 1, "refused": 1}
    assert metrics.sums("wait.duration", "outcome") == {"granted": pytest.approx(29.5), "refused": pytest.approx(30)}
    assert metrics.sums("decision.duration", "outcome") == {"granted": pytest.approx(0.5), "refused": 0}


async def test_a_try_that_did_not_succeed_at_once_is_part_of_the_time(harness: Harness, metrics: Metrics) -> None:
    measured = Measured(harness, metrics)
    await measured.take()
    async with harness.limiter().acquire("key-1", "gpt-4", {"rpm": 9}, RPM):
        pass
    measured.store.inject(Fault.DELAY, verb="commit", seconds=0.5)
    await measured.take()
    assert metrics.sums("decision.duration", "outcome") == {"granted": 0, "refused": pytest.approx(0.5)}


async def test_how_far_off_estimates_were(harness: Harness, metrics: Metrics) -> None:
    measured = Measured(harness, metrics)
    acquire = measured.limiter.acquire
    for used in (150, 130, 40, 100):
        async with acquire("key-1", "gpt-4", {"rpm": 1, "tpm": 100}, BOTH) as lease:
            await lease.adjust(tpm=used - 100)
    async with acquire("key-1", "gpt-4", {"rpm": 1, "tpm": 100}, BOTH):
        pass
    async with acquire("key-1", "gpt-4", {"rpm": 1}, BOTH) as lease:
        await lease.consume(tpm=150)
        await lease.consume(tpm=50)
        await lease.release(tpm=100)
    assert metrics.counts("estimate.error", "limit", "direction") == {
        ("tpm", "under"): 2,
        ("tpm", "over"): 2,
        ("tpm", "exact"): 1,
    }
    assert metrics.sums("estimate.error", "direction") == {"under": 80, "over": 160, "exact": 0}
    assert metrics.counts("estimate.ratio", "limit") == {"tpm": 5}
    assert metrics.sums("estimate.ratio", "limit") == {"tpm": pytest.approx(1.5 + 1.3 + 0.4 + 1 + 0.5)}


def test_an_estimate_of_nothing_has_no_ratio(metrics: Metrics) -> None:
    limiter = instrument(SyncRateLimiter("memory://"), meter_provider=metrics.provider)
    with limiter.acquire("key-1", "gpt-4", {"rpm": 1}, BOTH) as lease:
        lease.adjust(tpm=70)
    assert metrics.sums("estimate.error", "limit", "direction") == {("tpm", "under"): 70}
    assert metrics.counts("estimate.ratio", "limit") == {}


async def test_nothing_is_learnt_of_an_estimate_from_failures(harness: Harness, metrics: Metrics) -> None:
    measured = Measured(harness, metrics, on_unavailable="allow")
    with pytest.raises(KeyError):
        async with measured.limiter.acquire("key-1", "gpt-4", {"rpm": 1}, RPM) as lease:
            await lease.adjust(rpm=1)
            raise KeyError
    measured.store.inject(Fault.FAIL_BEFORE, times=10)
    async with measured.limiter.acquire("key-2", "gpt-4", {"rpm": 1}, RPM) as lease:
        assert lease.degraded
        await lease.adjust(rpm=1)
    measured.store.heal()
    async with measured.limiter.acquire("key-3", "gpt-4", {"rpm": 1}, RPM) as lease:
        measured.store.inject(Fault.FAIL_BEFORE)
        await lease.consume(rpm=3)  # taken without asking, and settled at the end
    assert metrics.counts("estimate.error", "limit") == {}


async def test_a_cancelled_caller_has_not_decided(metrics: Metrics) -> None:
    store = FaultyStore(MemoryStore(), suspend=True)
    limiter = instrument(RateLimiter(store), meter_provider=metrics.provider)
    lease = limiter.acquire("key-1", "gpt-4", {"rpm": 1}, RPM)
    task = asyncio.create_task(lease.__aenter__())
    await asyncio.sleep(0)
    assert store.calls, "under way"
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert metrics.counts("decisions", "outcome") == {}
    async with limiter.acquire("key-1", "gpt-4", {"rpm": 1}, RPM):
        pass
    assert metrics.counts("decisions", "outcome") == {"granted": 1}


async def test_many_at_once_are_all_counted(metrics: Metrics) -> None:
    limiter = instrument(RateLimiter(FaultyStore(MemoryStore(), suspend=True)), meter_provider=metrics.provider)

    async def one() -> None:
        async with limiter.acquire("key-1", "gpt-4", {"rpm": 1}, RPM):
            pass

    await asyncio.gather(*(one() for _ in range(40)), return_exceptions=True)
    assert metrics.counts("decisions", "outcome") == {"granted": 10, "refused": 30}


async def test_slots_that_are_held_and_lost(harness: Harness, metrics: Metrics) -> None:
    measured = Measured(harness, metrics)
    limits = [Limit.concurrent("parallel", 4, ttl=60)]

    async def hold(entity: str) -> Any:
        return await measured.limiter.acquire(entity, "gpt-4", {}, limits).__aenter__()

    assert metrics.counts("slots.held", "limit") == {}
    first, second, other = await hold("key-1"), await hold("key-1"), await hold("key-2")
    assert list(metrics.counts("slots.held", "backend", "namespace", "limit").items()) == [
        ((measured.store.capabilities.name, "default", "parallel"), 3)
    ]
    await second.__aexit__(None, None, None)
    assert metrics.counts("slots.held", "limit") == {"parallel": 2}
    assert metrics.counts("slots.lost", "limit") == {}
    harness.clock.advance(61)
    await measured.limiter.renew_slots()
    assert metrics.counts("slots.lost", "limit") == {"parallel": 2}
    assert metrics.counts("slots.held", "limit") == {"parallel": 0}, "not a line that has ended"
    assert all(lease.lost for lease in (first, other))


async def test_slots_are_counted_by_labels_and_until_a_limiter_is_measured_no_more(
    harness: Harness, metrics: Metrics
) -> None:
    limits = [Limit.concurrent("parallel", 4, ttl=60)]
    for measured in (Measured(harness, metrics, ("resource",)), Measured(harness, metrics, ("resource",))):
        async with measured.limiter.acquire("key-1", "gpt-4", {}, limits):
            assert metrics.counts("slots.held", "resource", "limit") == {("gpt-4", "parallel"): 1}
            uninstrument(measured.limiter)
            assert metrics.counts("slots.held", "resource", "limit") == {("gpt-4", "parallel"): 0}
