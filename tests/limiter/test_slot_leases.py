"""Slots are held for as long as their leases: renewed by one write whatever the loop does, and let go with them."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest

from tests.limiter.test_slot_crowds import place
from zae_limiter import Lease, Limit, RateLimiter, RateLimitExceeded, SyncRateLimiter, SyncRepository
from zae_limiter.records.algebra import Committed, Conflict, Write
from zae_limiter.stores.memory import MemoryStore
from zae_limiter.testing import FaultyStore, Harness, ManualClock

WHOSE = ("key", "gpt-4")
ONE = [Limit.concurrent("parallel", 1, ttl=60)]
SHORT = [Limit.concurrent("parallel", 1, ttl=1)]
MANY = [Limit.concurrent("parallel", 8, ttl=60)]


async def enter(limiter: RateLimiter, limits: Sequence[Limit] = ONE, **options: object) -> Lease:
    """Enter a lease, which the caller has to end."""
    lease = limiter.acquire(*WHOSE, {}, limits=limits, **options)  # type: ignore[arg-type]  # whatever a test gives
    await lease.enter()
    return lease


async def free(limiter: RateLimiter, limits: Sequence[Limit] = ONE) -> int:
    return (await limiter.available(*WHOSE, limits=limits))["parallel"]


async def turn(harness: Harness) -> None:
    """Let an event loop do what it was asked for."""
    if not harness.blocking:
        await asyncio.sleep(0)


# Renewing.


@pytest.mark.parametrize("kinds", [("memory", "sqlite"), ("redis", "dynamodb")], ids="-".join)
async def test_a_blocked_event_loop_loses_no_slot(kinds: Sequence[str], tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        limiters, others = [], []
        for kind in kinds:
            where = MemoryStore() if kind == "memory" else stack.enter_context(place(kind, tmp_path))
            limiters.append(await stack.enter_async_context(RateLimiter(where)))
            others.append(stack.enter_context(SyncRateLimiter(SyncRepository(where))))
        leases = [await enter(limiter, SHORT) for limiter in limiters]
        time.sleep(2.2)  # noqa: ASYNC251  # the loop is blocked for two times to live
        assert [lease.lost for lease in leases] == [False, False]
        assert [other.available(*WHOSE, limits=SHORT)["parallel"] for other in others] == [0, 0]
        for lease in leases:
            await lease.exit()
        assert [other.available(*WHOSE, limits=SHORT)["parallel"] for other in others] == [1, 1]


async def test_ten_times_to_live_are_thirty_writes_for_any_number_of_leases(harness: Harness) -> None:
    store = FaultyStore(harness.store())
    limiter, other = harness.limiter(store), harness.limiter()
    leases = [await enter(limiter, MANY) for _ in range(8)]
    before = store.calls.copy()
    for _ in range(30):
        harness.clock.advance(20)
        await limiter.renew_slots()
        await limiter.renew_slots()
    assert store.calls - before == {"commit": 30}
    assert not any(lease.lost for lease in leases)
    with pytest.raises(RateLimitExceeded):
        await enter(other, MANY)
    for lease in leases:
        await lease.exit()
    assert await free(other, MANY) == 8


async def test_a_store_that_only_loops_can_use_is_renewed_in_the_loop_of_a_lease() -> None:
    threads = set()

    class Foreign(FaultyStore):
        async def commit(self, writes: Sequence[Write], *, timeout: float | None = None) -> Committed | Conflict:
            threads.add(threading.get_ident())
            asyncio.get_running_loop()
            return await super().commit(writes, timeout=timeout)

    store = Foreign(MemoryStore(), suspend=True)
    async with RateLimiter(store) as limiter:
        lease = await enter(limiter, SHORT)
        before = store.calls["commit"]
        await asyncio.sleep(1.3)
        assert not lease.lost
        assert 3 <= store.calls["commit"] - before <= 4
        await lease.exit()
        assert await free(limiter, SHORT) == 1
    assert threads == {threading.get_ident()}


async def test_slots_with_different_times_to_live_are_renewed_by_the_shorter_one(harness: Harness) -> None:
    limits = [Limit.concurrent("parallel", 2, ttl=600), Limit.concurrent("seats", 2, ttl=30)]
    limiter = harness.limiter()
    lease = await enter(limiter, limits)
    for _ in range(12):
        harness.clock.advance(10)
        await limiter.renew_slots()
        assert not lease.lost
    await lease.exit()


async def test_what_is_taken_while_a_renewal_is_on_its_way_is_not_lost() -> None:
    """The answer of a renewal may be older than a slot that was taken since."""

    class Slow(FaultyStore):
        late: bool = False

        async def commit(self, writes: Sequence[Write], *, timeout: float | None = None) -> Committed | Conflict:
            outcome = await super().commit(writes, timeout=timeout)
            if self.late:
                self.late = False
                with contextlib.suppress(RateLimitExceeded):
                    leases.append(await enter(limiter, MANY))
            return outcome

    clock = ManualClock()
    store = Slow(MemoryStore(clock), suspend=True)
    limiter = RateLimiter(store)
    leases = [await enter(limiter, MANY)]
    clock.advance(20)
    store.late = True
    await limiter.renew_slots()
    assert len(leases) == 2
    assert not any(lease.lost for lease in leases)
    for _ in range(6):
        clock.advance(20)
        await limiter.renew_slots()
    assert not any(lease.lost for lease in leases)
    for lease in leases:
        await lease.exit()
    assert await free(limiter, MANY) == 8


# Closing.


async def test_a_lease_outlives_its_limiter_and_still_frees_its_slot(harness: Harness) -> None:
    limiter, other = harness.limiter(), harness.limiter()
    lease = await enter(limiter)
    await limiter.close()
    await lease.exit()
    assert await free(other) == 1


def test_a_closed_limiter_renews_nothing(tmp_path: Path) -> None:
    """The slot of a lease that nobody ends comes back by itself."""
    url = f"sqlite:///{tmp_path}/limits.db"
    with SyncRateLimiter(url) as other:
        limiter = SyncRateLimiter(url)
        lease = limiter.acquire(*WHOSE, {}, limits=SHORT)
        lease.enter()
        time.sleep(0.5)  # it was renewed once
        limiter.close()
        time.sleep(1)
        with other.acquire(*WHOSE, {}, limits=SHORT):
            assert lease.lost


# Leases that nobody ends as they should be.


async def stream(limiter: RateLimiter) -> AsyncIterator[int]:
    """Chunks of an answer, with a slot as long as there are more."""
    async with limiter.acquire(*WHOSE, {}, limits=ONE):
        for chunk in range(100):
            yield chunk


def blocking_stream(limiter: SyncRateLimiter) -> Iterator[int]:
    """The same in blocking code."""
    with limiter.acquire(*WHOSE, {}, limits=ONE):
        yield from range(100)


@pytest.mark.parametrize("chunks", [1, 5])
@pytest.mark.parametrize("kind", ["memory", "sqlite", "redis"])
async def test_a_stream_that_is_closed_early_has_freed_its_slot(kind: str, chunks: int, tmp_path: Path) -> None:
    with contextlib.nullcontext("memory://") if kind == "memory" else place(kind, tmp_path) as url:
        async with RateLimiter(url) as limiter:
            chunked = stream(limiter)
            for _ in range(chunks):
                await anext(chunked)
            assert await free(limiter) == 0
            await chunked.aclose()  # type: ignore[attr-defined]  # generators have it
            assert await free(limiter) == 1


async def test_a_stream_that_is_collected_frees_its_slot(tmp_path: Path) -> None:
    async with RateLimiter(f"sqlite:///{tmp_path}/limits.db") as limiter:
        chunked = stream(limiter)
        await anext(chunked)
        del chunked
        gc.collect()
        while await free(limiter) == 0:  # noqa: ASYNC110  # the loop closes it when it likes
            await asyncio.sleep(0.001)


def test_a_blocking_stream_that_is_collected_frees_its_slot(tmp_path: Path) -> None:
    with SyncRateLimiter(f"sqlite:///{tmp_path}/limits.db") as limiter:
        chunked = blocking_stream(limiter)
        next(chunked)
        assert limiter.available(*WHOSE, limits=ONE) == {"parallel": 0}
        del chunked
        gc.collect()
        assert limiter.available(*WHOSE, limits=ONE) == {"parallel": 1}


@pytest.mark.parametrize("forgotten", [True, False], ids=["forgotten", "loop closed"])
def test_what_nobody_can_end_any_more_is_not_renewed(forgotten: bool) -> None:
    """Nobody refers to the lease, or its event loop is closed: the slot comes back after its time to live."""
    clock = ManualClock()
    store = FaultyStore(MemoryStore(clock))
    limiter = RateLimiter(store)
    loop = asyncio.new_event_loop()
    lease: Lease | None = loop.run_until_complete(enter(limiter))
    if forgotten:
        lease = None
        gc.collect()
    else:
        loop.close()
    before = store.calls["commit"]
    for _ in range(3):
        clock.advance(20)
        limiter._slot_leases._renew_in_thread()
    loop.close()
    assert store.calls["commit"] == before
    assert (lease is None) is forgotten
    assert asyncio.run(free(limiter)) == 1


async def test_a_lease_of_several_resources_holds_and_frees_all_slots(harness: Harness) -> None:
    store = FaultyStore(harness.store())
    limiter, other = harness.limiter(store), harness.limiter()
    await limiter.set_system_defaults(ONE)
    suffix = uuid.uuid4().hex[:4]
    names = [f"model-{suffix}", f"tool-{suffix}"]
    lease = limiter.acquire("key", {name: {} for name in names})
    await lease.enter()
    for _ in range(5):
        harness.clock.advance(20)
        await limiter.renew_slots()
    assert not lease.lost
    assert [await other.available("key", name) for name in names] == [{"parallel": 0}] * 2
    await lease.exit()
    assert [await other.available("key", name) for name in names] == [{"parallel": 1}] * 2


def test_a_late_look_at_a_record_that_was_left_does_not_forget_its_successor() -> None:
    """The answer to its renewal shows a split, when other leases hold slots under the same key."""
    limiter = SyncRateLimiter(SyncRepository(MemoryStore(ManualClock())))
    slot_leases = limiter._inner._slot_leases
    with limiter.acquire(*WHOSE, {}, limits=ONE):
        (left,) = slot_leases._records.values()
    with limiter.acquire(*WHOSE, {}, limits=ONE):
        slot_leases._follow_split(left, {**(left.shard.seen.image or {}), "shard_count": 2})
        assert len(slot_leases._records) == 1
    assert limiter.available(*WHOSE, limits=ONE) == {"parallel": 1}
