"""A slot that is lost: its lease says so, and whoever entered it is told once, or cancelled."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest

from tests.limiter.test_slot_leases import ONE, WHOSE, enter, free, turn
from tests.support.waiting import until
from zae_limiter import Limit, RateLimiter, SlotLostError, SyncRateLimiter, SyncRepository, ValidationError
from zae_limiter.core.errors import ZAELimiterError
from zae_limiter.stores.memory import MemoryStore
from zae_limiter.testing import FaultyStore, Harness, ManualClock


class Room:
    """A limiter on a manual clock."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = FaultyStore(MemoryStore(self.clock))
        self.limiter = RateLimiter(self.store)

    async def lose(self) -> None:
        """Let all slots expire, and have the housekeeper's work done in another thread."""
        self.clock.advance(60)
        await asyncio.to_thread(self.limiter._slot_leases._renew_in_thread)


async def test_a_slot_that_was_freed_by_somebody_else_is_lost(harness: Harness) -> None:
    limiter, other = harness.limiter(), harness.limiter()
    await limiter.set_system_defaults([*ONE, Limit.per_hour("rph", 10)])
    lease = limiter.acquire(*WHOSE, {"rph": 1})
    await lease.enter()
    await other.reset_bucket(*WHOSE)
    harness.clock.advance(20)
    await limiter.renew_slots()
    assert lease.lost
    await lease.exit()
    assert await other.available(*WHOSE) == {"parallel": 1, "rph": 10}


async def test_who_asked_for_it_is_told_once_in_its_loop_however_many_slots_are_lost() -> None:
    room, told = Room(), []
    await room.limiter.set_system_defaults([*ONE, Limit.concurrent("seats", 2)])
    await room.limiter.create_entity("org")
    await room.limiter.create_entity("key", parent_id="org", cascade=True)

    def note(lease: Any) -> None:
        told.append((lease, threading.get_ident()))

    async with room.limiter.acquire(*WHOSE, {}, on_lost=note) as lease:
        await room.lose()
        await room.lose()
        await asyncio.sleep(0)
        assert lease.lost
    assert told == [(lease, threading.get_ident())]


@pytest.mark.parametrize("waits", [(20, 20, 20, 20, 10, 10), (40, 40, 20)])
async def test_the_longest_hold_ends_when_it_is_over(harness: Harness, waits: tuple[int, ...]) -> None:
    """It is not found out later than that: the next renewal is due then."""
    limiter, told = harness.limiter(), list[object]()
    lease = await enter(limiter, [Limit.concurrent("parallel", 1, ttl=60, max_hold=100)], on_lost=told.append)
    for wait in waits:
        assert not lease.lost
        harness.clock.advance(wait)
        await limiter.renew_slots()
    await turn(harness)
    assert lease.lost
    assert told == [lease]
    await lease.exit()


def test_blocking_code_is_told_and_a_callback_that_raises_keeps_nobody_from_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, told = ManualClock(), []
    limiter = SyncRateLimiter(SyncRepository(MemoryStore(clock)))

    def fail(lease: Any) -> None:
        told.append(lease)
        raise KeyError

    leases = [limiter.acquire(f"key-{number}", "gpt-4", {}, limits=ONE, on_lost=fail) for number in range(3)]
    for lease in leases:
        lease.enter()
    clock.advance(60)
    with caplog.at_level(logging.WARNING, "zae_limiter"):
        limiter._inner._slot_leases._renew_in_thread()
        until(lambda: len(told) == 3 and len(caplog.records) == 4, "all are told, in threads of their own")
    assert {*told} == {*leases}
    events = [record.__dict__["zae_event"] for record in caplog.records]
    assert sorted(events) == ["lease.slot_lost"] * 3 + ["observer.failed"]


def test_blocking_code_cannot_be_cancelled() -> None:
    limiter = SyncRateLimiter("memory://")
    with pytest.raises(ValidationError, match="on_lost"):
        limiter.acquire(*WHOSE, {}, limits=ONE, on_lost="cancel")
    with pytest.raises(ValidationError, match="on_lost"):
        SyncRateLimiter("memory://", on_lost="cancel")


# Cancelled.


def cancelling() -> int:
    """How often the running task was cancelled, as far as that was not undone."""
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling()


@pytest.mark.parametrize("resources", ["gpt-4", ("model", "tool")], ids=["one resource", "two resources"])
async def test_a_cancelled_body_raises_that_its_slot_is_lost_and_leaves_the_task_uncancelled(resources: Any) -> None:
    room = Room()
    await room.limiter.set_system_defaults(ONE)
    what: Any = ("gpt-4", {}) if isinstance(resources, str) else ({name: {} for name in resources},)
    with pytest.raises(SlotLostError) as lost:
        async with room.limiter.acquire("key", *what, on_lost="cancel") as lease:
            await room.lose()
            await asyncio.Event().wait()
    assert isinstance(lost.value.__cause__, asyncio.CancelledError)
    assert isinstance(lost.value, ZAELimiterError)
    assert (lease.lost, cancelling()) == (True, 0)
    await asyncio.sleep(0)


@pytest.mark.parametrize("first", [True, False], ids=["before", "after"])
async def test_a_cancellation_by_others_at_the_same_time_stays_one(first: bool) -> None:
    room = Room()

    async def work() -> None:
        async with room.limiter.acquire(*WHOSE, {}, limits=ONE, on_lost="cancel"):
            loop = asyncio.get_running_loop()
            if first:
                loop.call_soon(task.cancel)
            room.clock.advance(60)
            await room.limiter.renew_slots()
            if not first:
                loop.call_soon(task.cancel)
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()


async def test_a_task_that_was_cancelled_before_hears_of_the_loss() -> None:
    """As it cleans up: only what has come since it entered is somebody else's."""
    room = Room()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            async with room.limiter.acquire(*WHOSE, {}, limits=ONE, on_lost="cancel"):
                await room.lose()
                await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(SlotLostError):
        await task
    assert task.cancelling() == 1


async def test_a_body_that_has_ended_is_not_cancelled_any_more() -> None:
    room = Room()
    async with room.limiter.acquire(*WHOSE, {}, limits=ONE, on_lost="cancel") as lease:
        room.clock.advance(60)
        await room.limiter.renew_slots()  # the store is in memory: the loop has no turn before the block ends
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (lease.lost, cancelling()) == (True, 0)


async def test_a_body_that_goes_on_or_fails_otherwise_leaves_the_task_uncancelled() -> None:
    room = Room()
    async with room.limiter.acquire(*WHOSE, {}, limits=ONE, on_lost="cancel"):
        with pytest.raises(asyncio.CancelledError):
            await room.lose()
            await asyncio.Event().wait()
    assert cancelling() == 0
    with pytest.raises(KeyError):
        async with room.limiter.acquire(*WHOSE, {}, limits=ONE, on_lost="cancel"):
            try:
                await room.lose()
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise KeyError from None
    assert cancelling() == 0
    assert await free(room.limiter) == 1


async def test_two_leases_of_one_task_that_are_lost_together_are_one_loss() -> None:
    room = Room()
    await room.limiter.set_system_defaults(ONE)
    one, two = (room.limiter.acquire(who, "gpt-4", {}, on_lost="cancel") for who in ("one", "two"))
    with pytest.raises(SlotLostError):
        async with one, two:
            await room.lose()
            await asyncio.Event().wait()
    assert cancelling() == 0
