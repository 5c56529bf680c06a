"""Credits beside an allowance: by stale clients, in shards, in merged writes, and against books kept by hand."""

from __future__ import annotations

import asyncio
import contextlib
import random
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings, strategies as st

from tests.conformance.alerts import alert_events
from tests.conformance.credits import EXPIRIES, RATE, STILL, Play
from tests.conformance.oracle import LAG_MS, Entry, Ledger
from tests.conformance.shards import split
from tests.laws.toys import Distant, Hot, Toy, toys
from tests.limiter.test_shards import begun, opened, still
from tests.support.acquiring import granted, take
from tests.support.charges import charge, create
from zae_limiter import (
    CapacityExceeded,
    CorruptRecordError,
    Limit,
    RateLimiter,
    RateLimitExceeded,
    Repository,
    SyncRateLimiter,
)
from zae_limiter.records import keys
from zae_limiter.records.algebra import Write, apply_write, holds
from zae_limiter.records.credits import add_credit
from zae_limiter.records.fields import iso
from zae_limiter.records.level import MADE, BucketLimits, token_limits_for
from zae_limiter.stores.memory import MemoryStore
from zae_limiter.testing import FaultyStore, Harness, ManualClock
from zae_limiter_aggregator.consumption import measure_change
from zae_limiter_aggregator.stream import StreamChange

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zae_limiter.records.algebra import Committed, Conflict

TPM = still(100, "tpm")
NOW = 1_800_000_000_000


def one_memory(*, blocking: bool = True) -> Harness:
    shared: list[MemoryStore] = []

    def open_store(clock: object, blocking: bool) -> MemoryStore:
        assert isinstance(clock, ManualClock)
        shared.extend([] if shared else [MemoryStore(clock)])
        return shared[0]

    return Harness(open_store, blocking=blocking)


# Against the books.

HARNESSES: dict[str, Callable[[], Harness]] = {
    "toy": lambda: toys(Toy, True),
    "distant": lambda: toys(Distant, True),
    "memory": one_memory,
}
STEPS = st.lists(
    st.tuples(
        st.integers(0, 2),  # the client
        st.sampled_from((0, 1, 700, 5_000, 60_000)),  # the time before
        st.none() | st.tuples(st.integers(1, 80), st.sampled_from(EXPIRIES)),  # a top-up
        st.integers(0, 150),  # the cost
        st.integers(-60, 60),  # its correction
        st.sampled_from((0, 0, 1, 3_500, 42_000)),  # how long the lease lasts
        st.booleans(),  # whether it fails
        st.booleans(),  # whether it has a floor
    ),
    min_size=1,
    max_size=12,
)


@pytest.mark.parametrize("kind", HARNESSES)
@settings(max_examples=60)
@given(STEPS, st.booleans())
def test_any_history_agrees_with_the_books(kind: str, steps: list[tuple], stale: bool) -> None:  # type: ignore[type-arg]
    """One client beside a rate, or three that remember older buckets beside a limit that stands still."""
    harness = HARNESSES[kind]()

    async def work() -> None:
        table = await Play.start(harness, STILL if stale else RATE, 3 if stale else 1)
        await table.clients[0].set_system_defaults([table.books.limit])
        for client, wait_ms, credit, cost, delta, lasts_ms, fails, floor in steps:
            who = client if stale else 0
            table.advance(wait_ms)
            if credit is not None:
                await table.top_up(who, *credit)
            await table.acquire(
                who, cost, max(delta, -cost), lasts_ms, fails=fails and delta < 0, batch=floor and not stale
            )
            await table.compare(who)

    harness.run(work())


# Many at once.


@pytest.mark.parametrize("kind", [Toy, Distant, Hot])
async def test_exactly_the_allowance_and_the_credits_are_sold(kind: type[Toy]) -> None:
    """Merged and side by side, by several clients; those that fail give back what they took, credit first."""
    harness = toys(kind, False)
    clients = [harness.limiter(refusal_ttl=0) for _ in range(3)]
    await clients[0].set_system_defaults([TPM])
    await clients[0].top_up("key", "gpt-4", {"tpm": 30}, expires_at=iso(harness.clock.now_ms() + 60_000))
    await clients[1].top_up("key", "gpt-4", {"tpm": 25})
    sold = await asyncio.gather(*(granted(clients[n % 3], {"tpm": 7}) for n in range(60)))
    assert sum(sold) == 155 // 7
    assert await clients[2].available("key", "gpt-4") == {"tpm": 1}


async def test_charges_of_one_write_give_back_what_each_took() -> None:
    """The later ones took the credits: it is theirs that goes back to them."""
    clock = ManualClock()
    limiter = RateLimiter(FaultyStore(MemoryStore(clock), suspend=True), refusal_ttl=0)
    await limiter.set_system_defaults([TPM])
    await limiter.top_up("key", "gpt-4", {"tpm": 100})
    await take(limiter, {"tpm": 40})
    gate = asyncio.Event()

    async def hold(tokens: int, back: int) -> None:
        async with limiter.acquire("key", "gpt-4", {"tpm": tokens}) as lease:
            await gate.wait()
            await lease.release(tpm=back)

    async def lots() -> list[int]:
        (state,) = await limiter.get_buckets("key", "gpt-4")
        return [state.tokens_milli // 1000, *(lot.tokens_milli // 1000 for lot in state.credits)]

    holders = [asyncio.create_task(hold(30, back)) for back in (30, 20, 5, 30)]
    for _ in range(50):
        await asyncio.sleep(0)
    before = await lots()
    assert before in ([0, 40], [-1, 40])
    gate.set()
    await asyncio.gather(*holders)
    assert (await limiter.available("key", "gpt-4"))["tpm"] in (124, 125)
    after = await lots()
    assert after[1] == 40 + 5 + 30  # the first two took from the allowance alone


def test_threads_never_take_more_than_there_is() -> None:
    store = MemoryStore(ManualClock())
    limiter = SyncRateLimiter(store, refusal_ttl=0)
    limiter.set_system_defaults([TPM])
    limiter.top_up("key", "gpt-4", {"tpm": 50})

    def buy(_: int) -> int:
        try:
            with limiter.acquire("key", "gpt-4", {"tpm": 1}):
                return 1
        except RateLimitExceeded:
            return 0

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(buy, range(300))) == 150


def test_takers_of_lots_alone_commute() -> None:
    """Two draws that were planned from the same image both take effect, as long as there is enough."""
    key = keys.bucket("ns", "key", "gpt-4")
    limits = (TPM,)
    level = BucketLimits(key, "ns", "key", "gpt-4", limits, token_limits_for(limits))
    image = apply_write(None, create(level, {"tpm": 100_000}, NOW))
    assert image is not None
    image = apply_write(image, add_credit(key, image, {"tpm": 50_000}, NOW + 60_000, NOW))
    assert image is not None

    def drawn(tokens: int) -> Write:
        write = charge(level, image, {"tpm": tokens * 1000}, NOW)
        assert write is not None
        return write

    first, second, third = drawn(20), drawn(25), drawn(30)
    after = apply_write(image, first)
    assert holds(after, second.guards)
    assert holds(after, third.guards)
    assert not holds(apply_write(after, second), first.guards)


# What it costs.


async def test_an_acquire_with_credits_is_one_write_and_no_read(harness: Harness) -> None:
    store = FaultyStore(harness.store())
    limiter = harness.limiter(store)
    await limiter.set_system_defaults([TPM, Limit.per_minute("rpm", 1000)])
    await limiter.top_up("key", "gpt-4", {"tpm": 50})
    await take(limiter, {"tpm": 95, "rpm": 1})
    store.calls.clear()
    store.writes = 0
    for _ in range(10):
        await take(limiter, {"tpm": 3, "rpm": 1})
    assert store.calls == {"commit": 10}
    assert store.writes == 10


async def test_the_first_acquire_after_an_expiry_is_one_write_too(harness: Harness) -> None:
    store = FaultyStore(harness.store())
    limiter = harness.limiter(store)
    await limiter.set_system_defaults([TPM])
    await limiter.top_up("key", "gpt-4", {"tpm": 50}, expires_at=iso(harness.clock.now_ms() + 5_000))
    await take(limiter, {"tpm": 10})
    harness.clock.advance(5)
    store.calls.clear()
    await take(limiter, {"tpm": 10})
    assert store.calls == {"commit": 1}
    (state,) = await limiter.get_buckets("key", "gpt-4")
    assert state.credits == ()
    assert not await granted(limiter, {"tpm": 81})


# Shards.


@pytest.mark.parametrize("blocking", [False, True], ids=["async", "blocking"])
@pytest.mark.parametrize("times", [1, 3])
def test_credits_outlive_a_split_and_are_found_from_every_shard(blocking: bool, times: int) -> None:
    harness = opened(blocking=blocking)

    async def work() -> None:
        first, second = await begun(harness, still(64))
        await first.top_up("key", "gpt-4", {"rpm": 50})
        assert await granted(first, {"rpm": 10})
        await split(first, times)
        assert await second.available("key", "gpt-4") == {"rpm": 104}
        sold = 0
        for client in (harness.limiter(refusal_ttl=0), harness.limiter(refusal_ttl=0), second):
            for tokens in (13, 13, 5):
                sold += tokens * await granted(client, {"rpm": tokens})
        for _ in range(200):
            sold += await granted(first, {"rpm": 1})
        assert sold == 104

    harness.run(work())


@settings(max_examples=40)
@given(st.integers(0, 2**32))
def test_any_interleaving_is_within_the_law(seed: int) -> None:
    """Acquire, release, fail, top up and split in any order, by clients that have seen different things.

    In every window at most capacity + rate x w + credits granted is taken, and in the end all that is left can be.
    """
    harness, chance = opened(blocking=True), random.Random(seed)
    random.seed(seed)
    limit = Limit.custom("rpm", capacity=chance.choice([4, 30, 200]), refill_amount=2, refill_period_seconds=1)
    ledger = Ledger(limit)

    async def use(limiter: RateLimiter) -> None:
        cost = chance.randint(0, 1 + 2 * limit.capacity // chance.choice([1, 3, 10]))
        back, fails = chance.choice([0, 0, chance.randint(0, cost)]), chance.random() < 0.1
        with contextlib.suppress(RateLimitExceeded, ZeroDivisionError):
            async with limiter.acquire("key", "gpt-4", {"rpm": cost}) as lease:
                assert lease._grant is not None
                returned = (cost if fails else back) * 1000
                ledger.entries.append(Entry(lease._grant.now_ms, cost * 1000, True, LAG_MS))
                await step(chance.choice(clients), deep=False)
                await lease.release(rpm=back)
                ledger.entries.append(Entry(harness.clock.now_ms(), -returned, granted=False))
                if fails:
                    raise ZeroDivisionError

    async def step(limiter: RateLimiter, *, deep: bool = True) -> None:
        dice = chance.random()
        if dice < 0.08:
            await split(limiter, only=chance.choice([None, 0, 1]))
        elif dice < 0.2:
            tokens = chance.randint(1, limit.capacity)
            expiry = chance.choice([None, iso(harness.clock.now_ms() // 1000 * 1000 + 5_000)])
            await limiter.top_up("key", "gpt-4", {"rpm": tokens}, expires_at=expiry)
            ledger.credits += tokens * 1000
        elif dice < 0.4:
            harness.clock.advance_ms(chance.choice([1, 90, 700, 6_000]))
        elif deep:
            await use(limiter)

    async def work() -> None:
        await clients[0].set_system_defaults([limit])
        for _ in range(40):
            await step(chance.choice(clients))
        ledger.check()
        last = harness.limiter(refusal_ttl=0)
        left = (await last.available("key", "gpt-4"))["rpm"]
        taken = 0
        for tokens in (256, 64, 16, 4, 1):
            while await granted(last, {"rpm": tokens}):
                taken += tokens
        assert taken == max(0, left)

    clients = [harness.limiter(refusal_ttl=0, timeout=3_600) for _ in range(3)]
    harness.run(work())


@pytest.mark.parametrize("blocking", [False, True], ids=["async", "blocking"])
def test_a_charge_over_shards_takes_allowances_first_and_returns_credit_first(blocking: bool) -> None:
    harness = opened(blocking=blocking)

    async def work() -> None:
        (limiter, _) = await begun(harness, still(64))
        await limiter.top_up("key", "gpt-4", {"rpm": 50})
        await take(limiter, {"rpm": 0})
        await split(limiter, 2)
        async with limiter.acquire("key", "gpt-4", {"rpm": 100}) as lease:
            assert lease.available == {"rpm": 14}
            (state,) = await limiter.get_buckets("key", "gpt-4")
            assert (state.tokens_milli, [lot.tokens_milli for lot in state.credits]) == (0, [14_000])
            await lease.release(rpm=30)
        (state,) = await limiter.get_buckets("key", "gpt-4")
        assert (state.tokens_milli, [lot.tokens_milli for lot in state.credits]) == (0, [44_000])
        with pytest.raises(ZeroDivisionError):
            async with limiter.acquire("key", "gpt-4", {"rpm": 40}):
                await split(limiter)
                raise ZeroDivisionError
        assert await limiter.available("key", "gpt-4") == {"rpm": 44}

    harness.run(work())


@pytest.mark.parametrize("blocking", [False, True], ids=["async", "blocking"])
def test_a_reset_fills_every_shard_and_leaves_credits(blocking: bool) -> None:
    harness = opened(blocking=blocking)

    async def work() -> None:
        (limiter, other) = await begun(harness, still(64), times=2)
        await limiter.top_up("key", "gpt-4", {"rpm": 50})
        await take(limiter, {"rpm": 60})
        done = await other.reset_bucket("key", "gpt-4")
        assert (done.shards, dict(done.amounts)) == (4, {"rpm": 60})
        assert await limiter.available("key", "gpt-4") == {"rpm": 114}

    harness.run(work())


# Beside other rules.


async def test_a_refused_level_gives_the_credits_of_others_back(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults([TPM])
    await limiter.create_entity("org")
    await limiter.create_entity("key", parent_id="org", cascade=True)
    await limiter.top_up("key", "gpt-4", {"tpm": 50})
    assert not await granted(limiter, {"tpm": 120})
    await limiter.top_up("org", "gpt-4", {"tpm": 30})
    assert await granted(limiter, {"tpm": 120})
    assert not await granted(limiter, {"tpm": 11})
    assert await limiter.available("key", "gpt-4") == {"tpm": 10}
    (state,) = await limiter.get_buckets("key", "gpt-4")
    assert [lot.tokens_milli for lot in state.credits] == [30_000]


async def test_a_soft_limit_spends_credits_before_it_goes_into_debt(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults([Limit.custom("tpm", 100, 1, 10**8, soft=True)])
    await limiter.top_up("key", "gpt-4", {"tpm": 50})
    assert (await take(limiter, {"tpm": 130})).overdrawn == ()
    lease = await take(limiter, {"tpm": 30})
    assert (lease.overdrawn, lease.available) == (("tpm",), {"tpm": -10})
    (state,) = await limiter.get_buckets("key", "gpt-4")
    assert state.credits == ()


@pytest.mark.parametrize("soft", [False, True])
async def test_a_limit_with_thresholds_spends_credits(harness: Harness, soft: bool) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults([Limit.custom("tpm", 100, 1, 10**8, soft=soft, alerts=(0.8,))])
    await take(limiter, {"tpm": 100})
    await limiter.top_up("key", "gpt-4", {"tpm": 50})
    assert (await take(limiter, {"tpm": 10})).available == {"tpm": 40}
    assert len(await alert_events(harness.store(), limiter, "key")) == 1


async def test_credit_that_a_debt_uses_up_does_not_keep_a_soft_limit_from_being_overdrawn(harness: Harness) -> None:
    """A limit that refuses would have 5 left here: 20 of credit beside a debt of 15."""
    limiter = harness.limiter()
    await limiter.set_system_defaults([Limit.custom("tpm", 100, 1, 10**8, soft=True)])
    assert (await take(limiter, {"tpm": 115})).overdrawn == ("tpm",)
    await limiter.top_up("key", "gpt-4", {"tpm": 20})
    for cost, names, left, overdrawn in ((4, (), 1, 15), (6, ("tpm",), -5, 20), (3, ("tpm",), -8, 23)):
        lease = await take(limiter, {"tpm": cost})
        assert (lease.overdrawn, lease.available) == (names, {"tpm": left})
        (state,) = await limiter.get_buckets("key", "gpt-4")
        assert state.total_overdrawn_milli == overdrawn * 1_000
    assert [lot.tokens_milli for lot in state.credits] == [15_000], "what the debt uses up is not spent"


async def test_credits_go_back_to_each_of_those_who_took_several_resources_at_once(harness: Harness) -> None:
    """Merged into one write, where the store is asked for them."""
    limiter = harness.limiter()
    await limiter.set_system_defaults([Limit.custom("tpm", 100, 1, 10**8)])
    await limiter.top_up("key", "gpt-4", {"tpm": 50})

    async def fail(tokens: int) -> None:
        with pytest.raises(ZeroDivisionError):
            async with limiter.acquire("key", {"gpt-4": {"tpm": tokens}, "tools": {"tpm": 1}}):
                raise ZeroDivisionError

    if harness.blocking:
        for tokens in (50, 40, 30, 20, 10):
            await fail(tokens)
    else:
        await asyncio.gather(*[fail(tokens) for tokens in (50, 40, 30, 20, 10)])
    assert await limiter.available("key", "gpt-4") == {"tpm": 150}


async def test_the_promised_moment_is_one_at_which_all_limits_have_the_cost(harness: Harness) -> None:
    """Credit of one limit expires before another has what it lacks: later, or never."""
    limiter = harness.limiter(refusal_ttl=0)
    slow = Limit.custom("slow", 10, 1, 600)
    await limiter.set_system_defaults([slow, Limit.quota("quota", 10, every=timedelta(hours=1))])
    harness.clock.advance_ms(-harness.clock.now_ms() % 3_600_000)
    await limiter.top_up("key", "gpt-4", {"slow": 10}, expires_at=iso(harness.clock.now_ms() + 600_000))
    await take(limiter, {"quota": 10, "slow": 9})
    with pytest.raises(RateLimitExceeded) as refused:
        await take(limiter, {"slow": 8, "quota": 5})
    assert refused.value.retry_after_seconds == 7 * 600, "not at the hour, when only 7 are left of slow"
    for wait_ms, fits in ((7 * 600_000 - 1, False), (1, True)):
        harness.clock.advance_ms(wait_ms)
        assert await granted(limiter, {"slow": 8, "quota": 5}) == fits
    await limiter.top_up("key", "gpt-4", {"slow": 20}, expires_at=iso(harness.clock.now_ms() + 600_000))
    with pytest.raises(CapacityExceeded, match="another limit has too little"):
        await take(limiter, {"slow": 15, "quota": 6})


async def test_a_bypass_spends_no_credits(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults([Limit.custom("tpm", 100, 1, 10**8)])
    await limiter.top_up("key", "gpt-4", {"tpm": 50})
    await limiter.bypass_entity("key")
    for _ in range(2):  # when the bucket meets the switch, and afterwards
        await take(limiter, {"tpm": 90})
    (state,) = await limiter.get_buckets("key", "gpt-4")
    assert [lot.tokens_milli for lot in state.credits] == [50_000]
    assert (await limiter.available("key", "gpt-4")) == {"tpm": 100 - 180 + 50}


async def test_credits_outlive_changes_of_limits(harness: Harness) -> None:
    """A limit that is gone keeps them for when it comes back."""
    limiter = harness.limiter()
    await limiter.set_system_defaults([TPM, Limit.per_minute("rpm", 10)])
    await limiter.top_up("key", "gpt-4", {"tpm": 50})
    await take(limiter, {"tpm": 120})
    await limiter.set_system_defaults([still(40, "tpm"), Limit.per_minute("rpm", 10)])
    assert await limiter.available("key", "gpt-4") == {"tpm": 30, "rpm": 10}
    assert await granted(limiter, {"tpm": 5})
    await limiter.set_system_defaults([Limit.per_minute("rpm", 10)])
    assert await granted(limiter, {"rpm": 1})
    await limiter.set_system_defaults([TPM])
    assert await granted(limiter, {"tpm": 25})
    assert not await granted(limiter, {"tpm": 1})


async def test_a_limit_that_is_new_in_a_bucket_is_topped_up_at_once(harness: Harness) -> None:
    """The bucket was made by the top-up, without limits: the first charge takes from both."""
    limiter = harness.limiter()
    await limiter.set_system_defaults([Limit.custom("tpm", 100, 1, 10**8, floors={"batch": 0.5})])
    await limiter.top_up("key", "gpt-4", {"tpm": 50})
    with pytest.raises(CapacityExceeded, match="above the maximum 150"):
        await take(limiter, {"tpm": 151})
    assert await granted(limiter, {"tpm": 80}, priority="batch")
    assert not await granted(limiter, {"tpm": 21}, priority="batch")
    assert await granted(limiter, {"tpm": 70})


async def test_corrections_after_the_end_return_credit_first(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults([TPM])
    await limiter.top_up("key", "gpt-4", {"tpm": 50})
    lease = limiter.acquire("key", "gpt-4", {"tpm": 140})
    await lease.enter()
    await lease.exit(final=False)
    found = []
    for back in (15, 15, 15, 15):
        await lease.adjust(tpm=-back)
        (state,) = await limiter.get_buckets("key", "gpt-4")
        found.append((state.tokens_milli // 1000, sum(lot.tokens_milli for lot in state.credits) // 1000))
    assert found == [(0, 25), (0, 40), (5, 50), (20, 50)]


async def test_usage_counts_credits_under_the_name_of_the_limit(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults([TPM])
    await limiter.top_up("key", "gpt-4", {"tpm": 50})
    async with limiter.acquire("key", "gpt-4", {"tpm": 140}) as lease:
        await lease.adjust(tpm=-20)
    (state,) = await limiter.get_buckets("key", "gpt-4")
    assert state.total_consumed_milli == 120_000


async def test_what_is_shown(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults([TPM])
    await limiter.top_up("key", "gpt-4", {"tpm": 50})
    await take(limiter, {"tpm": 120})
    (status,) = await limiter.get_status("key", "gpt-4", needed={"tpm": 90})
    assert (status.available, status.credit, status.exceeded) == (30, 30, True)
    survey = await limiter.repository.survey_buckets("gpt-4")
    assert [load.available for load in survey.loads] == [30]
    capacity = await limiter.get_resource_capacity("gpt-4", "tpm")
    assert capacity.total_available == 30
    lease = await take(limiter, {"tpm": 5})
    assert [(each.available, each.credit) for each in lease.statuses] == [(25, 25)]


async def test_a_damaged_credit_is_noticed(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults([TPM])
    await limiter.top_up("key", "gpt-4", {"tpm": 50})
    ns = await limiter._backend.ns(limiter._backend.deadline())
    key = keys.bucket(ns, "key", "gpt-4")
    store = harness.store()
    for damage in ({"lot_tpm_never": -1}, {"lots": 7}, {"lot_tpm_soon": 3, "lots": 2}):
        (before,) = await store.read([key])
        assert before is not None
        await store.commit([Write(key, put=damage)])
        with pytest.raises(CorruptRecordError, match="lot"):
            await take(harness.limiter(), {"tpm": 1})
        gone = tuple(attr for attr in damage if attr not in before)
        await store.commit([Write(key, put={attr: before[attr] for attr in damage if attr in before}, remove=gone)])
    assert await granted(harness.limiter(), {"tpm": 101})


async def test_a_bucket_with_credit_for_ever_has_no_expiry(harness: Harness) -> None:
    """Until it is spent."""
    limiter = harness.limiter()
    await limiter.set_system_defaults([Limit.per_second("tpm", 100)])
    await take(limiter, {"tpm": 1})
    await limiter.top_up("key", "gpt-4", {"tpm": 5})
    ns = await limiter._backend.ns(limiter._backend.deadline())
    found = []
    for tokens in (1, 1, 100, 1):
        await take(limiter, {"tpm": tokens})
        (image,) = await harness.store().read([keys.bucket(ns, "key", "gpt-4")])
        assert image is not None
        found.append("ttl" in image)
        harness.clock.advance(0 if tokens == 1 else 1)
    assert found == [False, False, False, False]
    assert await granted(limiter, {"tpm": 101})
    assert await granted(limiter, {"tpm": 0})
    (image,) = await harness.store().read([keys.bucket(ns, "key", "gpt-4")])
    assert image is not None
    assert "ttl" in image


async def test_one_who_waits_is_served_from_credits() -> None:
    """At the promised moment, which is before the credit expires."""
    harness = one_memory(blocking=True)
    limiter = harness.limiter()
    await limiter.set_system_defaults([Limit.per_second("tpm", 10)])
    await limiter.top_up("key", "gpt-4", {"tpm": 5}, expires_at=iso(harness.clock.now_ms() + 1_000))
    await take(limiter, {"tpm": 10})
    before = harness.clock.now_ms()
    lease = await take(limiter, {"tpm": 12}, max_wait=5)
    assert harness.clock.now_ms() - before == 700
    assert lease.available == {"tpm": 0}


def test_a_full_memory_keeps_buckets_with_credits() -> None:
    clock = ManualClock()
    store = MemoryStore(clock, max_buckets=10)
    limiter = SyncRateLimiter(store)
    limiter.set_system_defaults([Limit.per_second("tpm", 10)])
    limiter.top_up("rich", "gpt-4", {"tpm": 500})
    limiter.top_up("brief", "gpt-4", {"tpm": 500}, expires_at=iso(clock.now_ms() + 3_600_000))
    for number in range(100):
        with limiter.acquire(f"key-{number}", "gpt-4", {"tpm": 10}):
            pass
    assert limiter.available("rich", "gpt-4") == {"tpm": 510}
    assert limiter.available("brief", "gpt-4") == {"tpm": 510}
    clock.advance(3_600)
    for number in range(100):
        with limiter.acquire(f"key-{number}", "gpt-4", {"tpm": 10}):
            pass
    assert limiter.repository.get_buckets("brief") == []
    assert limiter.available("rich", "gpt-4") == {"tpm": 510}


async def test_the_stream_of_a_table_counts_nothing_twice() -> None:
    """A top-up and a reset move the anchor of a bucket; they consume nothing, and do not start it anew."""
    harness = opened(blocking=False)
    limiter = harness.limiter()
    await limiter.set_system_defaults([TPM])
    ns = await limiter._backend.ns(limiter._backend.deadline())
    key, store = keys.bucket(ns, "key", "gpt-4"), harness.store()
    used = []
    before = None
    for act in (
        lambda: take(limiter, {"tpm": 90}),
        lambda: limiter.top_up("key", "gpt-4", {"tpm": 50}),
        lambda: take(limiter, {"tpm": 30}),
        lambda: limiter.reset_bucket("key", "gpt-4", ["tpm"]),
        lambda: take(limiter, {"tpm": 110}),
    ):
        harness.clock.advance(1)
        await act()
        (after,) = await store.read([key])
        change = StreamChange(key, "1", harness.clock.now_ms(), before, after, by_expiry=False)
        used.append(measure_change(change).get("tpm", 0) // 1000)
        before = after
    assert used == [90, 0, 30, 0, 110]


async def test_numbers_of_an_idle_bucket_stay_small(harness: Harness) -> None:
    """Each top-up moves the anchor: what an idle limit would have made meanwhile is not carried along."""
    limiter = harness.limiter()
    await limiter.set_limits("key", [Limit.per_second("tpm", 10**9), Limit.per_day("rpd", 5)], "gpt-4")
    await take(limiter, {"tpm": 1, "rpd": 5})
    for _ in range(5):
        harness.clock.advance(10**7)
        await limiter.top_up("key", "gpt-4", {"tpm": 1})
        await limiter.reset_bucket("key", "gpt-4", ["rpd"])
    states = {state.limit_name: state for state in await limiter.get_buckets("key", "gpt-4")}
    assert states["tpm"].tokens_milli <= states["tpm"].capacity_milli + 10**9
    assert await limiter.available("key", "gpt-4") == {"tpm": 10**9 + 5, "rpd": 5}


async def test_credit_that_only_a_late_clock_has_not_outlived_leaves_a_readable_bucket(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults([STILL])
    await limiter.top_up("key", "gpt-4", {"tpm": 30})
    harness.clock.advance(-9)
    soon = iso(harness.clock.now_ms() + 1_000)
    for tokens in (1, 30):
        await limiter.top_up("key", "gpt-4", {"tpm": tokens}, expires_at=soon)
    assert (await limiter.available("key", "gpt-4"))["tpm"] >= 130
    await take(limiter, {"tpm": 130})
    harness.clock.advance(60)
    assert await granted(limiter, {"tpm": 1}) is False


async def test_buckets_that_credits_make_in_one_millisecond_can_be_told_apart() -> None:
    made: list[int] = []

    class Noting(FaultyStore):
        async def commit(self, writes: Sequence[Write], *, timeout: float | None = None) -> Committed | Conflict:
            made.extend(write.put[MADE] for write in writes if MADE in write.put)
            return await super().commit(writes, timeout=timeout)

    limiter = RateLimiter(Repository(Noting(MemoryStore(ManualClock()))))
    await limiter.set_system_defaults([STILL])
    for number in range(500):
        await limiter.top_up(f"key-{number}", "gpt-4", {"tpm": 1})
    assert len(set(made)) == 500
