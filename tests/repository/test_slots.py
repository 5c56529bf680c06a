"""Slots in reports: who holds them, since when; how they are counted, and how operators free them."""

from __future__ import annotations

from contextlib import AsyncExitStack, ExitStack
from typing import Any

import pytest

from tests.conformance.shards import split
from tests.limiter.test_shards import opened
from zae_limiter import (
    BucketOperationResult,
    BucketState,
    EntityCapacity,
    Lease,
    Limit,
    Load,
    RateLimiter,
    RateLimitExceeded,
    SlotState,
    SyncRateLimiter,
    ValidationError,
)
from zae_limiter.records.slots import MOST_FREED
from zae_limiter.stores.memory import MemoryStore
from zae_limiter.testing import Harness, ManualClock

PARALLEL = Limit.concurrent("parallel", 3, ttl=60, max_hold=600)
JOBS = Limit.concurrent("jobs", 2, ttl=30)
RPM = Limit.custom("rpm", capacity=10, refill_amount=1, refill_period_seconds=10**8)


async def hold(stack: AsyncExitStack, limiter: RateLimiter, holder: str | None = None, **more: Any) -> Lease:
    return await stack.enter_async_context(limiter.acquire("key", "gpt-4", {}, holder=holder, **more))


async def renew(limiter: RateLimiter) -> None:
    """Do what the housekeeper does when slots are due."""
    await limiter.renew_slots()


async def taken(limiter: RateLimiter, limit_name: str = "parallel") -> list[str | None]:
    """Who holds slots of a limit, in the order of their names."""
    state = await limiter.repository.get_bucket("key", "gpt-4", limit_name)
    assert state is not None
    return sorted([slot.holder for slot in state.slots], key=str)


async def test_a_bucket_shows_who_holds_its_slots_the_longest_first(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults([PARALLEL, RPM])
    start = harness.clock.now_ms()
    async with AsyncExitStack() as stack:
        await hold(stack, limiter, "worker-7")
        harness.clock.advance(5)
        await hold(stack, harness.limiter())
        state, rpm = await limiter.repository.get_buckets("key", "gpt-4")
        assert len({slot.number for slot in state.slots} & {0, 1, 2}) == 2
        assert [(slot.since_ms, slot.until_ms, slot.holder) for slot in state.slots] == [
            (start, start + 60_000, "worker-7"),
            (start + 5_000, start + 65_000, None),
        ]
        assert (state.in_flight, state.tokens, state.capacity, state.ttl_ms) == (2, 1, 3, 60_000)
        assert (rpm.in_flight, rpm.slots, rpm.ttl_ms) == (None, (), 0)
        assert Limit.from_bucket_state(state) == Limit.concurrent("parallel", 3, ttl=60)
        assert await limiter.repository.get_resource_buckets("gpt-4", "parallel") == [state]
    harness.clock.advance(2)
    (free,) = await limiter.repository.get_resource_buckets("gpt-4", "parallel")
    assert (free.slots, free.tokens, free.total_consumed_milli) == ((), 3, 5_000)


async def test_a_slot_that_has_expired_is_not_shown(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults([PARALLEL])
    async with AsyncExitStack() as stack:
        await hold(stack, limiter, "dead")
        harness.clock.advance(60)
        assert await taken(harness.limiter()) == []
        assert (await limiter.repository.survey_buckets()).loads[0].available == 3


async def test_an_unused_limit_has_a_full_bucket(harness: Harness) -> None:
    repository = harness.repository()
    found = await repository.get_or_create_bucket("key", "gpt-4", PARALLEL)
    assert found == BucketState.from_limit("key", "gpt-4", PARALLEL, harness.clock.now_ms())
    assert (found.tokens, found.in_flight) == (3, 0)


async def test_slots_of_one_millisecond_are_listed_in_the_order_of_taking(harness: Harness) -> None:
    """Whichever client takes them, one by one or several with one write."""
    clients = [harness.limiter(), harness.limiter()]
    await clients[0].set_system_defaults([Limit.concurrent("parallel", 60)])
    holders = [f"holder-{number:02}" for number in range(12)]
    async with AsyncExitStack() as held:
        for number, holder in enumerate(holders):
            lease = clients[number % 2].acquire("key", "jobs", {"parallel": 1 + number % 3}, holder=holder)
            await held.enter_async_context(lease)
        (state,) = await clients[1].get_buckets("key", "jobs")
        assert list(dict.fromkeys(slot.holder for slot in state.slots)) == holders
        assert len({slot.since_ms for slot in state.slots}) == 1


async def test_surveys_and_capacities_count_free_slots(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults([PARALLEL])
    async with AsyncExitStack() as stack:
        await hold(stack, limiter)
        harness.clock.advance(10)
        await hold(stack, limiter)
        survey = await limiter.repository.survey_buckets()
        assert survey.loads == (Load("key", "gpt-4", "parallel", 3, 1, 66.67, 60.0, 0, in_flight=2),)
        capacity = await limiter.get_resource_capacity("gpt-4", "parallel")
        assert (capacity.total_capacity, capacity.total_available) == (3, 1)
        assert capacity.entities == (EntityCapacity("key", 3, 1, 66.67),)
    harness.clock.advance(10)
    (later,) = (await limiter.repository.survey_buckets()).busiest(since=survey)
    assert (later.available, later.in_flight, later.consumed_per_second) == (3, 0, 1.0), "10 slot-seconds in 10 s"


async def test_questions_that_take_nothing(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.create_entity("acme")
    await limiter.create_entity("key", parent_id="acme", cascade=True)
    await limiter.set_limits("acme", [Limit.concurrent("parallel", 5, floors={"batch": 0.4})])
    await limiter.set_limits("key", [PARALLEL])
    async with AsyncExitStack() as stack:
        await hold(stack, limiter, "a")
        harness.clock.advance(10)
        await hold(stack, limiter, "b")
        assert await limiter.available("key", "gpt-4") == {"parallel": 1}
        assert await limiter.available("key", "gpt-4", priority="batch") == {"parallel": 1}
        assert await limiter.time_until_available("key", "gpt-4", {"parallel": 2}) == 50
        answer = await limiter.check_availability("key", "gpt-4", {"parallel": 2})
        assert (answer.allowed, answer.exceeded, answer.retry_after_seconds) == (False, ["parallel"], 50)
        assert (await limiter.check_availability("key", "gpt-4", {"parallel": 1})).allowed
        own, above = await limiter.get_status("key", "gpt-4")
        assert [(status.in_flight, status.available) for status in (own, above)] == [(2, 1), (2, 3)]
        assert [slot.holder for status in (own, above) for slot in status.slots] == ["a", "b", "a", "b"]
        assert own.slots[0].until_ms - harness.clock.now_ms() == 50_000


async def test_a_slot_is_needed_also_if_it_is_not_named(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults([JOBS, RPM])
    async with AsyncExitStack() as stack:
        for holder in "ab":
            await hold(stack, limiter, holder)
            harness.clock.advance(1)
        answer = await limiter.check_availability("key", "gpt-4", {"rpm": 1})
        assert (answer.allowed, answer.exceeded, answer.needed) == (False, ["jobs"], {"jobs": 1, "rpm": 1})
        assert not (await limiter.check_availability("key", "gpt-4")).allowed
        assert (await limiter.check_availability("key", "gpt-4", {"rpm": 1, "jobs": 0})).allowed
        assert await limiter.time_until_available("key", "gpt-4", {"rpm": 1}) == 28
        jobs, _ = await limiter.get_status("key", "gpt-4", needed={"rpm": 1})
        assert (jobs.exceeded, jobs.requested, jobs.retry_after_seconds) == (True, 1, 28)


async def test_a_reset_frees_all_slots_and_whoever_held_one_has_lost_it(harness: Harness) -> None:
    limiter, operator = harness.limiter(), harness.limiter()
    await limiter.set_system_defaults([PARALLEL, RPM])
    async with AsyncExitStack() as stack:
        lease = await hold(stack, limiter, "stuck")
        done = await operator.reset_bucket("key", "gpt-4")
        assert done == BucketOperationResult("key", "gpt-4", 1, {"parallel": 1, "rpm": 0})
        assert await operator.available("key", "gpt-4") == {"parallel": 3, "rpm": 10}
        harness.clock.advance(20)
        await renew(limiter)
        assert lease.lost
    assert await operator.available("key", "gpt-4") == {"parallel": 3, "rpm": 10}


@pytest.mark.parametrize("topped_up", [False, True])
async def test_a_reset_of_one_limit_frees_exactly_its_slots(harness: Harness, topped_up: bool) -> None:
    limiter, operator = harness.limiter(), harness.limiter(refusal_ttl=0)
    await limiter.set_system_defaults([PARALLEL, JOBS, RPM])
    if topped_up:
        await limiter.top_up("key", "gpt-4", {"rpm": 5})
    async with AsyncExitStack() as stack:
        first = limiter.acquire("key", "gpt-4", {}, holder="a")
        await first.__aenter__()
        second = await hold(stack, limiter, "b")
        done = await operator.reset_bucket("key", "gpt-4", ["parallel"], principal="ann")
        assert done.amounts == {"parallel": 2}
        assert (await taken(operator), await taken(operator, "jobs")) == ([], ["a", "b"])
        await first.__aexit__(None, None, None)
        async with operator.acquire("key", "gpt-4", {}, holder="c"):
            assert (await taken(operator), await taken(operator, "jobs")) == (["c"], ["b", "c"])
            harness.clock.advance(15)
            await renew(limiter)
            assert second.lost
            assert (await taken(operator), await taken(operator, "jobs")) == (["c"], ["b", "c"])
    assert (await taken(operator), await taken(operator, "jobs")) == ([], [])
    assert (await operator.get_audit_events("key"))[0].details == {"limit_names": ["parallel"]}


async def test_a_whole_bucket_with_credits_is_reset_in_place(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults([PARALLEL, RPM])
    await limiter.top_up("key", "gpt-4", {"rpm": 5})
    async with limiter.acquire("key", "gpt-4", {"rpm": 4}):
        done = await harness.limiter().reset_bucket("key", "gpt-4")
        assert done.amounts == {"parallel": 1, "rpm": 4}
        assert await limiter.available("key", "gpt-4") == {"parallel": 3, "rpm": 15}


async def test_a_top_up_of_slots_is_refused(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults([PARALLEL, RPM])
    with pytest.raises(ValidationError, match="'parallel': is a concurrency limit, whose slots come back"):
        await limiter.top_up("key", "gpt-4", {"rpm": 1, "parallel": 1})
    assert await limiter.repository.get_buckets("key") == []
    async with limiter.acquire("key", "other", {}, [JOBS]):
        with pytest.raises(ValidationError, match="'jobs': is a concurrency limit"):
            await limiter.top_up("key", "other", {"jobs": 1})


def test_more_slots_than_one_write_frees() -> None:
    count = 2 * MOST_FREED + 10
    limiter = SyncRateLimiter(MemoryStore(ManualClock()))
    limiter.set_system_defaults([Limit.concurrent("parallel", count), Limit.concurrent("jobs", count)])
    with ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(limiter.acquire("key", "gpt-4", {}))
        with pytest.raises(RateLimitExceeded):
            stack.enter_context(limiter.acquire("key", "gpt-4", {}))
        assert limiter.reset_bucket("key", "gpt-4", ["parallel"]).amounts == {"parallel": count}
        assert limiter.available("key", "gpt-4") == {"jobs": 0, "parallel": count}


async def test_a_limit_may_change_its_kind(harness: Harness) -> None:
    """What was of the other kind is gone from the bucket; slots go on to be their holder's until it is done."""
    limiter = harness.limiter()
    rate = Limit.custom("parallel", capacity=3, refill_amount=1, refill_period_seconds=10**8)
    async with limiter.acquire("key", "gpt-4", {}, [PARALLEL], holder="first"):
        async with limiter.acquire("key", "gpt-4", {"parallel": 1}, [rate]):
            (state,) = await limiter.repository.get_buckets("key")
            assert (state.ttl_ms, state.tokens, state.slots) == (0, 2, ())
            assert (await limiter.repository.survey_buckets()).loads[0].available == 2
        async with limiter.acquire("key", "gpt-4", {}, [PARALLEL], holder="second"):
            (state,) = await limiter.repository.get_buckets("key")
            assert (state.ttl_ms, await taken(limiter)) == (60_000, ["first", "second"])
    (state,) = await limiter.repository.get_buckets("key")
    assert state.slots == ()


async def test_a_rate_of_which_more_was_given_back_than_taken_may_become_slots(harness: Harness) -> None:
    limiter, rate = harness.limiter(), Limit.per_minute("parallel", 100)
    async with limiter.acquire("key", "gpt-4", {"parallel": 50}, [rate]) as lease:
        await limiter.reset_bucket("key", "gpt-4")
        async with limiter.acquire("key", "gpt-4", {"parallel": 1}, [rate]):
            pass
        await lease.adjust(parallel=-50)
    for _ in range(2):
        async with limiter.acquire("key", "gpt-4", {}, [PARALLEL]):
            assert await limiter.available("key", "gpt-4", [PARALLEL]) == {"parallel": 2}


@pytest.mark.parametrize("blocking", [False, True], ids=["async", "blocking"])
def test_shards_are_added_up(blocking: bool) -> None:
    harness = opened(blocking=blocking)

    async def work() -> None:
        limiter = harness.limiter()
        await limiter.set_system_defaults([Limit.concurrent("parallel", 10)])
        async with AsyncExitStack() as stack:
            for number in range(4):
                await hold(stack, limiter, f"w{number}")
                harness.clock.advance(1)
            await split(limiter, times=2)
            (state,) = await limiter.repository.get_buckets("key")
            assert ([slot.holder for slot in state.slots], state.tokens) == (["w0", "w1", "w2", "w3"], 6)
            survey = await limiter.repository.survey_buckets()
            assert (survey.records, survey.loads[0].available, survey.loads[0].in_flight) == (4, 6, 4)
            (status,) = await limiter.get_status("key", "gpt-4")
            assert (status.slots, status.in_flight) == (state.slots, 4)
            capacity = await limiter.get_resource_capacity("gpt-4", "parallel")
            assert (capacity.total_capacity, capacity.total_available) == (10, 6)
            done = await limiter.reset_bucket("key", "gpt-4", ["parallel"])
            assert (done.shards, done.amounts) == (4, {"parallel": 4})
            assert await limiter.available("key", "gpt-4") == {"parallel": 10}

    harness.run(work())


def test_values_are_frozen_and_comparable() -> None:
    assert SlotState(0, 1, 2) == SlotState(0, 1, 2, None)
    with pytest.raises(AttributeError):
        SlotState(0, 1, 2).number = 1  # type: ignore[misc]
