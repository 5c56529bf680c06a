"""Renewals keep nobody waiting: no store, record, callback or event loop costs a lease its slot but its own."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import random
import threading
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import pytest

from tests.limiter.test_slot_leases import ONE, SHORT, WHOSE
from tests.support.deadlines import PATIENCE
from tests.support.virtual_time import Distant, VirtualLoop, run_virtually
from tests.support.waiting import until
from zae_limiter import Lease, Limit, RateLimiter, SyncRateLimiter, SyncRepository
from zae_limiter.core.values import BackendCapabilities
from zae_limiter.records.algebra import Committed, Conflict, Write
from zae_limiter.stores.memory import MemoryStore
from zae_limiter.testing import FaultyStore, Harness, ManualClock

KEYS = [f"key-{number}" for number in range(3)]


async def hold(limiter: RateLimiter, keys: Sequence[str], **options: Any) -> list[Lease]:
    """Enter a lease of each key, which the caller has to end."""
    leases = [limiter.acquire(key, "gpt-4", {}, limits=ONE, **options) for key in keys]
    for lease in leases:
        await lease.enter()
    return leases


# Many keys.


class Gate(FaultyStore):
    """A store at some distance that answers a commit only when sixteen are there, once it is shut."""

    shut: threading.Barrier | None = None

    @property
    def capabilities(self) -> BackendCapabilities:
        return dataclasses.replace(super().capabilities, instant=False)

    async def commit(self, writes: Sequence[Write], *, timeout: float | None = None) -> Committed | Conflict:
        if self.shut is not None:
            self.shut.wait(PATIENCE)
        return await super().commit(writes, timeout=timeout)


def test_records_are_renewed_side_by_side_by_threads() -> None:
    clock = ManualClock()
    store = Gate(MemoryStore(clock))
    limiter = SyncRateLimiter(SyncRepository(store))
    leases = [limiter.acquire(f"key-{number}", "gpt-4", {}, limits=ONE) for number in range(32)]
    for lease in leases:
        lease.enter()
    clock.advance(20)
    store.shut = threading.Barrier(16)
    limiter.renew_slots()
    store.shut = None
    clock.advance(59)
    assert not any(lease.lost for lease in leases)


def test_a_process_that_holds_slots_of_very_many_keys_loses_none() -> None:
    """One after the other, 1,500 renewals of ten milliseconds would take longer than the slots live."""

    async def work() -> int:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        limiter = RateLimiter(Distant(MemoryStore(loop), random.Random(5), one_way_ms=(5, 5)))
        limits = [Limit.concurrent("parallel", 1, ttl=6)]
        leases = [limiter.acquire(f"key-{number}", "gpt-4", {}, limits=limits) for number in range(1_500)]
        await asyncio.gather(*[lease.enter() for lease in leases])
        for _ in range(10):
            await asyncio.sleep(1)
            await limiter.renew_slots()
        lost = sum(lease.lost for lease in leases)
        await asyncio.gather(*[lease.exit() for lease in leases])
        return lost

    assert run_virtually(work()) == 0


async def test_ending_a_lease_does_not_go_through_what_others_hold() -> None:
    class Unwalked(dict[Any, Any]):
        """Can be asked for a key, but not for all of them."""

        def _refuse(self) -> NoReturn:
            raise AssertionError("it goes through all records")

        __iter__ = keys = values = items = copy = _refuse

    limiter = RateLimiter("memory://")
    leases = await hold(limiter, KEYS)
    slot_leases = limiter._slot_leases
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_records", "_places"):
            patch.setattr(slot_leases, name, Unwalked(getattr(slot_leases, name).items()))
        await leases[0].exit()
        assert dict.__len__(slot_leases._records) == 2
        await leases[1].exit()
        await leases[2].exit()
        assert (dict.__len__(slot_leases._records), dict.__len__(slot_leases._places)) == (0, 0)


# Failures.


class Broken(FaultyStore):
    """A store in which writing to one bucket fails in a way that nobody has thought of."""

    broken: str | None = None

    async def commit(self, writes: Sequence[Write], *, timeout: float | None = None) -> Committed | Conflict:
        if self.broken is not None and any(self.broken in write.key.pk for write in writes):
            raise ZeroDivisionError
        return await super().commit(writes, timeout=timeout)


async def test_an_unexpected_error_in_one_record_is_told_and_concerns_no_other(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    store = Broken(harness.store())
    limiter = harness.limiter(store)
    leases = await hold(limiter, KEYS)
    store.broken = KEYS[0]
    with caplog.at_level(logging.WARNING, "zae_limiter"):
        for _ in range(4):
            harness.clock.advance(20)
            await limiter.renew_slots()
    assert [lease.lost for lease in leases] == [True, False, False]
    failures = [vars(each) for each in caplog.records if vars(each)["zae_event"] == "chore.failed"]
    assert {each["zae_error_type"] for each in failures} == {"ZeroDivisionError"}
    store.broken = None
    for lease in leases:
        await lease.exit()


async def test_a_record_that_could_not_be_renewed_is_tried_again_soon(harness: Harness) -> None:
    store = Broken(harness.store())
    limiter = harness.limiter(store)
    (lease,) = await hold(limiter, KEYS[:1])
    harness.clock.advance(20)
    store.broken = KEYS[0]
    await limiter.renew_slots()
    store.broken = None
    harness.clock.advance(5)
    await limiter.renew_slots()
    harness.clock.advance(59)
    assert not lease.lost
    await lease.exit()


@pytest.fixture
def never() -> Iterator[threading.Event]:
    """What does not happen while a test runs."""
    event = threading.Event()
    yield event
    event.set()


def test_a_store_that_hangs_keeps_no_other_limiter_from_renewing(never: threading.Event) -> None:
    class Hanging(FaultyStore):
        hangs: bool = False
        hung = threading.Event()

        async def commit(self, writes: Sequence[Write], *, timeout: float | None = None) -> Committed | Conflict:
            if self.hangs:
                self.hung.set()
                never.wait(PATIENCE)
            return await super().commit(writes, timeout=timeout)

    stores = Hanging(MemoryStore()), FaultyStore(MemoryStore())
    limiters = [SyncRateLimiter(SyncRepository(store)) for store in stores]
    leases = [limiter.acquire(*WHOSE, {}, limits=SHORT) for limiter in limiters]
    leases[0].enter()
    stores[0].hangs = True
    assert stores[0].hung.wait(PATIENCE)
    leases[1].enter()
    before = stores[1].calls["commit"]
    until(lambda: stores[1].calls["commit"] - before == 4 or leases[1].lost, "four renewals")
    assert not leases[1].lost
    never.set()
    for limiter in limiters:
        limiter.close()


def test_a_callback_that_takes_its_time_keeps_nobody_from_being_renewed(never: threading.Event) -> None:
    clock, called = ManualClock(), threading.Event()
    store = MemoryStore(clock)
    limiter, other = (SyncRateLimiter(SyncRepository(store)) for _ in range(2))

    def dawdle(lease: object) -> None:
        called.set()
        never.wait(PATIENCE)

    leases = [limiter.acquire(key, "gpt-4", {}, limits=ONE, on_lost=dawdle) for key in KEYS]
    for lease in leases:
        lease.enter()
    other.reset_bucket(KEYS[0], "gpt-4")
    for _ in range(4):
        clock.advance(20)
        limiter.renew_slots()
    assert called.wait(PATIENCE)
    assert [lease.lost for lease in leases] == [True, False, False]


async def test_a_callback_that_raises_is_told_once_and_keeps_nobody_from_being_renewed(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    limiter, other, told = harness.limiter(), harness.limiter(), list[object]()

    def fail(lease: object) -> None:
        told.append(lease)
        raise KeyError

    leases = await hold(limiter, KEYS, on_lost=fail)
    for key in KEYS[:2]:
        await other.reset_bucket(key, "gpt-4")
    with caplog.at_level(logging.WARNING, "zae_limiter"):
        for _ in range(4):
            harness.clock.advance(20)
            await limiter.renew_slots()
        if harness.blocking:
            until(lambda: len(told) == 2, "two callbacks in threads")
        else:
            await asyncio.sleep(0)
    assert {id(lease) for lease in told} == {id(lease) for lease in leases[:2]}
    assert [lease.lost for lease in leases] == [True, True, False]
    until(lambda: _count(caplog, "observer.failed") == 1, "the record of it")
    assert _count(caplog, "lease.slot_lost") == 2
    for lease in leases:
        await lease.exit()


def _count(caplog: pytest.LogCaptureFixture, event: str) -> int:
    return sum(vars(each)["zae_event"] == event for each in caplog.records)


# Event loops.


def test_a_blocked_event_loop_keeps_no_other_from_renewing_on_a_store_that_only_loops_can_use(
    never: threading.Event,
) -> None:
    store = FaultyStore(MemoryStore(), suspend=True)
    limiter = RateLimiter(store)
    held = threading.Event()
    lost: list[bool] = []

    async def enter(key: str) -> Lease:
        lease = limiter.acquire(key, "gpt-4", {}, limits=SHORT)
        await lease.enter()
        return lease

    async def block() -> None:
        lease = await enter("blocked")
        held.set()
        never.wait(PATIENCE)
        lost.append(lease.lost)
        await lease.exit()

    async def go_on() -> None:
        lease = await enter("free")
        before = store.calls["commit"]
        while store.calls["commit"] < before + 6 and not lease.lost:  # noqa: ASYNC110  # for two times to live
            await asyncio.sleep(0.01)
        lost.append(lease.lost)
        await lease.exit()

    thread = threading.Thread(target=lambda: asyncio.run(block()))
    thread.start()
    assert held.wait(PATIENCE)
    asyncio.run(go_on())
    never.set()
    thread.join()
    assert lost == [False, True]


async def test_a_record_that_two_event_loops_hold_slots_in_is_renewed_by_one_write() -> None:
    clock = ManualClock()
    store = FaultyStore(MemoryStore(clock), suspend=True)
    limiter = RateLimiter(store)
    limits = [Limit.concurrent("parallel", 2, ttl=60)]
    here, there = (limiter.acquire(*WHOSE, {}, limits=limits) for _ in range(2))
    other = asyncio.new_event_loop()
    await here.enter()
    await asyncio.to_thread(other.run_until_complete, there.enter())
    before = store.calls["commit"]
    clock.advance(20)
    await asyncio.gather(limiter.renew_slots(), limiter.renew_slots())
    assert store.calls["commit"] == before + 1
    clock.advance(59)
    assert [here.lost, there.lost] == [False, False]
    await here.exit()
    await asyncio.to_thread(other.run_until_complete, there.exit())
    other.close()
