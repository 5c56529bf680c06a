"""Leases: taken before the body, settled after it, given back when it fails."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from zae_limiter import (
    LeaseExpiredError,
    Limit,
    RateLimiter,
    RateLimiterUnavailable,
    RateLimitExceeded,
    SyncLease,
    SyncRateLimiter,
    ValidationError,
)
from zae_limiter.records import keys
from zae_limiter.records.algebra import Write
from zae_limiter.stores.memory import MemoryStore
from zae_limiter.testing import Fault, FaultyStore, Harness, ManualClock

LIMITS = [Limit.per_hour("rpm", 100), Limit.per_hour("tpm", 10_000)]


class Boom(Exception):
    """What a body raises."""


async def family(limiter: RateLimiter) -> None:
    await limiter.set_system_defaults(LIMITS)
    await limiter.create_entity("org")
    await limiter.create_entity("key", parent_id="org", cascade=True)


async def left(limiter: RateLimiter, entity: str = "key") -> dict[str, int]:
    return await limiter.available(entity, "gpt-4")


async def test_a_plain_lease_is_one_write_and_a_settled_one_two(harness: Harness) -> None:
    """Where an atomic commit is free it is one for both levels, else one for each."""
    store = FaultyStore(harness.store())
    limiter = harness.limiter(store)
    one = 1 if store.capabilities.free_atomic_commit else 2
    await family(limiter)
    async with limiter.acquire("key", "gpt-4", {"rpm": 1}):
        pass
    before = store.calls.copy()
    async with limiter.acquire("key", "gpt-4", {"rpm": 1, "tpm": 500}):
        assert store.calls - before == {"commit": one}, "before the body runs"
    assert store.calls - before == {"commit": one}
    async with limiter.acquire("key", "gpt-4", {"rpm": 1, "tpm": 500}) as lease:
        for _ in range(5):
            await lease.adjust(tpm=100)
            await lease.release(tpm=40, rpm=0)
        assert store.calls - before == {"commit": 2 * one}
    assert store.calls - before == {"commit": 3 * one}, "once, at the end, for both levels"
    assert lease.consumed == {"rpm": 1, "tpm": 800}
    for entity in ("key", "org"):
        assert await left(limiter, entity) == {"rpm": 97, "tpm": 10_000 - 500 - 800}


async def test_a_correction_that_cancels_itself_out_writes_nothing(harness: Harness) -> None:
    store = FaultyStore(harness.store())
    limiter = harness.limiter(store)
    async with limiter.acquire("key", "gpt-4", {"tpm": 500}, LIMITS) as lease:
        before = store.calls.total()
        await lease.adjust(tpm=100)
        await lease.adjust({"tpm": -100})
    assert store.calls.total() == before


async def test_adjust_may_go_into_debt_that_refill_pays_off(harness: Harness) -> None:
    limiter = harness.limiter()
    async with limiter.acquire("key", "gpt-4", {"tpm": 9_000}, LIMITS) as lease:
        await lease.adjust(tpm=6_000)
    assert await limiter.available("key", "gpt-4", LIMITS) == {"rpm": 100, "tpm": -5_000}
    with pytest.raises(RateLimitExceeded) as refused:
        async with limiter.acquire("key", "gpt-4", {"tpm": 1}, LIMITS):
            pass
    assert refused.value.retry_after_seconds == pytest.approx(1_800.36)
    async with limiter.acquire("key", "gpt-4", {"rpm": 1}, LIMITS):
        pass  # the other limit is not in debt
    harness.clock.advance(1_800.36)
    async with limiter.acquire("key", "gpt-4", {"tpm": 1}, LIMITS) as lease:
        assert lease.available["tpm"] == 0


async def test_what_is_left_comes_from_the_write_that_granted(harness: Harness) -> None:
    limiter = harness.limiter()
    await family(limiter)
    await limiter.set_limits("org", [Limit.per_hour("rpm", 10)])
    async with limiter.acquire("key", "gpt-4", {"rpm": 4, "tpm": 1}) as lease:
        assert lease.available == {"rpm": 6, "tpm": 9_999}, "the least over the levels"
        assert lease.limits == tuple(LIMITS)
        assert not lease.degraded
        async with harness.limiter().acquire("key", "gpt-4", {"rpm": 5}):
            assert lease.available == {"rpm": 6, "tpm": 9_999}


async def test_consume_takes_more_or_nothing(harness: Harness) -> None:
    limiter = harness.limiter()
    await family(limiter)
    async with limiter.acquire("key", "gpt-4", {"rpm": 50}) as lease:
        await lease.consume(rpm=30, tpm=9_000)
        assert await left(limiter, "org") == {"rpm": 20, "tpm": 1_000}, "at once, at every level"
        with pytest.raises(RateLimitExceeded) as refused:
            await lease.consume(rpm=1, tpm=1_001)
        assert [status.limit_name for status in refused.value.violations] == ["tpm", "tpm"]
        assert lease.consumed == {"rpm": 80, "tpm": 9_000}
        await lease.consume({"rpm": 20})
    assert lease.consumed == {"rpm": 100, "tpm": 9_000}
    assert await left(limiter) == {"rpm": 0, "tpm": 1_000}


async def test_consume_of_a_bucket_that_nobody_else_writes_counts_as_of_now(harness: Harness) -> None:
    """What was refilled since the bucket was made is beyond its ceiling, so it is not there after the consume."""
    limiter, limits = harness.limiter(), [Limit.per_second("rpm", 100)]
    async with limiter.acquire("key", "gpt-4", {"rpm": 0}, limits) as lease:
        harness.clock.advance_ms(20)
        await lease.consume(rpm=1)
    assert await limiter.available("key", "gpt-4", limits) == {"rpm": 99}


async def test_an_exception_gives_everything_back_at_every_level(harness: Harness) -> None:
    limiter = harness.limiter()
    await family(limiter)
    boom = Boom()

    async def body() -> None:
        async with limiter.acquire("key", "gpt-4", {"rpm": 50, "tpm": 500}) as lease:
            await lease.consume(rpm=10)
            await lease.adjust(tpm=5_000)
            await lease.release(rpm=1)
            raise boom

    with pytest.raises(Boom) as caught:
        await body()
    assert caught.value is boom
    for entity in ("key", "org"):
        assert await left(limiter, entity) == {"rpm": 100, "tpm": 10_000}
        assert {state.total_consumed_milli for state in await limiter.get_buckets(entity)} == {0}


@pytest.mark.parametrize("trouble", ["unavailable", "poisoned"])
async def test_trouble_while_giving_back_does_not_hide_the_exception(
    harness: Harness, trouble: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = FaultyStore(harness.store())
    limiter = harness.limiter(store)

    async def body() -> None:
        async with limiter.acquire("key", "gpt-4", {"rpm": 50}, LIMITS):
            if trouble == "unavailable":
                store.inject(Fault.FAIL_BEFORE, verb="commit")
            else:
                key = keys.bucket((await limiter.repository.get_namespace("default")).id, "key", "gpt-4")
                await store.commit([Write(key, put={"b_rpm_tk": "lots"})])
            raise Boom

    with caplog.at_level(logging.WARNING, "zae_limiter"), pytest.raises(Boom):
        await body()
    assert len(caplog.records) == 1


@pytest.mark.parametrize("ending", ["normal", "raised", "not begun"])
async def test_a_lease_is_of_no_use_outside_its_block(harness: Harness, ending: str) -> None:
    limiter = harness.limiter()
    lease = limiter.acquire("key", "gpt-4", {"rpm": 5}, LIMITS)
    try:
        if ending != "not begun":
            async with lease:
                if ending == "raised":
                    raise Boom
    except Boom:
        pass
    for verb in (lease.consume, lease.settle, lease.adjust, lease.release):
        with pytest.raises(LeaseExpiredError):
            await verb(rpm=1)
    left = 95 if ending == "normal" else 100
    assert (await limiter.available("key", "gpt-4", LIMITS))["rpm"] == left


async def test_a_request_that_is_entered_twice_is_two_leases_or_an_error(harness: Harness) -> None:
    limiter = harness.limiter()
    request = limiter.acquire("key", "gpt-4", {"rpm": 5}, LIMITS)
    async with request as lease:
        await lease.adjust(rpm=10)
    assert lease.consumed == {"rpm": 15}
    expected = 80
    try:
        async with request as lease:
            assert lease.consumed == {"rpm": 5}
    except LeaseExpiredError:
        expected = 85
    assert (await limiter.available("key", "gpt-4", LIMITS))["rpm"] == expected


async def test_a_limit_that_changes_in_the_middle_does_not_lose_the_settlement(harness: Harness) -> None:
    limiter = harness.limiter()
    await family(limiter)
    async with limiter.acquire("key", "gpt-4", {"rpm": 10, "tpm": 100}) as lease:
        await limiter.set_system_defaults([Limit.per_day("rpm", 50)])
        async with limiter.acquire("key", "gpt-4", {"rpm": 1}):
            pass
        await lease.adjust(rpm=5, tpm=400)
    assert await left(limiter) == {"rpm": 44}, "50 after the cut, then 1 and 5"
    await limiter.set_system_defaults(LIMITS)
    assert (await left(limiter))["tpm"] == 9_500, "the limit that was away has not forgotten"


async def test_a_parent_that_changes_in_the_middle_leaves_the_settlement_with_the_old_one(harness: Harness) -> None:
    limiter = harness.limiter()
    await family(limiter)
    await limiter.create_entity("other")
    async with limiter.acquire("key", "gpt-4", {"rpm": 10}) as lease:
        await limiter.update_entity("key", parent_id="other")
        await lease.adjust(rpm=5)
    assert (await left(limiter, "org"))["rpm"] == 85
    assert (await left(limiter, "other"))["rpm"] == 100


@pytest.mark.parametrize(("delta", "expected"), [(7, 93), (-3, 100)])
async def test_a_bucket_that_went_in_the_middle(harness: Harness, delta: int, expected: int) -> None:
    limiter = harness.limiter()
    async with limiter.acquire("key", "gpt-4", {"rpm": 10}, LIMITS) as lease:
        await harness.limiter().reset_bucket("key", "gpt-4")
        await lease.adjust(rpm=delta)
    assert (await harness.limiter().available("key", "gpt-4", LIMITS))["rpm"] == expected


async def test_a_bucket_that_was_made_anew_under_other_limits_stays_readable(harness: Harness) -> None:
    limiter, other = harness.limiter(), harness.limiter()
    only_rpm = LIMITS[:1]
    async with limiter.acquire("key", "gpt-4", {"rpm": 10, "tpm": 100}, LIMITS) as lease:
        await other.reset_bucket("key", "gpt-4")
        async with other.acquire("key", "gpt-4", {"rpm": 1}, only_rpm):
            pass
        await lease.adjust(tpm=400)
    assert "rpm" in {state.limit_name for state in await other.get_buckets("key")}
    async with harness.limiter().acquire("key", "gpt-4", {"rpm": 1, "tpm": 1}, LIMITS) as again:
        assert again.available["rpm"] == 98


async def test_a_closed_generator_gives_its_tokens_back(harness: Harness) -> None:
    limiter = harness.limiter()
    for chunks in (0, 1, 3):
        stream = streamed(limiter)
        for _ in range(chunks):
            await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]  # it is a generator
        assert (await limiter.available("key", "gpt-4", LIMITS))["tpm"] == 10_000
    parts = [part async for part in streamed(limiter)]
    assert (await limiter.available("key", "gpt-4", LIMITS))["tpm"] == 10_000 - sum(parts)


async def streamed(limiter: RateLimiter) -> AsyncIterator[int]:
    async with limiter.acquire("key", "gpt-4", {"tpm": 1_000}, LIMITS) as lease:
        await lease.release(tpm=1_000)
        for part in (10, 20, 30, 40):
            await lease.adjust(tpm=part)
            yield part


def test_a_closed_blocking_generator_gives_its_tokens_back() -> None:
    limiter = SyncRateLimiter("memory://")

    def stream() -> Iterator[int]:
        with limiter.acquire("key", "gpt-4", {"tpm": 1_000}, LIMITS) as lease:
            for part in (10, 20):
                lease.adjust(tpm=part)
                yield part

    parts: Any = stream()
    next(parts)
    assert limiter.available("key", "gpt-4", LIMITS)["tpm"] == 9_000
    parts.close()
    assert limiter.available("key", "gpt-4", LIMITS)["tpm"] == 10_000


async def test_names_that_are_no_identifiers(harness: Harness) -> None:
    limiter = harness.limiter()
    limits = [Limit.per_hour(name, 100) for name in ("tokens.in", "tokens-out", "self", "ttl", "tk_tk")]
    async with limiter.acquire("key", "gpt-4", {limit.name: 1 for limit in limits}, limits) as lease:
        await lease.adjust({"tokens.in": 4, "self": 1}, ttl=2)
        await lease.consume({"tokens-out": 9})
        await lease.release({"tk_tk": 1})
    expected = {"tokens.in": 95, "tokens-out": 90, "self": 98, "ttl": 97, "tk_tk": 100}
    assert await limiter.available("key", "gpt-4", limits) == expected


async def test_leases_that_overlap_settle_each_their_own(harness: Harness) -> None:
    limiter = harness.limiter()
    async with limiter.acquire("key", "gpt-4", {"rpm": 10}, LIMITS) as outer:
        async with limiter.acquire("key", "gpt-4", {"rpm": 20}, LIMITS) as inner:
            await outer.adjust(rpm=1)
            await inner.release(rpm=15)
        assert (await limiter.available("key", "gpt-4", LIMITS))["rpm"] == 85
    assert (await limiter.available("key", "gpt-4", LIMITS))["rpm"] == 84


async def test_consumed_is_counted_once_under_cascade(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults(LIMITS[:1])
    await limiter.create_entity("org")
    await limiter.create_entity("key", parent_id="org", cascade=True)
    async with limiter.acquire("key", "gpt-4", {"rpm": 10}) as lease:
        await lease.consume(rpm=5)
        await lease.adjust(rpm=2)
        assert lease.consumed == {"rpm": 17}
    for who in ("key", "org"):
        assert await limiter.available(who, "gpt-4") == {"rpm": 83}


async def test_lease_consume_is_checked_by_the_store(harness: Harness) -> None:
    one, two = harness.limiter(), harness.limiter()
    await one.set_system_defaults(LIMITS[:1])
    async with one.acquire("key", "gpt-4", {"rpm": 10}) as mine, two.acquire("key", "gpt-4", {"rpm": 10}) as yours:
        await mine.consume(rpm=80)
        with pytest.raises(RateLimitExceeded):
            await yours.consume(rpm=80)
        assert yours.consumed == {"rpm": 10}
    assert await one.available("key", "gpt-4") == {"rpm": 0}


async def test_a_cancelled_body_gives_its_tokens_back(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults(LIMITS[:1])

    async def body() -> None:
        async with limiter.acquire("key", "gpt-4", {"rpm": 40}) as lease:
            await lease.consume(rpm=10)
            await lease.adjust(rpm=7)
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await body()
    assert await limiter.available("key", "gpt-4") == {"rpm": 100}


# Without a block: for middlewares, gateways and task queues.


async def test_a_lease_can_be_entered_and_ended_without_a_block(harness: Harness) -> None:
    limiter = harness.limiter()
    await family(limiter)
    lease = limiter.acquire("key", "gpt-4", {"rpm": 1, "tpm": 500})
    states = [lease.is_open]
    await lease.enter()
    states.append(lease.is_open)
    await lease.adjust(tpm=100)
    assert await left(limiter, "org") == {"rpm": 99, "tpm": 9_500}
    await lease.exit()
    states.append(lease.is_open)
    assert states == [False, True, False]
    assert await left(limiter, "org") == {"rpm": 99, "tpm": 9_400}
    with pytest.raises(LeaseExpiredError):
        await lease.enter()
    with pytest.raises(LeaseExpiredError):
        await lease.adjust(tpm=1)
    await lease.exit(give_back=True)
    assert await left(limiter, "org") == {"rpm": 99, "tpm": 9_400}, "it ends once"


async def test_a_lease_without_a_block_is_refused_and_given_back_like_one_with_a_block(harness: Harness) -> None:
    limiter = harness.limiter()
    await family(limiter)
    lease = limiter.acquire("key", "gpt-4", {"rpm": 60})
    await lease.enter()
    with pytest.raises(RateLimitExceeded):
        await limiter.acquire("key", "gpt-4", {"rpm": 60}).enter()
    await lease.adjust(rpm=30)
    await lease.exit(give_back=True, final=False)
    assert await left(limiter) == {"rpm": 100, "tpm": 10_000}
    with pytest.raises(LeaseExpiredError):
        await lease.adjust(rpm=1)
    await limiter.acquire("key", "gpt-4", {"rpm": 60}).exit(give_back=True)
    assert await left(limiter) == {"rpm": 100, "tpm": 10_000}, "a lease that was not entered has nothing to end"


@pytest.mark.parametrize(("give_back", "taken"), [(True, 0), (False, 60)])
async def test_a_lease_that_was_ended_inside_its_block_is_not_ended_again(
    harness: Harness, give_back: bool, taken: int
) -> None:
    limiter = harness.limiter()
    await family(limiter)
    async with limiter.acquire("key", "gpt-4", {"rpm": 20}):
        pass
    with pytest.raises(Boom):
        async with limiter.acquire("key", "gpt-4", {"rpm": 60}) as lease:
            await lease.exit(give_back=give_back)
            raise Boom
    assert await left(limiter, "org") == {"rpm": 80 - taken, "tpm": 10_000}


async def test_the_halves_that_never_wait_take_and_end_or_say_that_they_cannot(harness: Harness) -> None:
    limiter = harness.limiter()
    await family(limiter)
    async with limiter.acquire("key", "gpt-4", {"rpm": 1}):
        pass
    lease = limiter.acquire("key", "gpt-4", {"rpm": 10})
    if not lease.try_enter():
        assert not lease.is_open
        await lease.enter()
    assert await left(limiter) == {"rpm": 89, "tpm": 10_000}
    await lease.release(rpm=4)
    assert not lease.try_exit(), "there is something to write"
    assert lease.is_open
    await lease.exit()
    assert await left(limiter) == {"rpm": 93, "tpm": 10_000}
    assert lease.try_exit()
    plain = limiter.acquire("key", "gpt-4", {"rpm": 1})
    await plain.enter()
    assert plain.try_exit()
    assert not plain.is_open


@pytest.mark.parametrize("waits", [True, False], ids=["exit", "try_exit"])
async def test_an_exit_that_is_not_final_leaves_a_lease_to_correct(harness: Harness, waits: bool) -> None:
    store = FaultyStore(harness.store())
    limiter = harness.limiter(store)
    await family(limiter)
    lease = limiter.acquire("key", "gpt-4", {"tpm": 500})
    await lease.enter()
    if waits:
        await lease.adjust(tpm=0)
        await lease.exit(final=False)
    else:
        assert lease.try_exit(final=False)
    for late, spent in [(100, 600), (-250, 350), (-900, 0), (70, 70)]:
        await lease.adjust(tpm=late)
        assert await left(limiter, "org") == {"rpm": 100, "tpm": 10_000 - spent}, "each is a write of its own"
    await lease.release(tpm=70)
    assert await left(limiter) == {"rpm": 100, "tpm": 10_000}
    with pytest.raises(LeaseExpiredError):
        await lease.consume(tpm=1)
    with pytest.raises(LeaseExpiredError):
        lease.adjust_nowait(tpm=1)


async def test_a_check_raises_what_an_enter_would_and_takes_nothing(harness: Harness) -> None:
    limiter = harness.limiter()
    await family(limiter)
    lease = limiter.acquire("key", "gpt-4", {"rpm": 60})
    await lease.check()
    assert await left(limiter) == {"rpm": 100, "tpm": 10_000}
    await lease.enter()
    other = limiter.acquire("key", "gpt-4", {"rpm": 60})
    with pytest.raises(RateLimitExceeded) as refused:
        await other.check()
    assert [status.limit_name for status in refused.value.violations] == ["rpm"] * 2
    await lease.exit(give_back=True)
    await other.check()
    await other.enter()
    assert await left(limiter) == {"rpm": 40, "tpm": 10_000}


@pytest.mark.parametrize("policy", ["block", "allow"])
async def test_a_check_without_a_store_follows_the_policy(harness: Harness, policy: str) -> None:
    store = FaultyStore(harness.store())
    limiter = harness.limiter(store)
    store.inject(Fault.FAIL_BEFORE, times=1_000)
    lease = limiter.acquire("key", "gpt-4", {"rpm": 1}, LIMITS, policy)
    if policy == "block":
        with pytest.raises(RateLimiterUnavailable):
            await lease.check()
    else:
        await lease.check()
    assert lease.degraded is (policy == "allow")
    assert not lease.is_open
    assert lease.consumed == {}


async def test_a_charge_is_never_refused_and_needs_no_lease(harness: Harness) -> None:
    limiter = harness.limiter()
    await family(limiter)
    lease = limiter.acquire("key", "gpt-4", {"rpm": 60})
    await lease.charge()
    await lease.charge(2)
    for entity in ("key", "org"):
        assert await left(limiter, entity) == {"rpm": -80, "tpm": 10_000}
    assert not lease.is_open
    for times in (0, -1, "2", 1.5):
        with pytest.raises(ValidationError, match="times"):
            await lease.charge(times)  # type: ignore[arg-type]  # what is refused


async def test_a_lease_for_another_entity_has_the_same_cost_and_options(harness: Harness) -> None:
    limiter = harness.limiter()
    one = limiter.acquire("one", "gpt-4", {"rpm": 60}, LIMITS)
    async with one, one.for_entity("two") as two:
        assert type(two) is type(one)
        assert two.consumed == {"rpm": 60}
        assert {status.entity_id for status in two.statuses} == {"two"}
        with pytest.raises(RateLimitExceeded):
            await two.for_entity("one").enter()


def test_a_log_record_says_whose_lease_it_is(harness: Harness) -> None:
    limiter = harness.limiter()
    lease = limiter.acquire("key", "gpt-4", {"rpm": 1})
    store = limiter.repository.capabilities.name
    fields = {"zae_namespace": "default", "zae_backend": store, "zae_entity_id": "key", "zae_resource": "gpt-4"}
    assert lease.log_fields() == fields
    assert lease.log_fields(ValueError("?")) == {**fields, "zae_error_type": "ValueError"}


# Corrections from other threads.


def test_corrections_of_many_threads_all_count() -> None:
    async def work() -> dict[str, int]:
        limiter = RateLimiter("memory://")
        async with limiter.acquire("key", "gpt-4", {"tpm": 8_000}, LIMITS) as lease:

            def correct() -> None:
                for _ in range(200):
                    lease.adjust_nowait(tpm=-3)
                    lease.adjust_nowait({"tpm": 2, "rpm": 1})

            interval = sys.getswitchinterval()
            sys.setswitchinterval(1e-6)
            try:
                await asyncio.gather(*(asyncio.to_thread(correct) for _ in range(8)))
            finally:
                sys.setswitchinterval(interval)
        return await limiter.available("key", "gpt-4", limits=LIMITS)

    assert asyncio.run(work()) == {"rpm": 100 - 1_600, "tpm": 10_000 - 8_000 + 1_600}


async def test_a_correction_from_a_thread_is_written_at_the_end() -> None:
    limiter = RateLimiter("memory://")
    lease = limiter.acquire("key", "gpt-4", {"tpm": 500}, LIMITS)
    with pytest.raises(LeaseExpiredError):
        lease.adjust_nowait(tpm=1)
    await lease.enter()
    await asyncio.to_thread(lease.adjust_nowait, {"tpm": 1_230})
    with pytest.raises(ValidationError, match="no such limit"):
        await asyncio.to_thread(lease.adjust_nowait, {"tpd": 1})
    assert await limiter.available("key", "gpt-4", limits=LIMITS) == {"rpm": 100, "tpm": 9_500}
    await lease.exit()
    assert await limiter.available("key", "gpt-4", limits=LIMITS) == {"rpm": 100, "tpm": 8_270}
    with pytest.raises(LeaseExpiredError):
        await asyncio.to_thread(lease.adjust_nowait, {"tpm": 1})


def test_a_correction_is_never_lost_in_silence_while_the_lease_ends() -> None:
    """Whoever corrects while another thread ends the lease is either counted or told."""
    limiter = SyncRateLimiter(MemoryStore(ManualClock()))
    limit = [Limit.per_hour("tpm", 1_000_000)]
    sure = told = 0
    for _ in range(300):
        lease = limiter.acquire("key", "gpt-4", {"tpm": 1}, limit)
        lease.enter()
        outcomes: list[bool] = []

        def correct(lease: SyncLease = lease, outcomes: list[bool] = outcomes) -> None:
            try:
                lease.adjust_nowait(tpm=1)
                outcomes.append(True)
            except LeaseExpiredError:
                outcomes.append(False)

        thread = threading.Thread(target=correct)
        thread.start()
        if not lease.try_exit():
            lease.exit()
        thread.join()
        sure += outcomes == [True]
        told += outcomes == [False]
    spent = 1_000_000 - limiter.available("key", "gpt-4", limits=limit)["tpm"] - 300
    assert sure <= spent <= sure + told
