"""The laws as properties: every backend, both modes, scenarios drawn by hypothesis.

The laws themselves are coroutines of the conformance suite, with an oracle in whole numbers that shares no code with
the limiter. Here are the scenarios: limits from 1 a day to a million a second, costs at the edges of the capacity,
steps from nothing to days, clients whose clocks are off, leases that end late, fail, or cost more than estimated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings, strategies as st

from tests.conformance import laws
from tests.conformance.oracle import balances, made
from tests.conformance.traffic import RESOURCE, Boom, Family, Move
from zae_limiter import Limit, RateLimitExceeded, SyncRateLimiter, SyncRepository
from zae_limiter.testing import Fault, Harness

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from tests.support.backends import Backend

START_MS = 1_800_000_000_000
DAY_MS = 86_400_000
NAMES = ("rps", "rpm", "tpd")


@st.composite
def limits(draw: st.DrawFn, name: str) -> Limit:
    """Rates from 1 a day to a million a second; capacities below, at and above the amount of a period."""
    period = draw(st.sampled_from([1, 1, 7, 60, 3_600, 86_400]))
    most = min(10**6 * period, 10**9)
    amount = draw(st.sampled_from([1, 2, 3, 7, 20, 1_000, 999_983, most]) | st.integers(1, most))
    capacity = draw(st.sampled_from([1, 2, 10, 100, amount, 2 * amount]) | st.integers(1, 10**6))
    return Limit(name, capacity, min(amount, most), period)


several_limits = st.integers(1, 3).flatmap(lambda count: st.tuples(*(limits(name) for name in NAMES[:count])))


def costs(given: tuple[Limit, ...], spare: int = 0) -> st.SearchStrategy[dict[str, int]]:
    """For some of the limits: nothing, one, half, all but one, all; up to ``spare`` more than that."""

    def of(limit: Limit) -> st.SearchStrategy[int]:
        edges = {0, 1, limit.capacity // 2, max(0, limit.capacity - 1), limit.capacity, limit.capacity + spare}
        return st.sampled_from(sorted(edges)) | st.integers(0, limit.capacity + spare)

    return st.fixed_dictionaries({given[0].name: of(given[0])}, optional={each.name: of(each) for each in given[1:]})


def steps(given: tuple[Limit, ...]) -> st.SearchStrategy[int]:
    """Nothing at all, milliseconds, the time in which a token is made, the bucket fills or is forgotten, days."""
    telling = {0, 1, 19, 20, 21, 999, 60_000, 2 * DAY_MS}
    for limit in given:
        token_ms = limit.refill_period_seconds * 1000 // limit.refill_amount
        telling |= {token_ms, token_ms + 1, limit.time_to_fill_ms, max(0, limit.time_to_fill_ms - 1)}
        telling.add(8 * limit.time_to_fill_ms)
    return st.just(0) | st.sampled_from(sorted(telling)) | st.integers(0, 5_000)


def moves(given: tuple[Limit, ...], most: int = 25) -> st.SearchStrategy[list[Move]]:
    """Acquires of several clients for several children, held for a while and ended in every way."""
    changes = st.fixed_dictionaries(
        {}, optional={each.name: st.integers(-each.capacity, 20 * each.capacity) for each in given}
    )
    move = st.builds(
        Move,
        wait_ms=steps(given),
        cost=costs(given),
        outcome=st.just({}) | st.none() | changes,
        hold=st.integers(0, 4),
        client=st.integers(0, 2),
        child=st.integers(0, 1),
    )
    return st.lists(move, min_size=1, max_size=most)


def prove(backend: Backend, share: float, drawn: st.SearchStrategy[Any], law: Callable[[Any], None]) -> None:
    """Run a property with a share of the profile's examples; a store on disk gets a part of them."""
    examples = settings.default.max_examples if settings.default else 100
    part = share if backend.kind == "memory" else share / 4

    @settings(max_examples=max(3, int(examples * part)))
    @given(drawn)
    def holds(value: Any) -> None:
        law(value)

    holds()


def from_start(harness: Harness, phase_ms: int, work: Coroutine[Any, Any, None]) -> None:
    """Run in the harness's mode, from an instant of its own."""
    harness.clock.set_ms(START_MS + phase_ms)
    harness.run(work)


PHASES = st.integers(0, 100_000)
"""Where in its period a limit is when the story begins."""


@st.composite
def stories(draw: st.DrawFn, most: int = 25) -> tuple[int, tuple[Limit, ...], tuple[Limit, ...], list[Move]]:
    """A phase, limits, limits of a parent (or none), and what happens."""
    own = draw(several_limits)
    above = draw(st.just(()) | st.just(own[:1]) | several_limits)
    known = tuple(each for each in above if each.name in {limit.name for limit in own})
    return draw(PHASES), own, known, draw(moves(own, most))


SKEWS = st.lists(st.sampled_from([0, 0, 1, -1, 20, -20, 5_000, -5_000, DAY_MS, -DAY_MS]), min_size=1, max_size=3)


# 1. Never over-admit.


def test_law_1_never_over_admit(backend: Backend, harness: Harness) -> None:
    """Every window of every limit, over clients with clocks of their own and leases that end in every way."""

    def law(drawn: tuple[Any, list[int]]) -> None:
        (phase, own, above, story), skews = drawn

        async def work() -> None:
            family = await Family(harness, own, above, children=2).settle_in(skews)
            await laws.never_over_admits(family, story)

        from_start(harness, phase, work())

    prove(backend, 0.6, st.tuples(stories(), SKEWS), law)


@st.composite
def forgetful_stories(draw: st.DrawFn) -> tuple[tuple[Limit, ...], list[Move]]:
    """Two limits that fill in a few seconds, big debts, and times in which a bucket may be forgotten."""
    own = tuple(Limit(name, draw(st.integers(1, 10)), 1, 1) for name in NAMES[:2])
    fill_ms = max(limit.time_to_fill_ms for limit in own)
    move = st.builds(
        Move,
        wait_ms=st.sampled_from([0, 1_000, fill_ms, fill_ms + 1_000, 3 * fill_ms]),
        cost=st.fixed_dictionaries({limit.name: st.sampled_from([0, 1, limit.capacity]) for limit in own}),
        outcome=st.sampled_from([{}, *({limit.name: 10 * limit.capacity} for limit in own)]),
        hold=st.integers(0, 1),
        client=st.integers(0, 1),
    )
    return own, draw(st.lists(move, min_size=3, max_size=10))


def test_law_1_with_buckets_that_expire(backend: Backend, harness: Harness) -> None:
    """The same under default limits: a bucket is forgotten only when it is full, so no debt is forgiven by it."""

    def law(drawn: tuple[tuple[Limit, ...], list[Move]]) -> None:
        own, story = drawn

        async def work() -> None:
            family = Family(harness, own)
            await family.settle_in([0, 0], by_default=True, bucket_ttl_refill_multiplier=1)
            await laws.never_over_admits(family, story)

        from_start(harness, 0, work())

    prove(backend, 0.5, forgetful_stories(), law)


async def test_law_1_after_an_idle_time(harness: Harness) -> None:
    """Capacity 100, 10 a second, idle for an hour: 106 in 0.66 s, not 202 as the reference grants."""
    family = await Family(harness, [Limit("rps", 100, 10, 1)]).settle_in([0, 0])
    story = [Move(0, {"rps": 1}), *(Move(3, {"rps": 1}, client=number % 2) for number in range(220))]
    await family.drive([Move(0, {"rps": 1})])
    family.advance(3_600_000)
    await family.drive(story)
    family.check()
    granted = sum(entry.milli for entry in family.ledgers["child-0", "rps"].entries if entry.granted)
    assert granted == 107_000, "the one before the idle time, and 106 after it"


# 2. Refill is exact.


def test_law_2_refill_is_exact(backend: Backend, harness: Harness) -> None:
    """Whatever the steps at which it is polled and its neighbour written, a limit refills what one look would find."""

    def law(drawn: tuple[int, Limit, Limit, int, list[int]]) -> None:
        phase, slow, fast, drained, polls = drawn
        from_start(harness, phase, laws.refill_is_exact(harness, slow, fast, drained, polls))

    story = st.tuples(limits("slow"), limits("fast")).flatmap(
        lambda pair: st.tuples(
            PHASES,
            st.just(pair[0]),
            st.just(pair[1]),
            st.integers(1, 3 * pair[0].capacity),
            st.lists(steps(pair), max_size=20),
        )
    )
    prove(backend, 0.4, story, law)


@pytest.mark.parametrize("limit", [Limit.per_day("slow", 1), Limit.per_day("slow", 1_000), Limit.per_second("slow", 7)])
async def test_law_2_polled_every_millisecond(harness: Harness, limit: Limit) -> None:
    """Polled each millisecond or once, the same, at rates that make no whole number of millitokens in one."""
    await laws.refill_is_exact(harness, limit, Limit.per_second("fast", 10**6), limit.capacity, [1] * 150)


async def test_law_2_a_daily_limit_beside_a_fast_one_for_an_hour(harness: Harness) -> None:
    """1,000 a day beside 20 a second, under traffic for an hour: all of the 41,666.67 millitokens, floored twice."""
    daily, fast = Limit.per_day("daily", 1_000), Limit.per_second("fast", 20)
    family = await Family(harness, [daily, fast]).settle_in()
    (limiter,), (child,) = family.limiters, family.children
    start_ms = family.now_ms
    async with limiter.acquire(child, RESOURCE, {"daily": 1_000}):
        pass
    granted = 0
    gaps = [1, 2, 3, 5, 8, 13, 21, 34, 55, 89] * 20  # a busy quarter of a minute, then a call every so often
    gaps += [(3_600_000 - sum(gaps)) // 150] * 149
    for gap in [*gaps, 3_600_000 - sum(gaps)]:
        family.advance(gap)
        try:
            async with limiter.acquire(child, RESOURCE, {"fast": 1}):
                granted += 1
        except RateLimitExceeded:
            pass
    assert family.now_ms - start_ms == 3_600_000
    assert granted > 200
    found = await balances(family.keeper, [child], family.now_ms)
    assert found[child, RESOURCE, "daily"] == made(daily, family.now_ms) - made(daily, start_ms) == 41_667


# 3. The promised moment is the moment.


def test_law_3_the_promised_moment(backend: Backend, harness: Harness) -> None:
    """Refused 1 ms before ``retry_after``, granted at it."""

    def law(drawn: tuple[Any, dict[str, int], bool]) -> None:
        (phase, own, above, story), cost, anew = drawn

        async def work() -> None:
            family = await Family(harness, own, above, children=2).settle_in()
            await laws.promise_is_kept(family, story, cost, anew=anew)

        from_start(harness, phase, work())

    drawn = stories(8).flatmap(lambda story: st.tuples(st.just(story), costs(story[1]), st.booleans()))
    prove(backend, 0.4, drawn, law)


def test_law_3_among_several_clients(backend: Backend, harness: Harness) -> None:
    """The same where others have spent before, for clients that do not refuse from memory."""

    def law(drawn: tuple[Any, dict[str, int], bool]) -> None:
        (phase, own, above, story), cost, anew = drawn

        async def work() -> None:
            family = await Family(harness, own, above, children=2).settle_in([0, 0, 0], refusal_ttl=0)
            await laws.promise_is_kept(family, story, cost, anew=anew)

        from_start(harness, phase, work())

    drawn = stories(8).flatmap(lambda story: st.tuples(st.just(story), costs(story[1]), st.booleans()))
    prove(backend, 0.4, drawn, law)


# 4. All or nothing.


def test_law_4_all_or_nothing(backend: Backend, harness: Harness) -> None:
    """After a refusal every balance of every entity is what it was, whoever asked and whatever they had cached."""

    def law(drawn: tuple[Any, dict[str, int]]) -> None:
        (phase, own, above, story), cost = drawn

        async def work() -> None:
            family = await Family(harness, own, above, children=2).settle_in([0, 0])
            await laws.refusal_changes_nothing(family, story, cost)

        from_start(harness, phase, work())

    drawn = stories(8).flatmap(lambda story: st.tuples(st.just(story), costs(story[1], spare=1)))
    prove(backend, 0.4, drawn, law)


# 5. Not yet and never are different.


def test_law_5_not_yet_and_never(backend: Backend, harness: Harness) -> None:
    """A cost above any capacity of the chain is an error of its own, whatever the balances."""

    def law(drawn: tuple[Any, dict[str, int]]) -> None:
        (phase, own, above, story), cost = drawn

        async def work() -> None:
            family = await Family(harness, own, above).settle_in()
            await laws.never_is_not_yet(family, story, cost)

        from_start(harness, phase, work())

    drawn = stories(5).flatmap(lambda story: st.tuples(st.just(story), costs(story[1], spare=2)))
    prove(backend, 0.4, drawn, law)


# 6. Time never runs backwards.


def test_law_6_a_clock_that_is_behind(backend: Backend, harness: Harness) -> None:
    """By a millisecond or ten years, from the start or by a step: nothing granted extra, nothing drained."""

    def law(drawn: tuple[Any, int, dict[str, int]]) -> None:
        (phase, own, above, story), back_ms, cost = drawn

        async def work() -> None:
            family = await Family(harness, own, above, children=2).settle_in()
            await laws.time_never_runs_backwards(family, story, back_ms, cost)

        from_start(harness, phase, work())

    drawn = stories(8).flatmap(
        lambda story: st.tuples(
            st.just(story),
            st.sampled_from([1, 20, 21, 1_000, DAY_MS, 3_650 * DAY_MS]) | st.integers(1, 10_000),
            costs(story[1]),
        )
    )
    prove(backend, 0.4, drawn, law)


# 7. Nothing leaks.


ERRORS: list[type[BaseException]] = [Boom, ValueError, KeyboardInterrupt, SystemExit, GeneratorExit, StopIteration]


@pytest.mark.parametrize("error", ERRORS)
def test_law_7_exceptions_of_any_kind(backend: Backend, harness: Harness, error: type[BaseException]) -> None:
    """A body that ends by an exception leaves every balance where it would be without it."""

    def law(drawn: tuple[Any, dict[str, int], int]) -> None:
        (phase, own, above, story), cost, body_ms = drawn

        async def work() -> None:
            family = await Family(harness, own, above).settle_in()
            await laws.nothing_leaks(family, story, cost, error(), body_ms)

        from_start(harness, phase, work())

    drawn = stories(5).flatmap(lambda story: st.tuples(st.just(story), costs(story[1]), steps(story[1])))
    prove(backend, 0.1, drawn, law)


@pytest.mark.parametrize("chunks", [0, 1, 9])
async def test_law_7_closed_streams(harness: Harness, chunks: int) -> None:
    """A generator that is closed after some chunks has given back what it took."""
    family = await Family(harness, [Limit.per_day("rpd", 10)], [Limit.per_day("rpd", 20)]).settle_in()
    await laws.streams_do_not_leak(family, {"rpd": 3}, chunks)


def test_law_7_closed_streams_in_blocking_code(harness: Harness) -> None:
    """The same for a plain generator over the blocking facade."""
    if not harness.blocking:
        pytest.skip("the facade needs a blocking store")
    limiter = SyncRateLimiter(SyncRepository(harness.store()))
    limiter.set_system_defaults([Limit.per_day("rpd", 10)])

    def stream() -> Any:
        with limiter.acquire("key", RESOURCE, {"rpd": 3}) as lease:
            yield lease.available
            lease.adjust(rpd=2)
            yield lease.consumed

    chunks = stream()
    assert next(chunks) == {"rpd": 7}
    chunks.close()
    assert limiter.available("key", RESOURCE) == {"rpd": 10}
    assert list(stream()) == [{"rpd": 7}, {"rpd": 5}]
    assert limiter.available("key", RESOURCE) == {"rpd": 5}


# 8. A refusal is not a failure.


@pytest.mark.parametrize("fault", [Fault.FAIL_BEFORE, Fault.FAIL_AFTER, Fault.DROP_ANSWER, Fault.DELAY])
async def test_law_8_a_refusal_is_no_failure(harness: Harness, fault: Fault) -> None:
    """Limit exceeded, store down and bad input are different types, and a failed write is made at most once."""
    await laws.refusal_is_no_failure(harness, Limit.per_day("rpd", 10), fault)
