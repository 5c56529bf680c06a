"""Several resources in one acquire: all of them or none, on every store, in both modes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from tests.conformance.shards import split
from tests.limiter import test_shards
from tests.support.backends import Backend
from zae_limiter import (
    CapacityExceeded,
    Decision,
    LeaseExpiredError,
    Limit,
    LimitStatus,
    Observer,
    RateLimiter,
    RateLimiterUnavailable,
    RateLimitExceeded,
    ResourceDisabled,
    SyncRateLimiter,
    ValidationError,
)
from zae_limiter.stores.memory import MemoryStore
from zae_limiter.testing import Fault, FaultyStore, Harness, ManualClock

MODEL = [Limit.per_minute("rpm", 10), Limit.per_minute("tpm", 1_000)]
TOOLS = [Limit.per_minute("rpm", 3)]
BOTH: dict[str, dict[str, int]] = {"gpt-4": {"rpm": 1, "tpm": 500}, "tools": {"rpm": 2}}
Balances = dict[tuple[str, str], dict[str, int]]


async def prepare(harness: Harness, limiter: RateLimiter | None = None) -> RateLimiter:
    """A key below an organisation, and a model and tools with limits of their own."""
    limiter = limiter or harness.limiter()
    await limiter.set_resource_defaults("gpt-4", MODEL)
    await limiter.set_resource_defaults("tools", TOOLS)
    await limiter.create_entity("org")
    await limiter.create_entity("key", parent_id="org", cascade=True)
    return limiter


async def read_balances(limiter: RateLimiter, resources: tuple[str, ...] = ("gpt-4", "tools")) -> Balances:
    """What everybody has left of everything."""
    return {(who, what): await limiter.available(who, what) for who in ("key", "org") for what in resources}


async def take(limiter: RateLimiter, costs: Mapping[str, Mapping[str, int]], **options: Any) -> None:
    async with limiter.acquire("key", costs, **options):
        pass


async def test_each_resource_is_charged_at_every_level(harness: Harness) -> None:
    limiter = await prepare(harness)
    async with limiter.acquire("key", BOTH) as lease:
        tools = lease.resource("tools")
        assert lease.resources == ("gpt-4", "tools")
        assert lease.resource("gpt-4") is lease
        assert (lease.consumed, tools.consumed) == (BOTH["gpt-4"], BOTH["tools"])
        assert (lease.available, tools.available) == ({"rpm": 9, "tpm": 500}, {"rpm": 1})
        assert [(each.entity_id, each.resource, each.requested) for each in tools.statuses] == [
            ("key", "tools", 2),
            ("org", "tools", 2),
        ]
        assert tools.limits == tuple(TOOLS)
        assert not tools.overdrawn
        assert not tools.bypassed
    assert not tools.is_open
    for who in ("key", "org"):
        assert await limiter.available(who, "gpt-4") == {"rpm": 9, "tpm": 500}
        assert await limiter.available(who, "tools") == {"rpm": 1}


async def test_the_form_of_version_0_17(harness: Harness) -> None:
    limiter = await prepare(harness)
    async with limiter.acquire("key", "gpt-4", {"rpm": 1}, also={"tools": {"rpm": 1}}) as lease:
        assert lease.resources == ("gpt-4", "tools")
    async with limiter.acquire("key", {"tools": {"rpm": 1}}) as lease:
        assert lease.resources == ("tools",)
        assert lease.resource("tools") is lease
        assert lease.consumed == {"rpm": 1}
    assert await limiter.available("key", "gpt-4") == {"rpm": 9, "tpm": 1_000}
    assert await limiter.available("key", "tools") == {"rpm": 1}


async def test_each_resource_is_adjusted_on_its_own(harness: Harness) -> None:
    limiter = await prepare(harness)
    async with limiter.acquire("key", BOTH) as lease:
        tools = lease.resource("tools")
        await lease.adjust(tpm=-200)
        await lease.consume(rpm=1)
        await tools.release(rpm=1)
        tools.adjust_nowait(rpm=4)
        assert (lease.consumed, tools.consumed) == ({"rpm": 2, "tpm": 300}, {"rpm": 5})
        with pytest.raises(ValidationError, match="no such limit"):
            await tools.adjust(tpm=1)
    for who in ("key", "org"):
        assert await limiter.available(who, "gpt-4") == {"rpm": 8, "tpm": 700}
        assert await limiter.available(who, "tools") == {"rpm": -2}
    with pytest.raises(LeaseExpiredError):
        await tools.adjust(rpm=1)


async def test_more_is_taken_of_one_resource_or_refused(harness: Harness) -> None:
    limiter = await prepare(harness)
    async with limiter.acquire("key", BOTH) as lease:
        tools = lease.resource("tools")
        await tools.consume(rpm=1)
        with pytest.raises(RateLimitExceeded):
            await tools.consume(rpm=1)
        assert tools.consumed == {"rpm": 3}
    assert await limiter.available("key", "tools") == {"rpm": 0}


async def test_an_exception_gives_everything_back(harness: Harness) -> None:
    limiter = await prepare(harness)
    before = await read_balances(limiter)
    with pytest.raises(ZeroDivisionError):
        async with limiter.acquire("key", BOTH) as lease:
            await lease.resource("tools").consume(rpm=1)
            await lease.resource("tools").adjust(rpm=5)
            raise ZeroDivisionError
    assert await read_balances(limiter) == before


async def test_a_refusal_takes_nothing_and_says_when_all_of_it_fits(harness: Harness) -> None:
    limiter = await prepare(harness)
    await take(limiter, {"gpt-4": {"rpm": 10}, "tools": {"rpm": 2}})
    before = await read_balances(limiter)
    with pytest.raises(RateLimitExceeded) as refused:
        await take(limiter, {"gpt-4": {"rpm": 5}, "tools": {"rpm": 2}})
    assert await read_balances(limiter) == before
    told = [(each.entity_id, each.resource, each.limit_name, each.exceeded) for each in refused.value.statuses]
    assert told == [
        ("key", "gpt-4", "rpm", True),
        ("key", "gpt-4", "tpm", False),
        ("org", "gpt-4", "rpm", True),
        ("org", "gpt-4", "tpm", False),
        ("key", "tools", "rpm", True),
        ("org", "tools", "rpm", True),
    ]
    assert refused.value.retry_after_seconds == 30, "the model needs 30 s, the tools 20 s"
    harness.clock.advance_ms(29_999)
    with pytest.raises(RateLimitExceeded):
        await take(limiter, {"gpt-4": {"rpm": 5}, "tools": {"rpm": 2}})
    harness.clock.advance_ms(1)
    await take(limiter, {"gpt-4": {"rpm": 5}, "tools": {"rpm": 2}})


async def test_a_refusal_by_the_level_above_takes_nothing(harness: Harness) -> None:
    limiter = await prepare(harness)
    other = harness.limiter()
    async with other.acquire("org", "tools", {"rpm": 2}):
        pass
    before = await read_balances(limiter)
    for _ in range(3):
        with pytest.raises(RateLimitExceeded) as refused:
            await take(limiter, BOTH)
        assert [(each.entity_id, each.resource) for each in refused.value.violations] == [("org", "tools")]
    assert await read_balances(limiter) == before


async def test_a_cost_above_a_capacity_never_fits(harness: Harness) -> None:
    limiter = await prepare(harness)
    with pytest.raises(CapacityExceeded, match="'tools' costs 4 rpm, above the maximum 3"):
        await take(limiter, {"gpt-4": {"rpm": 1}, "tools": {"rpm": 4}})
    assert await limiter.available("key", "gpt-4") == {"rpm": 10, "tpm": 1_000}


async def test_a_disabled_resource_refuses_all_and_a_bypassed_one_counts(harness: Harness) -> None:
    limiter = await prepare(harness)
    before = await read_balances(limiter)
    await limiter.disable_resource("tools")
    with pytest.raises(ResourceDisabled):
        await take(limiter, BOTH)
    await limiter.bypass_resource("tools")
    async with limiter.acquire("key", {"gpt-4": {"rpm": 1}, "tools": {"rpm": 5}}) as lease:
        assert (lease.bypassed, lease.overdrawn) == (False, ())
        assert (lease.resource("tools").bypassed, lease.resource("tools").overdrawn) == (True, ("rpm",))
    await limiter.enable_resource("tools")
    assert (await read_balances(limiter))["key", "gpt-4"] == {**before["key", "gpt-4"], "rpm": 9}
    assert await limiter.available("key", "tools") == {"rpm": -2}


async def test_limits_that_are_given_and_priorities_are_for_all_of_them(harness: Harness) -> None:
    limiter = harness.limiter()
    limits = [Limit.per_minute("rpm", 10, floors={"batch": 0.5})]
    costs = {"a": {"rpm": 5}, "b": {"rpm": 5}}
    await take(limiter, costs, limits=limits, priority="batch")
    with pytest.raises(RateLimitExceeded):
        await take(limiter, {"a": {"rpm": 1}, "b": {"rpm": 0}}, limits=limits, priority="batch")
    await take(limiter, costs, limits=limits)
    with pytest.raises(ValidationError, match="priority"):
        await take(limiter, costs, limits=limits, priority="free")


async def test_a_priority_counts_where_there_is_a_floor_for_it(harness: Harness) -> None:
    limiter = await prepare(harness)
    await limiter.set_resource_defaults("gpt-4", [Limit.per_minute("rpm", 10, floors={"batch": 0.5})])
    await take(limiter, {"tools": {"rpm": 3}, "gpt-4": {"rpm": 5}}, priority="batch")
    with pytest.raises(RateLimitExceeded) as refused:
        await take(limiter, {"tools": {"rpm": 0}, "gpt-4": {"rpm": 1}}, priority="batch")
    assert [each.floor for each in refused.value.statuses if each.entity_id == "key"] == [0, 5]
    await take(limiter, {"tools": {"rpm": 0}, "gpt-4": {"rpm": 1}})
    with pytest.raises(ValidationError, match="priority"):
        await take(limiter, {"tools": {"rpm": 0}, "gpt-4": {"rpm": 1}}, priority="free")


async def test_all_of_it_is_waited_for(harness: Harness) -> None:
    limiter = await prepare(harness)
    await take(limiter, {"gpt-4": {"rpm": 10}, "tools": {"rpm": 3}})
    started_ms = harness.clock.now_ms()
    await take(limiter, {"gpt-4": {"rpm": 1}, "tools": {"rpm": 2}}, max_wait=60)
    assert harness.clock.now_ms() - started_ms == 40_000
    with pytest.raises(RateLimitExceeded):
        await take(limiter, {"gpt-4": {"rpm": 1}, "tools": {"rpm": 2}}, max_wait=39)
    assert not limiter._lines.waiting


async def test_one_transaction_where_the_store_can(harness: Harness) -> None:
    limiter = await prepare(harness)
    if not limiter.repository.capabilities.wide_commits:
        with pytest.raises(ValidationError, match="atomic"):
            limiter.acquire("key", BOTH, atomic=True)
        return
    await take(limiter, BOTH, atomic=True)
    before = await read_balances(limiter)
    with pytest.raises(RateLimitExceeded):
        await take(limiter, BOTH, atomic=True)
    assert await read_balances(limiter) == before
    async with limiter.acquire("key", {"gpt-4": {"rpm": 1}, "tools": {"rpm": 1}}, atomic=True) as lease:
        await lease.resource("tools").release(rpm=1)
    assert await limiter.available("org", "tools") == {"rpm": 1}


async def test_config_that_another_client_has_changed_is_followed(harness: Harness) -> None:
    limiter, other = await prepare(harness), harness.limiter()
    await take(limiter, BOTH)
    await other.set_resource_defaults("tools", [Limit.per_minute("rpm", 100)])
    async with other.acquire("key", "tools", {"rpm": 1}):
        pass
    harness.clock.advance(60)
    await take(limiter, {"gpt-4": {"rpm": 1}, "tools": {"rpm": 100}})
    for who in ("key", "org"):
        assert await limiter.available(who, "gpt-4") == {"rpm": 9, "tpm": 1_000}
        assert await limiter.available(who, "tools") == {"rpm": 0}


async def test_bad_input_is_refused_before_anything_is_asked(harness: Harness) -> None:
    limiter = harness.limiter(FaultyStore(harness.store()))
    calls: list[tuple[Any, dict[str, Any]]] = [
        ({}, {}),
        ({f"r{number}": {"rpm": 1} for number in range(17)}, {}),
        ({"a": {"rpm": -1}, "b": {"rpm": 1}}, {}),
        ({"a": {"rpm": 1}, "b": 3}, {}),
        ({"a": {"rpm": 1}, "": {"rpm": 1}}, {}),
        ({"a": {"rpm": 1}, 5: {"rpm": 1}}, {}),
        ({"a": {"rpm": 1}}, {"also": {"a": {"rpm": 1}}}),
        ("a", {}),
        ("a", {"consume": {"rpm": 1}, "also": ["b"]}),
        ("a", {"consume": {"rpm": 1}, "also": {"a": {"rpm": 1}}}),
        ({"a": {"rpm": 1}}, {"consume": {"rpm": 1}, "also": {"b": {"rpm": 1}}}),
        ({"a": {"rpm": 1}}, {"consume": {"rpm": 1}}),
        (("a", "b"), {"consume": {"rpm@a": 1}}),
    ]
    for resource, options in calls:
        with pytest.raises(ValidationError):
            limiter.acquire("key", resource, **options)
    store = limiter.repository.store
    assert isinstance(store, FaultyStore)
    assert not store.calls.total()
    with pytest.raises(ValidationError, match="is not a resource of this lease; there are a, b"):
        limiter.acquire("key", {"a": {"rpm": 1}, "b": {"rpm": 1}}).resource("c")


async def test_as_many_as_there_may_be_over_an_hour(harness: Harness) -> None:
    """Sixteen resources at two levels, with the usage of the hour before that has to be booked."""
    limiter = await prepare(harness)
    await limiter.set_system_defaults([Limit.per_day("t", 10)])
    costs = {f"r{number}": {"t": number % 3} for number in range(16)}
    await take(limiter, costs)
    harness.clock.advance(3_600)
    await take(limiter, costs)
    found = await limiter.check_availability(["key", "org"], list(costs))
    left = {each.resource: each.available["t"] for each in found}
    assert all(9 - 2 * cost["t"] <= left[name] <= 10 - cost["t"] for name, cost in costs.items())
    if limiter.repository.capabilities.usage_retention_days:
        for name in ("r2", "r3"):
            usage, _ = await limiter.get_usage_snapshots("key", name, "hourly")
            assert sum(each.counters.get("t", 0) for each in usage) == 2 * costs[name]["t"]


async def test_a_limit_that_one_of_them_does_not_have(harness: Harness) -> None:
    limiter = await prepare(harness)
    with pytest.raises(ValidationError, match=r"consume\['tools'\]\['tpm'\] = 5: no such limit; there are rpm"):
        await take(limiter, {"gpt-4": {"rpm": 1}, "tools": {"tpm": 5}})


async def test_a_steady_acquire_is_one_write_where_commits_are_free(harness: Harness) -> None:
    store = FaultyStore(harness.store())
    limiter = await prepare(harness, harness.limiter(store))
    await take(limiter, {"gpt-4": {"rpm": 1}, "tools": {"rpm": 1}})
    before = dict(store.calls)
    await take(limiter, {"gpt-4": {"rpm": 1}, "tools": {"rpm": 1}})
    commits = 1 if store.capabilities.free_atomic_commit else 4
    assert store.calls["commit"] - before["commit"] == commits
    assert store.calls["read"] == before["read"]


async def test_without_a_store_all_of_it_is_allowed_and_counts_against_nothing(harness: Harness) -> None:
    store = FaultyStore(harness.store())
    limiter = await prepare(harness, harness.limiter(store))
    costs = {"gpt-4": {"rpm": 1, "tpm": 500}, "tools": {"rpm": 1}}
    await take(limiter, costs)
    store.inject(Fault.FAIL_BEFORE, times=10)
    with pytest.raises(RateLimiterUnavailable) as error:
        await take(limiter, costs)
    assert (error.value.entity_id, error.value.resource) == ("key", "gpt-4")
    async with limiter.acquire("key", costs, on_unavailable="allow") as lease:
        assert lease.degraded
        assert lease.resource("tools").degraded
        store.heal()
    for who in ("key", "org"):
        assert await limiter.available(who, "gpt-4") == {"rpm": 9, "tpm": 500}
        assert await limiter.available(who, "tools") == {"rpm": 2}


async def test_a_surface_without_a_block(harness: Harness) -> None:
    limiter = await prepare(harness)
    pattern = limiter.acquire("nobody", BOTH)
    lease = pattern.for_entity("key")
    await lease.check()
    assert not lease.try_enter()
    await lease.enter()
    with pytest.raises(LeaseExpiredError):
        await lease.enter()
    await lease.resource("tools").adjust(rpm=-1)
    assert not lease.try_exit()
    await lease.exit(final=False)
    await lease.resource("tools").adjust(rpm=-1)
    assert await limiter.available("org", "tools") == {"rpm": 3}
    other = pattern.for_entity("key")
    await other.enter()
    assert other.try_exit()
    await other.exit(give_back=True)
    assert await limiter.available("key", "tools") == {"rpm": 1}
    with pytest.raises(RateLimitExceeded):
        await pattern.for_entity("key").check()
    await pattern.for_entity("key").charge(2)
    assert await limiter.available("key", "gpt-4") == {"rpm": 6, "tpm": -1_000}
    assert await limiter.available("org", "tools") == {"rpm": -3}


class Watching(Observer):
    """Keeps the decisions."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def on_decision(self, decision: Decision) -> None:
        self.seen.append((decision.resource, decision.outcome))


async def test_observers_hear_of_each_resource(harness: Harness) -> None:
    watching = Watching()
    limiter = await prepare(harness, harness.limiter(observer=watching))
    async with limiter.acquire("key", BOTH) as lease:
        await lease.consume(rpm=1)
        await lease.resource("tools").consume(rpm=1)
    with pytest.raises(RateLimitExceeded):
        await take(limiter, BOTH)
    both = ("gpt-4", "tools")
    assert watching.seen == [*((what, "granted") for what in both * 2), *((what, "refused") for what in both)]


# The law: all or nothing.

CAPACITIES = st.fixed_dictionaries({name: st.integers(1, 6) for name in ("a", "b", "c")})
COSTS = st.dictionaries(st.sampled_from("abc"), st.fixed_dictionaries({"t": st.integers(0, 4)}), min_size=1)
MOVES = st.lists(st.tuples(st.integers(0, 1), COSTS, st.sampled_from([0, 0, 1, 999, 1_000, 60_000])), max_size=12)


async def tell_story(
    harness: Harness, number: int, capacities: dict[str, int], moves: list[tuple[int, dict[str, dict[str, int]], int]]
) -> None:
    """Two clients take in turn; the books say what fits. ``a`` refills one token per second, the others none."""
    clients = [harness.limiter(), harness.limiter(refusal_ttl=0)]
    who = f"key-{number}"
    held = {name: capacity * 1_000 for name, capacity in capacities.items()}
    for name, capacity in capacities.items():
        period = 1 if name == "a" else 300_000_000
        limit = Limit.custom("t", capacity=capacity, refill_amount=1, refill_period_seconds=period)
        await clients[0].set_limits(who, [limit], name)
    for client, costs, wait_ms in moves:
        harness.clock.advance_ms(wait_ms)
        held["a"] = min(capacities["a"] * 1_000, held["a"] + wait_ms)
        fits = all(cost["t"] * 1_000 <= held[name] for name, cost in costs.items())
        never = any(cost["t"] > capacities[name] for name, cost in costs.items())
        if fits:
            async with clients[client].acquire(who, costs):
                pass
            for name, cost in costs.items():
                held[name] -= cost["t"] * 1_000
        else:
            with pytest.raises(CapacityExceeded if never else RateLimitExceeded) as refused:
                async with clients[client].acquire(who, costs):
                    pass
            assert {each.resource for each in refused.value.statuses} == costs.keys()
            assert (refused.value.retry_after_seconds is None) == never
        for name, milli in held.items():
            assert (await clients[0].available(who, name))["t"] == milli // 1_000


def test_all_or_nothing(backend: Backend, harness: Harness) -> None:
    numbers = iter(range(10**6))

    @settings(max_examples=60 if backend.kind == "memory" else 8)
    @given(CAPACITIES, MOVES)
    def holds(capacities: dict[str, int], moves: list[tuple[int, dict[str, dict[str, int]], int]]) -> None:
        harness.clock.set_ms(1_800_000_000_000 + 10**6 * 1_000)
        harness.run(tell_story(harness, next(numbers), capacities, moves))

    holds()


# Many at once.


@pytest.mark.parametrize("free", [True, False], ids=["one commit", "side by side"])
async def test_tasks_at_once_take_what_there_is(*, free: bool) -> None:
    """Some take both resources, some one of them; nothing is lost and nothing is sold twice."""
    shared = MemoryStore(ManualClock())
    limiters = [RateLimiter(FaultyStore(shared, suspend=True, free_atomic_commit=free)) for _ in range(3)]
    day = [Limit.per_day("t", 40)]
    await limiters[0].set_system_defaults(day)
    sold = {"a": 0, "b": 0}

    async def buy(number: int) -> None:
        wanted = [("a", "b"), ("b", "a"), ("a",), ("b",)][number % 4]
        try:
            async with limiters[number % 3].acquire("key", {name: {"t": 1} for name in wanted}):
                for name in wanted:
                    sold[name] += 1
        except RateLimitExceeded:
            pass

    await asyncio.gather(*[buy(number) for number in range(120)])
    for name, count in sold.items():
        assert await limiters[0].available("key", name) == {"t": 40 - count}
    assert 40 in sold.values() or not free, "somebody was refused while there was enough"


async def test_who_waits_for_one_resource_is_not_overtaken_by_who_wants_two() -> None:
    clock = ManualClock()
    limiter = RateLimiter(MemoryStore(clock))
    await limiter.set_system_defaults([Limit.per_minute("t", 60, burst=2)])
    await take(limiter, {"a": {"t": 2}, "b": {"t": 1}})
    order: list[str] = []

    async def wait(name: str, costs: dict[str, dict[str, int]]) -> None:
        async with limiter.acquire("key", costs, max_wait=60):
            order.append(name)

    waiters = []
    for name, costs in (("one", {"a": {"t": 2}}), ("two", {"a": {"t": 1}, "b": {"t": 1}}), ("three", {"b": {"t": 2}})):
        waiters.append(asyncio.create_task(wait(name, costs)))
        await asyncio.sleep(0)
    await asyncio.gather(*waiters)
    assert order[0] == "one"
    assert not limiter._lines.waiting


def test_threads_take_several_resources_at_once() -> None:
    from concurrent.futures import ThreadPoolExecutor

    limiter = SyncRateLimiter(MemoryStore(ManualClock()))
    limiter.set_system_defaults([Limit.per_day("t", 100)])

    def buy(_: int) -> int:
        try:
            with limiter.acquire("key", {"a": {"t": 1}, "b": {"t": 2}}) as lease:
                lease.resource("b").adjust(t=-1)
                return 1
        except RateLimitExceeded:
            return 0

    with ThreadPoolExecutor(8) as pool:
        sold = sum(pool.map(buy, range(150)))
    assert limiter.available("key", "a") == {"t": 100 - sold}
    assert limiter.available("key", "b") == {"t": 100 - sold}
    assert sold >= 90


def test_statuses_are_those_of_single_acquires() -> None:
    """What a lease of several tells of one resource is what a lease of that alone would tell."""
    told: list[tuple[LimitStatus, ...]] = []
    for several in (True, False):
        limiter = SyncRateLimiter(MemoryStore(ManualClock()))
        limiter.set_system_defaults(MODEL)
        costs = {"gpt-4": {"rpm": 1}, "tools": {"rpm": 2}} if several else {"tools": {"rpm": 2}}
        with limiter.acquire("key", costs) as lease:
            told.append(lease.resource("tools").statuses)
    assert told[0] == told[1]


# Split buckets.


@pytest.mark.parametrize("blocking", [False, True], ids=["async", "blocking"])
def test_a_split_bucket_among_them_is_one_bucket(*, blocking: bool) -> None:
    """Every token of it is sold, also to a request that no shard holds alone, and comes back; nothing else is taken."""
    harness = test_shards.opened(blocking=blocking)

    async def tell() -> None:
        limiter = harness.limiter()
        for resource, capacity in (("gpt-4", 64), ("tools", 100)):
            await limiter.set_resource_defaults(resource, [test_shards.still(capacity)])
        await take(limiter, {"gpt-4": {"rpm": 4}, "tools": {"rpm": 4}})
        await split(limiter, times=2)
        for client in (limiter, harness.limiter()):
            async with client.acquire("key", {"tools": {"rpm": 1}, "gpt-4": {"rpm": 50}}) as lease:
                assert lease.resource("gpt-4").available == {"rpm": 10}
                await lease.resource("gpt-4").release(rpm=50)
            assert await client.available("key", "gpt-4") == {"rpm": 60}
            with pytest.raises(RateLimitExceeded) as refused:
                await take(client, {"tools": {"rpm": 1}, "gpt-4": {"rpm": 61}})
            assert {each.resource for each in refused.value.violations} == {"gpt-4"}
        sold = 0
        try:
            while True:
                await take(limiter, {"tools": {"rpm": 1}, "gpt-4": {"rpm": 1}})
                sold += 1
        except RateLimitExceeded:
            pass
        assert sold == 60
        left = await limiter.check_availability("key", ["gpt-4", "tools"])
        assert [each.available["rpm"] for each in left] == [0, 100 - 4 - 2 - 60]

    harness.run(tell())
