"""Settlements: unused tokens come back in full, overuse becomes debt, whatever happened in between."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import strategies as st

from tests.conformance.oracle import LAG_MS
from tests.conformance.replay import (
    Change,
    Crash,
    End,
    Pause,
    Reset,
    Step,
    Take,
    settles_as_the_model,
)
from tests.conformance.traffic import Boom
from tests.laws.test_laws import PHASES, from_start, prove
from tests.support.backends import BACKENDS, KEEPING
from zae_limiter import Lease, Limit, RateLimiter, RateLimiterUnavailable, RateLimitExceeded
from zae_limiter.testing import Fault, FaultyStore

if TYPE_CHECKING:
    from tests.support.backends import Backend
    from zae_limiter.testing import Harness

NAMES = ("rps", "tpm")


@st.composite
def limits(draw: st.DrawFn) -> tuple[Limit, ...]:
    """One or two limits that fill within seconds or minutes; quotas with and without rollover among them."""
    return tuple(draw(one_limit(name, st.sampled_from([1, 4, 10, 100]))) for name in NAMES[: draw(st.integers(1, 2))])


@st.composite
def one_limit(draw: st.DrawFn, name: str, capacities: st.SearchStrategy[int]) -> Limit:
    capacity = draw(capacities)
    if draw(st.integers(0, 2)):
        return Limit(name, capacity, draw(st.sampled_from([1, 3, 10, 100])), 1)
    window = draw(st.sampled_from([timedelta(seconds=1), timedelta(seconds=7), timedelta(minutes=2)]))
    return Limit.quota(name, capacity, every=window, rollover=draw(st.sampled_from([0, 0, 3])))


@st.composite
def stories(draw: st.DrawFn) -> tuple[int, tuple[Limit, ...], list[Step]]:
    """A phase of the clock, limits, and what clients do to them."""
    given = draw(limits())
    most = max(limit.capacity for limit in given)
    amounts = st.fixed_dictionaries(
        {given[0].name: st.integers(0, given[0].capacity)},
        optional={limit.name: st.integers(0, limit.capacity) for limit in given[1:]},
    )
    changes = st.fixed_dictionaries(
        {}, optional={limit.name: st.integers(-limit.capacity, 2 * limit.capacity) for limit in given}
    )
    others = st.tuples(*(one_limit(limit.name, st.integers(1, 2 * most)) for limit in given))
    clients = st.integers(0, 2)
    step = st.one_of(
        st.builds(Pause, st.sampled_from([0, 1, 7, 490, 1_000, 5_000, 120_000])),
        st.builds(Take, clients, amounts),
        st.builds(Take, clients, amounts),
        st.builds(End, st.integers(0, 9), st.none() | changes),
        st.builds(End, st.integers(0, 9), changes),
        st.builds(Change, clients, others),
        st.builds(Reset, clients),
        st.builds(Crash, st.integers(0, 9)),
    )
    return draw(PHASES), given, draw(st.lists(step, min_size=5, max_size=40))


@pytest.mark.parametrize(
    ("clients", "slack_ms", "options"),
    [(1, 0, {}), (3, 0, {"speculative_writes": False, "refusal_ttl": 0}), (3, LAG_MS, {})],
    ids=["alone", "looking", "racing"],
)
def test_law_1_settlements_count_when_they_come(
    backend: Backend, harness: Harness, clients: int, slack_ms: int, options: dict[str, Any]
) -> None:
    """Limits changed live, leases settled out of order by several clients, buckets reset or expired in between."""

    def law(drawn: tuple[int, tuple[Limit, ...], list[Step]]) -> None:
        phase, given, steps = drawn
        work = settles_as_the_model(harness, given, steps, clients, slack_ms, bucket_ttl_refill_multiplier=1, **options)
        from_start(harness, phase, work)

    prove(backend, 1.0, stories(), law)


async def end(lease: Lease, **change: int) -> None:
    """Leave a lease with an adjustment."""
    await lease.adjust(change)
    await lease.__aexit__(None, None, None)


async def spend(limiter: RateLimiter, amount: int) -> None:
    async with limiter.acquire("key", "gpt-4", {"t": amount}):
        pass


@pytest.mark.parametrize("backend", KEEPING, ids=str)
async def test_usage_of_a_limit_that_was_removed_meanwhile_is_counted(harness: Harness) -> None:
    limiter = harness.limiter()
    both = [Limit.per_day("t", 100), Limit.per_day("r", 100)]
    await limiter.set_system_defaults(both)
    for resets in (False, True):
        who = f"key-{resets}"
        lease = limiter.acquire(who, "gpt-4", {"t": 5, "r": 1})
        await lease.__aenter__()
        await limiter.set_system_defaults(both[1:])
        if resets:
            await limiter.reset_bucket(who, "gpt-4")
        async with limiter.acquire(who, "gpt-4", {"r": 1}):
            pass
        await end(lease, t=7)
        total = (await limiter.get_usage_summary(entity_id=who, resource="gpt-4")).total
        assert total == {"t": 12, "r": 2}
        assert await limiter.available(who, "gpt-4") == {"r": 99 if resets else 98}
        await limiter.set_system_defaults(both)


@pytest.mark.parametrize("backend", [each for each in BACKENDS if each.blocking], ids=str)
def test_calls_that_fail_at_the_same_moment_give_back_all_they_took(harness: Harness) -> None:
    """Six threads of one process return what they took, each with a write of its own."""
    amounts = (25, 5, 30, 10, 20, 10)
    limiter = harness.limiter(timeout=60)
    harness.run(limiter.set_system_defaults([Limit.per_day("t", 100)]))
    for number in range(20):
        key = f"key-{number}"
        together = threading.Barrier(len(amounts))

        async def fail(amount: int, key: str = key, together: threading.Barrier = together) -> None:
            lease = limiter.acquire(key, "gpt-4", {"t": amount})
            await lease.__aenter__()
            together.wait(60)
            await lease.__aexit__(Boom, Boom(), None)

        with ThreadPoolExecutor(len(amounts)) as pool:
            for done in [pool.submit(harness.run, fail(amount)) for amount in amounts]:
                done.result()
        assert harness.run(limiter.available(key, "gpt-4")) == {"t": 100}


# A limit that is named is checked.


async def test_nothing_is_granted_of_a_limit_that_is_in_debt(harness: Harness) -> None:
    """A cost of 0 whose real cost is known later: refused until the debt is paid, to the millisecond."""
    limiter = harness.limiter()
    await limiter.set_system_defaults([Limit.per_minute("rpm", 60), Limit("tpm", 1_000, 100, 1)])
    async with limiter.acquire("key", "gpt-4", {"rpm": 1, "tpm": 0}) as lease:
        await lease.adjust(tpm=5_000)
    for _ in range(4):
        with pytest.raises(RateLimitExceeded) as refused:
            async with limiter.acquire("key", "gpt-4", {"rpm": 1, "tpm": 0}):
                pass
        assert [each.limit_name for each in refused.value.violations] == ["tpm"]
        assert refused.value.retry_after_seconds == 40.0
    assert await limiter.time_until_available("key", "gpt-4", {"tpm": 0}) == 40.0
    async with limiter.acquire("key", "gpt-4", {"rpm": 1}):
        pass  # a limit that is not named is not checked
    harness.clock.advance(39.999)
    with pytest.raises(RateLimitExceeded):
        async with limiter.acquire("key", "gpt-4", {"tpm": 0}):
            pass
    harness.clock.advance(0.001)
    async with limiter.acquire("key", "gpt-4", {"rpm": 1, "tpm": 0}):
        pass


# The unit of law 1.


@pytest.mark.parametrize("phase_ms", [0, 1, 43_200, 86_399])
async def test_a_grant_comes_less_than_a_thousandth_of_a_token_early(harness: Harness, phase_ms: int) -> None:
    """Balances are kept in thousandths, so 1 a day may be up to 86.4 s early; the promised moment says so too."""
    limiter = harness.limiter()
    await limiter.set_system_defaults([Limit.per_day("t", 1)])
    unit_ms = 86_400
    harness.clock.set_ms(1_800_000_000_000 // unit_ms * unit_ms + phase_ms)
    begin_ms = harness.clock.now_ms()
    await spend(limiter, 1)
    with pytest.raises(RateLimitExceeded) as refused:
        await spend(limiter, 1)
    wait_ms = round((refused.value.retry_after_seconds or 0) * 1000)
    assert wait_ms == 86_400_000 - phase_ms
    harness.clock.set_ms(begin_ms + wait_ms - 1)
    with pytest.raises(RateLimitExceeded):
        await spend(limiter, 1)
    harness.clock.set_ms(begin_ms + wait_ms)
    await spend(limiter, 1)
    over = 2 - (1 + Fraction(wait_ms, 86_400_000))
    assert over == Fraction(phase_ms, 86_400_000)
    assert over < Fraction(1, 1000), "and the largest phase leaves no room for a smaller bound"
    assert phase_ms < 86_399 or over > Fraction(1, 1000) - Fraction(1, 10**6) / 86


# Refusals are not remembered for longer than they may be.


@pytest.mark.parametrize("comes_back", ["given back", "reset"])
def test_a_refusal_is_repeated_for_the_refusal_ttl_and_no_longer(harness: Harness, comes_back: str) -> None:
    async def work() -> None:
        ours, theirs, exact = harness.limiter(), harness.limiter(refusal_ttl=1.0), harness.limiter(refusal_ttl=0)
        await ours.set_system_defaults([Limit.per_hour("t", 100)])
        lease = ours.acquire("key", "gpt-4", {"t": 100})
        await lease.__aenter__()
        for limiter in (theirs, exact):
            with pytest.raises(RateLimitExceeded) as refused:
                await spend(limiter, 50)
            assert refused.value.retry_after_seconds == 1_800.0
        if comes_back == "reset":
            await ours.reset_bucket("key", "gpt-4")
        else:
            await end(lease, t=-100)
        await spend(exact, 1)
        if harness.store().capabilities.several_processes:  # else everybody sees everything
            with pytest.raises(RateLimitExceeded):
                await spend(theirs, 50)
        harness.clock.advance(1.001)
        await spend(theirs, 50)

    harness.run(work())


# Levels of a transaction.


@pytest.mark.parametrize("backend", [each for each in BACKENDS if each.kind == "dynamodb"], ids=str)
async def test_a_transaction_knows_what_each_level_had_left(harness: Harness) -> None:
    """Others have taken from the parent since it was last seen: each level is told and given back by itself."""
    limiter, other = harness.limiter(atomic=True), harness.limiter()
    await limiter.create_entity("org")
    for key in ("one", "two"):
        await limiter.create_entity(key, parent_id="org", cascade=True)
        await limiter.set_limits(key, [Limit.per_day("t", 100)])
    await limiter.set_limits("org", [Limit.per_day("t", 40)])
    for client, key in ((limiter, "one"), (other, "two"), (limiter, "one")):
        async with client.acquire(key, "gpt-4", {"t": 5}) as lease:
            left = lease.available
    assert left == {"t": 25}
    failing = limiter.acquire("one", "gpt-4", {"t": 7})
    async with other.acquire("two", "gpt-4", {"t": 1}):
        pass
    await failing.__aenter__()
    assert {(each.entity_id, each.available) for each in failing.statuses} == {("one", 83), ("org", 17)}
    await failing.__aexit__(Boom, Boom(), None)
    assert await limiter.available("one", "gpt-4") == {"t": 24}


async def test_a_failed_settlement_leaves_the_work_charged(harness: Harness) -> None:
    faulty = FaultyStore(harness.store())
    limiter = harness.limiter(faulty)
    await limiter.set_system_defaults([Limit.per_minute("rpm", 100)])

    async def body() -> None:
        async with limiter.acquire("key", "gpt-4", {"rpm": 40}) as lease:
            await lease.adjust(rpm=7)
            faulty.inject(Fault.FAIL_BEFORE, verb="commit")

    with pytest.raises(RateLimiterUnavailable):
        await body()
    assert await limiter.available("key", "gpt-4") == {"rpm": 60}
