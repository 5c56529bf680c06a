"""A bucket in several shards behaves as one: many clients, stale images, splits at the worst moment."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings, strategies as st

from tests.conformance.oracle import LAG_MS, Entry, Ledger
from tests.conformance.room import beside, new_limiter
from tests.conformance.shards import split, split_unseen
from tests.support.acquiring import granted
from tests.support.meddler import Meddler
from zae_limiter import CapacityExceeded, Limit, RateLimiter, RateLimitExceeded
from zae_limiter.bucket import calculate_available
from zae_limiter.records import bucket, keys
from zae_limiter.records.algebra import Write
from zae_limiter.stores.memory import MemoryStore
from zae_limiter.testing import Fault, Harness

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zae_limiter import BackendCapabilities, Clock, Store
    from zae_limiter.records.algebra import Committed, Conflict

TEN_YEARS = 10 * 365 * 86_400


class Parted(Meddler):
    """A store in which writes to one record are limited, and a commit of several is not free."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.sizes: list[int] = []

    @property
    def capabilities(self) -> BackendCapabilities:
        own = super().capabilities
        return dataclasses.replace(own, free_atomic_commit=False, partition_writes=1000, name="parted")

    async def commit(self, writes: Sequence[Write], *, timeout: float | None = None) -> Committed | Conflict:
        self.sizes.append(len(writes))
        return await super().commit(writes, timeout=timeout)


def opened(*, blocking: bool) -> Harness:
    shared: list[MemoryStore] = []

    def open_store(clock: Clock, blocking: bool) -> Store:
        shared.extend([] if shared else [MemoryStore(clock, usage_retention_days=0)])
        return Parted(shared[0])

    return Harness(open_store, blocking=blocking)


@pytest.fixture(params=[False, True], ids=["async", "blocking"])
def harness(request: pytest.FixtureRequest) -> Harness:
    return opened(blocking=request.param)


def still(capacity: int, name: str = "rpm") -> Limit:
    """A limit that refills nothing while a test runs."""
    return Limit.custom(name, capacity=capacity, refill_amount=1, refill_period_seconds=TEN_YEARS)


def store_of(limiter: RateLimiter) -> Parted:
    store = limiter._backend.store
    assert isinstance(store, Parted)
    return store


async def take(limiter: RateLimiter, amount: int = 1, **options: Any) -> float | None:
    """None if granted, else the promised seconds."""
    try:
        async with limiter.acquire("key", "gpt-4", {"rpm": amount}, **options):
            return None
    except CapacityExceeded:
        raise
    except RateLimitExceeded as error:
        return error.retry_after_seconds or 0.0


async def drain(limiter: RateLimiter) -> int:
    """Take whatever there is."""
    taken = 0
    for amount in (64, 16, 4, 1):
        while await take(limiter, amount) is None:
            taken += amount
    return taken


async def levels(limiter: RateLimiter, entity_id: str = "key") -> dict[int, int]:
    """Millitokens of rpm by shard."""
    deadline = limiter._backend.deadline()
    wanted = keys.buckets_of_entity(await limiter._backend.ns(deadline), entity_id, "gpt-4")
    rows = await limiter._backend.collect(wanted, deadline)
    now_ms = limiter._backend.clock.now_ms()
    balances = bucket.stored_balances(rows, "rpm")
    return {
        keys.parse_bucket_pk(key.pk).shard_id: pot.level(now_ms) for (key, _), pot in zip(rows, balances, strict=True)
    }


async def begun(harness: Harness, *limits: Limit, times: int = 0, clients: int = 2) -> list[RateLimiter]:
    """Clients that have nothing in common but the store, and a bucket that is split so many times."""
    made = [harness.limiter(timeout=3_600) for _ in range(clients)]  # others take their time in the middle of its calls
    await made[0].set_system_defaults(list(limits))
    if times:
        await take(made[0], 0)
        await split(made[0], times)
    return made


# Splitting never mints.


async def test_those_who_spend_during_a_split_are_not_given_it_twice(harness: Harness) -> None:
    first, second = await begun(harness, still(100))
    assert await take(first, 2) is None

    async def meanwhile() -> None:
        for _ in range(9):
            assert await take(second, 10) is None

    store_of(first).before_commit = meanwhile
    await split_unseen(first)
    assert await levels(first) == {0: 4_000, 1: 4_000}
    assert await drain(harness.limiter()) == 8


@settings(max_examples=40)
@given(st.integers(0, 2**32))
def test_any_interleaving_is_within_the_law_of_one_bucket(seed: int) -> None:
    """Acquire, release, fail, split, change limits, in any order, by clients that have seen different things."""
    harness = opened(blocking=True)
    chance = random.Random(seed)
    random.seed(seed)
    limit = Limit.custom("rpm", capacity=chance.choice([4, 30, 200]), refill_amount=2, refill_period_seconds=1)
    ledger = Ledger(limit)

    async def use(limiter: RateLimiter, longest_ms: int) -> None:
        cost = chance.randint(1, 1 + limit.capacity // chance.choice([1, 3, 10]))
        back, fails = chance.choice([0, 0, chance.randint(0, cost)]), chance.random() < 0.1
        with contextlib.suppress(RateLimitExceeded, ZeroDivisionError):
            async with limiter.acquire("key", "gpt-4", {"rpm": cost}) as lease:
                assert lease._grant is not None
                returned = (cost if fails else back) * 1000
                ledger.entries.append(Entry(lease._grant.now_ms, cost * 1000, True, LAG_MS))
                await step(chance.choice(clients), longest_ms, deep=False)
                await lease.release(rpm=back)
                ledger.entries.append(Entry(harness.clock.now_ms(), -returned, granted=False))
                if fails:
                    raise ZeroDivisionError

    async def step(limiter: RateLimiter, longest_ms: int = 20_000, *, deep: bool = True) -> None:
        dice = chance.random()
        if dice < 0.1:
            await split(limiter, only=chance.choice([None, 0, 1, 2]))
        elif dice < 0.15:
            other = Limit.per_hour("tpm", chance.randint(1, 9))
            await limiter.set_system_defaults([limit, other] if chance.random() < 0.5 else [limit])
        elif dice < 0.4:
            harness.clock.advance_ms(chance.choice([1, 90, 700, longest_ms]))
        elif deep:
            await use(limiter, longest_ms)

    async def work() -> None:
        clients.extend(await begun(harness, limit, clients=3))
        for _ in range(50):
            limiter = chance.choice(clients)
            if limiter is not clients[-1] and chance.random() < 0.2:
                # No write is on its way for as long as it takes to forget a bucket.
                store_of(limiter).before_commit = lambda: step(clients[-1], 700)
            await step(limiter)

    clients: list[RateLimiter] = []
    harness.run(work())
    ledger.check()


# A lone client is served as by one bucket.


@pytest.mark.parametrize("times", [1, 2, 5, 8])
async def test_a_cost_larger_than_a_share_is_served(harness: Harness, times: int) -> None:
    (limiter,) = await begun(harness, still(100), times=times, clients=1)
    assert len(await levels(limiter)) == 2**times
    assert await take(limiter, 70) is None
    assert await limiter.available("key", "gpt-4") == {"rpm": 30}
    assert await take(limiter, 31) is not None
    assert await take(limiter, 30) is None
    assert set((await levels(limiter)).values()) == {0}
    with pytest.raises(CapacityExceeded):
        await take(limiter, 101)


async def test_a_client_that_learns_of_a_split_is_not_refused_for_it(harness: Harness) -> None:
    for _ in range(8):  # its new home is chosen by chance
        first, second = await begun(harness, still(100))
        await take(first, 1)
        await split(second)
        assert await take(first, 80) is None
        await first.create_entity("key")
        await first.delete_entity("key")  # with its buckets


@settings(max_examples=40)
@given(st.integers(0, 2**32))
def test_the_promised_moment_is_kept_to_the_millisecond(seed: int) -> None:
    harness, chance = opened(blocking=True), random.Random(seed)
    random.seed(seed)
    limit = Limit.custom("rpm", capacity=chance.choice([1, 7, 100]), refill_amount=3, refill_period_seconds=7)

    async def work() -> None:
        (limiter,) = await begun(harness, limit, times=chance.randint(1, 5), clients=1)
        for _ in range(12):
            cost = chance.randint(1, limit.capacity)
            promised = await take(limiter, cost)
            if promised is not None:
                assert await limiter.time_until_available("key", "gpt-4", {"rpm": cost}) == promised
                harness.clock.advance_ms(round(promised * 1000) - 1)
                assert await take(limiter, cost) == 0.001
                harness.clock.advance_ms(1)
                assert await take(limiter, cost) is None

    harness.run(work())


async def test_a_lone_client_combines_shards_also_after_a_limit_was_added(harness: Harness) -> None:
    (limiter,) = await begun(harness, still(100), times=1, clients=1)
    await limiter.set_system_defaults([still(100), still(100, "tpm")])
    for amount in (41, 30, 25):
        assert await take(limiter, amount) is None


def test_many_who_need_several_shards_each_are_all_served() -> None:
    harness = opened(blocking=False)

    async def work() -> None:
        (limiter,) = await begun(harness, still(1024), times=8, clients=1)
        store_of(limiter)._suspend = True
        assert set(await asyncio.gather(*(take(limiter, 4) for _ in range(256)))) == {None}
        assert await limiter.available("key", "gpt-4") == {"rpm": 0}

    harness.run(work())


async def test_a_transaction_has_no_more_writes_than_a_store_takes(harness: Harness) -> None:
    (limiter,) = await begun(harness, still(256), times=8, clients=1)
    assert await take(limiter, 200, atomic=True) is None
    assert await take(limiter, 2, atomic=True) is None
    assert max(store_of(limiter).sizes) <= 100


async def test_limits_of_different_size_are_gathered_each_by_itself(harness: Harness) -> None:
    (limiter,) = await begun(harness, still(1), still(100_000, "tpm"), times=4, clients=1)
    async with limiter.acquire("key", "gpt-4", {"rpm": 1, "tpm": 90_000}) as lease:
        await lease.release(rpm=1, tpm=89_999)
    assert await limiter.available("key", "gpt-4") == {"rpm": 1, "tpm": 99_999}


# Settlements go where the tokens were taken.


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("times", [0, 1, 3])
async def test_what_is_given_back_has_room_also_if_its_shard_was_split(
    harness: Harness, times: int, fails: bool
) -> None:
    first, second = await begun(harness, still(96), times=times)
    with contextlib.suppress(ZeroDivisionError):
        async with first.acquire("key", "gpt-4", {"rpm": 96}) as lease:
            await split(second, times=2)
            if fails:
                raise ZeroDivisionError
            await lease.release(rpm=96)
    assert set((await levels(second)).values()) == {96_000 >> (times + 2)}
    assert [state.total_consumed_milli for state in await second.get_buckets("key")] == [0]


async def test_what_is_owed_is_divided_as_the_balance_was(harness: Harness) -> None:
    first, second = await begun(harness, still(100))
    async with first.acquire("key", "gpt-4", {"rpm": 20}) as lease:
        await split(second, times=1)
        await lease.adjust(rpm=60)
    assert await levels(second) == {0: 10_000, 1: 10_000}


async def test_what_was_taken_in_several_acquires_goes_back_to_each(harness: Harness) -> None:
    (limiter,) = await begun(harness, still(100), times=1, clients=1)
    async with limiter.acquire("key", "gpt-4", {"rpm": 40}) as lease:
        await lease.consume(rpm=40)
        await lease.release(rpm=80)
    assert await levels(limiter) == {0: 50_000, 1: 50_000}


async def test_nothing_is_left_over_when_a_gather_breaks(harness: Harness) -> None:
    (limiter,) = await begun(harness, still(100), times=2, clients=1)
    store_of(limiter).inject(Fault.REFUSE, verb="commit", times=2)
    assert await take(limiter, 90) is None
    assert await limiter.available("key", "gpt-4") == {"rpm": 10}


# One bucket to the eye.


async def test_readers_see_one_bucket(harness: Harness) -> None:
    (limiter,) = await begun(harness, Limit.per_second("rpm", 10, burst=100), times=2, clients=1)
    harness.clock.advance(100)
    assert await take(limiter, 25) is None
    (state,) = await limiter.get_buckets("key")
    assert (state.limit_name, state.capacity_milli) == ("rpm", 100_000)
    assert calculate_available(state, harness.clock.now_ms()) == 75, "what a full shard has too much is no tokens"
    (seen,) = (await limiter.get_resource_capacity("gpt-4", "rpm")).entities
    assert (seen.capacity, seen.available) == (100, 75)
    (status,) = await limiter.get_status("key", "gpt-4")
    assert (status.limit.capacity, status.available) == (100, 75)
    assert await limiter.available("key", "gpt-4") == {"rpm": 75}


async def test_a_parent_is_sharded_by_itself(harness: Harness) -> None:
    (limiter,) = await begun(harness, still(100), clients=1)
    await limiter.create_entity("team")
    await limiter.create_entity("key", parent_id="team", cascade=True)
    await take(limiter, 1)
    await split(limiter, times=2, entity_id="team")
    assert await take(limiter, 60) is None
    assert len(await levels(limiter)) == 1
    assert sum((await levels(limiter, "team")).values()) == 39_000
    with contextlib.suppress(ZeroDivisionError):
        async with limiter.acquire("key", "gpt-4", {"rpm": 39}):
            raise ZeroDivisionError
    assert sum((await levels(limiter, "team")).values()) == 39_000
    assert await limiter.available("key", "gpt-4") == {"rpm": 39}


async def test_a_request_with_a_floor_is_gathered_from_shards_as_far_as_the_floor(harness: Harness) -> None:
    """Every shard leaves its share of the floor, so together they leave all of it."""
    limit = dataclasses.replace(still(100), floors=(("batch", 0.3),))
    limiter, _ = await begun(harness, limit)
    assert await take(limiter, 10) is None
    await split(limiter)
    assert await take(limiter, 40, priority="batch") is None, "50 are left, 30 have to be"
    assert await take(limiter, 20, priority="batch") is None
    assert await take(limiter, 1, priority="batch") is not None
    assert await take(limiter, 30) is None


@pytest.mark.parametrize("cost", [{"b": 0}, {"b": 0, "a": 1}, {"b": 1}], ids=str)
@pytest.mark.parametrize("debt", [4, 10, 20])
async def test_credit_covers_the_debt_of_a_split_bucket_for_every_cost(
    harness: Harness, debt: int, cost: dict[str, int]
) -> None:
    """A cost of 0 as well: it is granted or refused, and no race is lost."""
    keeper = await new_limiter(harness)
    await keeper.set_limits("key", [still(100, "a"), still(50, "b")], resource="gpt-4")
    first = beside(harness, keeper, refusal_ttl=0)
    async with first.acquire("key", "gpt-4", {"a": 0, "b": 50}) as lease:
        await lease.adjust(b=debt)
    await first.top_up("key", "gpt-4", {"b": 7})
    await split(first)
    for limiter in (first, beside(harness, keeper, refusal_ttl=0)):
        fits = (await limiter.available("key", "gpt-4"))["b"] >= cost["b"]
        assert await granted(limiter, {"a": 0} | cost) is fits
        if cost["b"]:
            await limiter.top_up("key", "gpt-4", {"b": cost["b"]})
