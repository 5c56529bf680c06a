"""An observer is told of decisions, settlements, store calls, lookups and changes of state, and disturbs nobody."""

from __future__ import annotations

import contextlib
import gc
import logging
import weakref
from typing import Any

import pytest

from zae_limiter import (
    Alert,
    Decision,
    Limit,
    Observer,
    RateLimiter,
    RateLimiterClosedError,
    RateLimiterUnavailable,
    RateLimitExceeded,
    Settlement,
    SlotLost,
    StoreCall,
    SyncRateLimiter,
    SyncRepository,
    ValidationError,
)
from zae_limiter.limiter.availability import RETRY_SECONDS
from zae_limiter.observer import State
from zae_limiter.testing import Fault, FaultyStore, Harness, ManualClock

RPM = [Limit.per_minute("rpm", 10)]
BOTH = [*RPM, Limit.per_minute("tpm", 10_000)]


class Recorder(Observer):
    """Keeps everything it is told."""

    def __init__(self) -> None:
        self.decisions: list[Decision] = []
        self.settlements: list[Settlement] = []
        self.calls: list[StoreCall] = []
        self.lookups = (0, 0)
        self.states: list[State] = []
        self.lost: list[SlotLost] = []

    def on_slot_lost(self, slot: SlotLost) -> None:
        self.lost.append(slot)

    def on_decision(self, decision: Decision) -> None:
        self.decisions.append(decision)

    def on_settlement(self, settlement: Settlement) -> None:
        self.settlements.append(settlement)

    def on_store_call(self, call: StoreCall) -> None:
        self.calls.append(call)

    def on_config_lookups(self, hits: int, misses: int) -> None:
        self.lookups = (self.lookups[0] + hits, self.lookups[1] + misses)

    def on_state_change(self, state: State) -> None:
        self.states.append(state)


class Broken:
    """Raises whatever it is told; it has the methods without inheriting them."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def _fail(self, name: str) -> None:
        self.told.append(name)
        raise KeyError(name)

    def on_decision(self, decision: Decision) -> None:
        self._fail("decision")

    def on_settlement(self, settlement: Settlement) -> None:
        self._fail("settlement")

    def on_alert(self, alert: Alert) -> None:
        self._fail("alert")

    def on_slot_lost(self, slot: SlotLost) -> None:
        self._fail("slot lost")

    def on_store_call(self, call: StoreCall) -> None:
        self._fail("store call")

    def on_config_lookups(self, hits: int, misses: int) -> None:
        self._fail("config lookups")

    def on_state_change(self, state: State) -> None:
        self._fail("state change")


class Observed:
    """A limiter with an observer, on a store that can fail."""

    def __init__(self, harness: Harness, **options: Any) -> None:
        self.clock = harness.clock
        self.told = Recorder()
        self.store = FaultyStore(harness.store())
        self.limiter: RateLimiter = harness.limiter(self.store, observer=self.told, **options)

    async def take(self, amount: int = 1, **options: Any) -> None:
        with contextlib.suppress(RateLimitExceeded, RateLimiterUnavailable):
            async with self.limiter.acquire("key-1", "gpt-4", {"rpm": amount}, RPM, **options):
                pass


async def test_every_decision_is_told_with_its_outcome_and_times(harness: Harness) -> None:
    scene = Observed(harness)
    await scene.take(10)
    await scene.take()
    await scene.take(11)
    scene.store.inject(Fault.DELAY, seconds=0.5)
    await scene.take(5, max_wait=60, timeout=2)
    await scene.take(10, max_wait=30)
    for policy in ("allow", "block"):
        scene.store.inject(Fault.FAIL_BEFORE, times=10)
        with contextlib.suppress(RateLimiterUnavailable):
            async with scene.limiter.acquire("key-2", "gpt-4", {"rpm": 1}, RPM, on_unavailable=policy):
                pass
        scene.store.heal()
    told = [(each.outcome, each.seconds, each.waited) for each in scene.told.decisions]
    assert told == [
        ("granted", 0, None),
        ("refused", 0, None),
        ("never", 0, None),
        ("granted", pytest.approx(0.5), pytest.approx(29.5)),  # a look while it waited took half a second
        ("refused", 0, pytest.approx(30)),
        ("unavailable_allowed", 0, None),
        ("unavailable_blocked", 0, None),
    ]
    assert [each.entity_id for each in scene.told.decisions] == ["key-1"] * 5 + ["key-2"] * 2
    assert {each.resource for each in scene.told.decisions} == {"gpt-4"}


async def test_bad_input_is_no_decision_and_a_check_is_one_only_if_it_is_refused(harness: Harness) -> None:
    scene = Observed(harness)
    with pytest.raises(ValidationError):
        async with scene.limiter.acquire("key-1", "gpt-4", {"tpm": 1}, RPM):
            pass
    await scene.limiter.acquire("key-1", "gpt-4", {"rpm": 1}, RPM).check()
    assert scene.told.decisions == []
    await scene.take(10)
    with pytest.raises(RateLimitExceeded):
        await scene.limiter.acquire("key-1", "gpt-4", {"rpm": 1}, RPM).check()
    assert [each.outcome for each in scene.told.decisions] == ["granted", "refused"]


async def test_more_tokens_in_the_body_are_a_decision_of_their_own(harness: Harness) -> None:
    scene = Observed(harness)
    async with scene.limiter.acquire("key-1", "gpt-4", {"rpm": 5}, RPM) as lease:
        await lease.consume(rpm=5)
        with pytest.raises(RateLimitExceeded):
            await lease.consume(rpm=1)
    assert [each.outcome for each in scene.told.decisions] == ["granted", "granted", "refused"]


async def test_a_settlement_has_what_was_estimated_and_the_correction(harness: Harness) -> None:
    scene = Observed(harness)
    async with scene.limiter.acquire("key-1", "gpt-4", {"rpm": 1, "tpm": 100}, BOTH) as lease:
        await lease.adjust(tpm=30)
    async with scene.limiter.acquire("key-1", "gpt-4", {"rpm": 1}, BOTH) as lease:
        await lease.consume(tpm=50)
        await lease.release(rpm=1, tpm=20)
    async with scene.limiter.acquire("key-1", "gpt-4", {"rpm": 1}, BOTH):
        pass
    assert scene.told.settlements == [
        Settlement("key-1", "gpt-4", {"tpm": 100}, {"tpm": 30}),
        Settlement("key-1", "gpt-4", {"rpm": 1, "tpm": 50}, {"rpm": -1, "tpm": -20}),
    ]


async def test_every_store_call_is_told_with_its_verb_time_and_outcome(harness: Harness) -> None:
    scene = Observed(harness)
    await scene.limiter.set_system_defaults(RPM)
    await scene.take()
    scene.told.calls.clear()
    scene.store.calls.clear()
    scene.store.inject(Fault.DELAY, verb="commit", seconds=0.5)
    await scene.take(timeout=2)
    scene.store.inject(Fault.REFUSE, verb="commit")
    await scene.take()
    scene.store.inject(Fault.FAIL_BEFORE, verb="commit")
    await scene.take()
    await scene.limiter.get_resource_capacity("gpt-4", "rpm")
    told = [(call.verb, call.outcome) for call in scene.told.calls]
    assert [each for each in told if each[0] == "commit"] == [
        ("commit", "done"),
        ("commit", "conflict"),
        ("commit", "done"),
        ("commit", "failed"),
    ]
    assert ("query", "done") in told
    assert len(told) == scene.store.calls.total(), "each of them once"
    assert scene.told.calls[0].seconds == pytest.approx(0.5)
    assert sum(call.seconds for call in scene.told.calls) == pytest.approx(0.5)
    assert [type(call.error) for call in scene.told.calls if call.outcome == "failed"] == [RateLimiterUnavailable]
    assert all(call.error is None for call in scene.told.calls if call.outcome != "failed")


def test_an_observed_acquire_in_memory_still_updates_in_place() -> None:
    told = Recorder()
    limiter = SyncRateLimiter(SyncRepository("memory://", clock=ManualClock()), observer=told)
    limiter.set_system_defaults(RPM)
    with limiter.acquire("key-1", "gpt-4", {"rpm": 1}):
        pass
    told.calls.clear()
    with limiter.acquire("key-1", "gpt-4", {"rpm": 9}):
        pass
    with pytest.raises(RateLimitExceeded), limiter.acquire("key-1", "gpt-4", {"rpm": 1}):
        pass
    assert told.calls == [StoreCall("update", 0.0, "done", None), StoreCall("update", 0.0, "conflict", None)]
    assert [each.outcome for each in told.decisions] == ["granted", "granted", "refused"]


def test_an_observed_lease_in_memory_is_entered_and_settled_without_waiting() -> None:
    told = Recorder()
    limiter = SyncRateLimiter(SyncRepository("memory://", clock=ManualClock()), observer=told)
    limiter.set_system_defaults([Limit.per_minute("rpm", 10, soft=True), Limit.per_minute("tpm", 10_000)])
    template = limiter.acquire("key-1", "gpt-4", {"rpm": 6, "tpm": 100})
    for _ in range(2):
        told.calls.clear()
        lease = template.for_entity("key-2")
        if not lease.try_enter():
            lease.enter()
        lease.settle(tpm=400)
        lease.exit()
    assert [each.outcome for each in told.decisions] == ["granted"] * 2
    assert [each.overdrawn for each in told.decisions] == [(), ("rpm",)]
    assert told.settlements == [Settlement("key-2", "gpt-4", {"tpm": 100}, {"tpm": 300})] * 2
    limiter.observers = ()
    assert template.for_entity("key-3").try_enter(), "the first one of a key too"
    limiter.observers = (told,)
    told.calls.clear()
    assert template.for_entity("key-4").try_enter(), "leases of a limiter are observed as soon as it is"
    assert [each.verb for each in told.calls] == ["update"]
    assert told.decisions[-1].entity_id == "key-4"


async def test_config_lookups_add_up_to_those_of_the_cache(harness: Harness) -> None:
    scene = Observed(harness)
    await scene.limiter.set_system_defaults(RPM)
    for _ in range(3):
        async with scene.limiter.acquire("key-1", "gpt-4", {"rpm": 1}):
            pass
    stats = scene.limiter.repository.get_cache_stats()
    assert scene.told.lookups == (stats.hits, stats.misses)
    assert stats.hits >= 2
    assert stats.misses >= 1


async def test_changes_of_state_are_told_once_each(harness: Harness) -> None:
    scene = Observed(harness, on_unavailable="allow", timeout=2)
    await scene.take()
    scene.store.inject(Fault.DELAY, times=10_000, seconds=3_600)
    await scene.take()
    await scene.take()
    scene.store.heal()
    scene.clock.advance(RETRY_SECONDS)
    await scene.take()
    await scene.take()
    assert scene.told.states == ["store.unavailable", "breaker.opened", "store.available", "breaker.closed"]


async def test_an_observer_that_fails_disturbs_nobody_and_is_logged_once(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    scene = Observed(harness, on_unavailable="allow", timeout=2)
    broken = Broken()
    scene.limiter.observers = (broken, scene.told)
    async with scene.limiter.acquire("key-1", "gpt-4", {"rpm": 5}, RPM) as lease:
        await lease.adjust(rpm=2)
    assert await scene.limiter.available("key-1", "gpt-4", RPM) == {"rpm": 3}
    with pytest.raises(ZeroDivisionError):
        async with scene.limiter.acquire("key-1", "gpt-4", {"rpm": 3}, RPM):
            raise ZeroDivisionError
    assert await scene.limiter.available("key-1", "gpt-4", RPM) == {"rpm": 3}, "given back"
    with pytest.raises(RateLimitExceeded):
        async with scene.limiter.acquire("key-1", "gpt-4", {"rpm": 4}, RPM):
            pass
    scene.store.inject(Fault.DELAY, times=10_000, seconds=3_600)
    async with scene.limiter.acquire("key-1", "gpt-4", {"rpm": 1}, RPM) as lease:
        assert lease.degraded
        scene.store.heal()
    failures = [each for each in caplog.records if each.__dict__["zae_event"] == "observer.failed"]
    assert [(each.levelno, each.__dict__["zae_observer"]) for each in failures] == [(logging.WARNING, "Broken")]
    assert {"decision", "settlement", "store call", "config lookups", "state change"} == set(broken.told)
    assert len(broken.told) > 10, "it is told all the same"
    assert [each.outcome for each in scene.told.decisions] == ["granted", "granted", "refused", "unavailable_allowed"]
    assert scene.told.settlements
    assert scene.told.calls


async def test_only_the_limiter_that_has_it_tells_an_observer(harness: Harness) -> None:
    repository = harness.repository()
    told = Recorder()
    observed, other = harness.limiter(repository, observer=told), harness.limiter(repository)
    await other.set_system_defaults(RPM)
    async with other.acquire("key-1", "gpt-4", {"rpm": 1}) as lease:
        await lease.adjust(rpm=1)
    assert (told.decisions, told.settlements, told.calls) == ([], [], [])
    async with observed.acquire("key-1", "gpt-4", {"rpm": 1}):
        pass
    assert (len(told.decisions), bool(told.calls)) == (1, True)
    await observed.close()
    for limiter in (observed, other):
        with pytest.raises(RateLimiterClosedError):
            await limiter.get_entity("key-1")


async def test_observers_come_and_go(harness: Harness) -> None:
    first, second = Recorder(), Recorder()
    limiter = harness.limiter()
    assert limiter.observers == ()
    takes = [(first,), (first, second), (second,), ()]
    for observers in takes:
        limiter.observers = observers
        assert limiter.observers == observers
        async with limiter.acquire("key-1", "gpt-4", {"rpm": 1}, RPM):
            pass
    assert (len(first.decisions), len(second.decisions)) == (2, 2)


@pytest.mark.parametrize("given", [object(), Recorder, "memory://", 5], ids=["object", "class", "text", "number"])
def test_what_is_no_observer_is_refused(given: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        SyncRateLimiter("memory://", observer=given)
    assert caught.value.field == "observer"
    limiter = SyncRateLimiter("memory://", observer=Recorder())
    kept = limiter.observers
    with pytest.raises(ValidationError):
        limiter.observers = given
    assert limiter.observers is kept


def test_an_observed_limiter_goes_as_soon_as_nobody_has_it() -> None:
    limiter = SyncRateLimiter("memory://", observer=Recorder())
    with limiter.acquire("key-1", "gpt-4", {"rpm": 1}, RPM) as lease:
        lease.adjust(rpm=1)
    gone = weakref.ref(limiter._inner)
    gc.disable()
    try:
        del limiter, lease
        assert gone() is None
    finally:
        gc.enable()


async def test_slots_that_are_lost_are_told_once(harness: Harness) -> None:
    scene = Observed(harness)
    limits = [Limit.concurrent("parallel", 4, ttl=60), Limit.concurrent("own", 4, ttl=600)]
    async with scene.limiter.acquire("key-1", "gpt-4", {}, limits):
        harness.clock.advance(61)
        for _ in range(2):
            await scene.limiter.renew_slots()
        assert scene.told.lost == [SlotLost("key-1", "gpt-4", "parallel")]
    assert len(scene.told.lost) == 1
