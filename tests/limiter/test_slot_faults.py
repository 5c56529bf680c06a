"""Slots on a store that fails, and holders that wake up too late: nobody touches what somebody else has."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from tests.limiter.test_slot_leases import ONE, WHOSE, enter, free, turn
from zae_limiter import RateLimiterUnavailable, RateLimitExceeded
from zae_limiter.records.algebra import Committed, Conflict, Write
from zae_limiter.testing import Fault, FaultyStore, Harness

TTL = 60


class Overtaken(FaultyStore):
    """A store before whose next commit something else happens."""

    before: Callable[[], Coroutine[Any, Any, None]] | None = None

    async def commit(self, writes: Sequence[Write], *, timeout: float | None = None) -> Committed | Conflict:
        before, self.before = self.before, None
        if before is not None:
            await before()
        return await super().commit(writes, timeout=timeout)


async def test_a_renewal_whose_answer_is_lost_is_found_in_the_record(harness: Harness) -> None:
    store = FaultyStore(harness.store())
    limiter, other = harness.limiter(store), harness.limiter(refusal_ttl=0)
    lease = await enter(limiter)
    for _ in range(6):
        harness.clock.advance(20)
        store.inject(Fault.FAIL_AFTER, verb="commit")
        await limiter.renew_slots()
        harness.clock.advance(5)
        await limiter.renew_slots()
        assert not lease.lost
    with pytest.raises(RateLimitExceeded):
        await enter(other)
    await lease.exit()
    assert (await free(other), lease.lost) == (1, False)


async def test_a_release_whose_answer_is_lost_frees_its_slot_and_no_other(harness: Harness) -> None:
    store = FaultyStore(harness.store())
    limiter, other = harness.limiter(store), harness.limiter()
    lease = await enter(limiter)
    store.inject(Fault.FAIL_AFTER, verb="commit")
    with pytest.raises(RateLimiterUnavailable):
        await lease.exit()
    successor = await enter(other)
    harness.clock.advance(20)
    for each in (limiter, other):
        await each.renew_slots()
    await lease.exit()
    assert not successor.lost
    assert await free(other) == 0
    await successor.exit()
    assert await free(other) == 1


async def test_a_release_that_fails_leaves_the_slot_until_it_expires(harness: Harness) -> None:
    store = FaultyStore(harness.store())
    limiter, other = harness.limiter(store), harness.limiter(refusal_ttl=0)
    lease = await enter(limiter)
    store.inject(Fault.FAIL_BEFORE, verb="commit")
    with pytest.raises(RateLimiterUnavailable):
        await lease.exit()
    harness.clock.advance(20)
    await limiter.renew_slots()
    harness.clock.advance_ms(TTL * 1000 - 20_001)
    with pytest.raises(RateLimitExceeded):
        await enter(other)
    harness.clock.advance_ms(1)
    await (await enter(other)).exit()


@pytest.mark.parametrize("down", [3, 7], ids=["back in time", "back too late"])
async def test_a_store_that_is_down_during_renewals(harness: Harness, down: int) -> None:
    """A slot is kept if it comes back within the time to live; else it is lost, and not taken again by its lease."""
    store, told = FaultyStore(harness.store()), list[object]()
    limiter, other = harness.limiter(store), harness.limiter()
    lease = await enter(limiter, on_lost=told.append)
    store.inject(Fault.FAIL_BEFORE, times=100)
    for _ in range(down):
        harness.clock.advance(10)
        await limiter.renew_slots()
    store.heal()
    await turn(harness)
    kept = down * 10 < TTL
    assert lease.lost is not kept
    successor = None if kept else await enter(other)
    harness.clock.advance(10)
    await limiter.renew_slots()
    await lease.exit()
    assert lease.lost is not kept
    assert await free(other) == (1 if kept else 0)
    if successor is not None:
        assert not successor.lost
        await successor.exit()
        assert told == [lease]


@pytest.mark.parametrize("ends", [False, True], ids=["renewal", "release"])
@pytest.mark.parametrize("known", [False, True], ids=["unseen", "seen"])
async def test_a_late_write_of_a_stale_holder_changes_nothing(harness: Harness, ends: bool, known: bool) -> None:
    """It is on its way when the slot expires and somebody else takes it."""
    store = Overtaken(harness.store())
    limiter, other = harness.limiter(store, timeout=3600), harness.limiter(refusal_ttl=0)
    lease = await enter(limiter)
    successors = []

    async def succeed() -> None:
        harness.clock.advance(TTL)
        successors.append(await enter(other, holder="successor"))
        if known:
            await limiter.available(*WHOSE, limits=ONE)

    harness.clock.advance(20)
    store.before = succeed
    await (lease.exit() if ends else limiter.renew_slots())
    (successor,) = successors
    assert lease.lost
    for _ in range(4):
        harness.clock.advance(20)
        for each in (limiter, other):
            await each.renew_slots()
    assert not successor.lost
    await lease.exit()
    with pytest.raises(RateLimitExceeded):
        await enter(other)
    await successor.exit()
    assert await free(other) == 1
