"""Never more slots than there are: lowered limits, floors among several processes, and what one write can take."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from tests.limiter.test_slot_faults import Overtaken
from tests.limiter.test_slot_leases import WHOSE
from tests.support.backends import BACKENDS
from zae_limiter import Lease, Limit, RateLimiter, RateLimitExceeded, Store, ValidationError
from zae_limiter.records.algebra import MISSING_OR_AT_MOST, Committed, Conflict, Write
from zae_limiter.testing import FaultyStore, Harness

WIDE = [Limit.concurrent("seats", 1_000), Limit.concurrent("rooms", 1_000)]


async def take(limiter: RateLimiter, cost: Mapping[str, int] | None = None, *, priority: str | None = None) -> Lease:
    """Enter a lease, which the caller has to end."""
    lease = limiter.acquire(*WHOSE, cost or {}, priority=priority)
    await lease.enter()
    return lease


def number(lease: Lease) -> int:
    """The number of the one slot that a lease holds."""
    assert lease._holder is not None
    (slot,) = lease._holder.slots
    return slot.number


async def test_a_slot_above_a_lowered_limit_that_has_expired_does_not_come_back(harness: Harness) -> None:
    """Its renewal is on the way when it expires, and somebody takes the slot that is left."""
    store = Overtaken(harness.store())
    limiter, other = harness.limiter(store, timeout=3_600), harness.limiter(refusal_ttl=0)
    await limiter.set_system_defaults([Limit.concurrent("parallel", 3, ttl=60)])
    leases = sorted([await take(limiter) for _ in range(3)], key=number)
    for lease in leases[:2]:
        await lease.exit()
    await other.set_system_defaults([Limit.concurrent("parallel", 1, ttl=60)])
    with pytest.raises(RateLimitExceeded):
        await take(other)
    harness.clock.advance_ms(59_999)
    successors = []

    async def succeed() -> None:
        harness.clock.advance_ms(1)
        successors.append(await take(other))

    store.before = succeed
    await limiter.renew_slots()
    (status,) = await other.get_status(*WHOSE)
    assert (leases[2].lost, successors[0].lost, status.in_flight) == (True, False, 1)
    assert number(successors[0]) == 0
    await leases[2].exit()
    await successors[0].exit()


async def test_what_has_to_be_left_for_others_is_left_whatever_a_process_has_seen(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults([Limit.concurrent("parallel", 10, ttl=60, floors={"batch": 0.5})])
    stale = [harness.limiter() for _ in range(4)]
    for each in stale:
        await (await take(each, priority="batch")).exit()
    leases = [await take(limiter) for _ in range(10)]
    for lease in leases:
        if number(lease) < 5:  # those that whoever has to leave five takes of a bucket that is not used
            await lease.exit()
    harness.clock.advance(5)
    for each in stale:
        with pytest.raises(RateLimitExceeded):
            await take(each, priority="batch")
    (status,) = await limiter.get_status(*WHOSE)
    assert status.in_flight == 5
    for lease in leases:
        await lease.exit()
    for each in stale:
        await (await take(each, priority="batch")).exit()


# What one write takes.


class Watched(FaultyStore):
    """A store that keeps what it was asked to write."""

    def __init__(self, inner: Store, *, suspend: bool = False) -> None:
        super().__init__(inner, suspend=suspend)
        self.written: list[Write] = []

    async def commit(self, writes: Sequence[Write], *, timeout: float | None = None) -> Committed | Conflict:
        self.written += writes
        return await super().commit(writes, timeout=timeout)


@pytest.mark.parametrize("cost", [{"seats": 30, "rooms": 30}, {"seats": 51, "rooms": 0}, {"seats": 50}, {"seats": 120}])
async def test_more_slots_than_one_write_takes_are_an_error_of_the_caller(
    harness: Harness, cost: Mapping[str, int]
) -> None:
    """Over all limits: one that is not named costs a slot as well."""
    limiter = harness.limiter()
    await limiter.set_system_defaults(WIDE)
    with pytest.raises(ValidationError, match="at most 50 slots at once, over all limits") as wrong:
        await take(limiter, cost)
    assert wrong.value.field == "consume"
    async with limiter.acquire(*WHOSE, {}) as lease:
        with pytest.raises(ValidationError, match="at most 50 slots at once, over all limits"):
            await lease.consume({"rooms": 1, **cost})
        assert await limiter.available(*WHOSE) == {"seats": 999, "rooms": 999}
    assert await limiter.available(*WHOSE) == {"seats": 1_000, "rooms": 1_000}


@pytest.mark.parametrize("cost", [{"seats": 50, "rooms": 0}, {"seats": 25, "rooms": 25}], ids=["one", "two"])
async def test_as_many_slots_as_one_write_takes_are_granted(harness: Harness, cost: Mapping[str, int]) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults(WIDE)
    async with limiter.acquire(*WHOSE, cost) as lease:
        assert await limiter.available(*WHOSE) == {name: 1_000 - cost[name] for name in cost}
        await lease.consume(cost)
        assert await limiter.available(*WHOSE) == {name: 1_000 - 2 * cost[name] for name in cost}
        harness.clock.advance(20)
        await limiter.renew_slots()
    assert await limiter.available(*WHOSE) == {"seats": 1_000, "rooms": 1_000}


@pytest.mark.parametrize("backend", [each for each in BACKENDS if not each.blocking], ids=str)
async def test_acquires_that_come_together_are_granted_whatever_they_take_together(harness: Harness) -> None:
    store = Watched(harness.store(), suspend=True)
    limiter = harness.limiter(store)
    await limiter.set_system_defaults(WIDE)
    await (await take(limiter)).exit()
    store.written.clear()
    leases = await asyncio.gather(*[take(limiter, {"seats": 10, "rooms": 10}) for _ in range(6)])
    guards = [[attr for attr, operator, _ in write.guards if operator == MISSING_OR_AT_MOST] for write in store.written]
    taken = [sum(attr.startswith("s_") for attr in each) for each in guards]
    assert max(taken) == 40, "two together, not three"
    assert await limiter.available(*WHOSE) == {"seats": 940, "rooms": 940}
    for lease in leases:
        await lease.exit()
    assert await limiter.available(*WHOSE) == {"seats": 1_000, "rooms": 1_000}
