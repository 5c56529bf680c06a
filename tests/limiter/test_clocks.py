"""Clocks that are wrong: ahead, behind, stepping back or dead. None of them mints tokens or starves anybody."""

from __future__ import annotations

import contextlib
import logging
import random
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.support.acquiring import granted, take
from tests.support.deadlines import ends_within
from zae_limiter import Limit, RateLimitExceeded, ScheduleEntry, SyncRateLimiter, ValidationError
from zae_limiter.stores.sqlite import SqliteStore
from zae_limiter.testing import Harness, ManualClock

RPM = [Limit.per_hour("rpm", 100)]
MINUTELY = [Limit.per_minute("rpm", 100)]


async def test_clients_with_skewed_clocks_issue_nothing_twice(harness: Harness) -> None:
    chance, limits = random.Random(1), [Limit.per_second("rpm", 10, burst=50)]
    store = harness.store()
    skewed = [ManualClock(harness.clock.now_ms() + skew) for skew in (-5_000, 0, 5_000)]
    clients = [harness.limiter(harness.repository(store, clock=clock), refusal_ttl=0) for clock in skewed]
    passed = 0
    for _ in range(400):
        step = chance.randrange(50)
        harness.clock.advance_ms(step)
        for clock in skewed:
            clock.advance_ms(step)
        passed += await granted(chance.choice(clients), {"rpm": 1}, limits=limits)
    spent_ms = harness.clock.now_ms() - ManualClock().now_ms()
    assert passed <= 50 + spent_ms * 10 // 1000
    assert passed >= 50 + spent_ms * 10 // 1000 - 1, "and nobody starves"


def test_processes_whose_clocks_differ_gain_no_more_than_the_difference(tmp_path: Path) -> None:
    chance, limits = random.Random(2), [Limit.per_second("rpm", 10, burst=50)]
    clocks = [ManualClock(ManualClock().now_ms() + skew) for skew in (-5_000, 5_000)]
    stores = [SqliteStore(tmp_path / "limits.db", clock) for clock in clocks]
    clients = [SyncRateLimiter(store, refusal_ttl=0) for store in stores]
    passed = spent_ms = 0
    for _ in range(600):
        step = chance.randrange(50)
        spent_ms += step
        for clock in clocks:
            clock.advance_ms(step)
        with (
            contextlib.suppress(RateLimitExceeded),
            chance.choice(clients).acquire("key", "gpt-4", {"rpm": 1}, limits),
        ):
            passed += 1
    assert passed <= 50 + (spent_ms + 10_000) * 10 // 1000
    for client in clients:
        client.close()


async def test_a_clock_that_steps_back_grants_nothing_and_drains_nothing_for_good(harness: Harness) -> None:
    limiter = harness.limiter()
    assert await granted(limiter, {"rpm": 60}, limits=RPM)
    harness.clock.advance(-3_600)
    for _ in range(3):
        assert not await granted(limiter, {"rpm": 41}, limits=RPM)
        assert not await granted(harness.limiter(), {"rpm": 41}, limits=RPM)
    harness.clock.advance(3_600)
    assert await limiter.available("key", "gpt-4", RPM) == {"rpm": 40}


async def test_a_clock_that_steps_back_does_not_take_away_what_is_left(harness: Harness) -> None:
    limiter = harness.limiter()
    assert await granted(limiter, {"rpm": 60}, limits=RPM)
    harness.clock.advance(-3_600)
    assert await granted(limiter, {"rpm": 40}, limits=RPM)
    assert not await granted(limiter, {"rpm": 1}, limits=RPM)


@pytest.mark.parametrize("lived_through", [True, False], ids=["lived through it", "fresh"])
@pytest.mark.parametrize("refusal_ttl", [0, 1])
async def test_retry_after_is_exact_when_the_clock_was_set_forward_and_back(
    harness: Harness, lived_through: bool, refusal_ttl: int
) -> None:
    """What was refilled while it was ahead has been spent: nothing is there until it has caught up, and both say so."""
    limiter = harness.limiter(refusal_ttl=refusal_ttl)
    await limiter.set_limits("key", [Limit.per_second("rpm", 1, burst=10)])
    assert await granted(limiter, {"rpm": 10})
    harness.clock.advance(300)
    assert await granted(limiter, {"rpm": 10})
    harness.clock.advance(-277)
    limiter = limiter if lived_through else harness.limiter(refusal_ttl=refusal_ttl)
    for waited in (0, 100):
        harness.clock.advance(waited)
        with pytest.raises(RateLimitExceeded) as refused:
            await take(limiter, {"rpm": 1})
        assert refused.value.retry_after_seconds == 278 - waited
        assert await limiter.time_until_available("key", "gpt-4", {"rpm": 1}) == 278 - waited
        asked = await limiter.check_availability("key", "gpt-4", {"rpm": 1})
        assert (asked.allowed, asked.retry_after_seconds) == (False, 278 - waited)
    harness.clock.advance_ms(177_999)
    assert not await granted(limiter, {"rpm": 1})
    harness.clock.advance_ms(1)
    assert await granted(limiter, {"rpm": 1})


async def test_a_bucket_made_anew_while_the_clock_is_set_back_is_full_for_all(harness: Harness) -> None:
    limiter, other = harness.limiter(), harness.limiter()
    await other.set_limits("key", [Limit.per_second("rpm", 1, burst=10)])
    harness.clock.advance(300)
    assert await granted(limiter, {"rpm": 10})
    harness.clock.advance(-300)
    assert not await granted(limiter, {"rpm": 1})
    await other.reset_bucket("key", "gpt-4")
    assert await granted(limiter, {"rpm": 1}), "what was seen before the clock was set back says nothing of now"
    assert await other.available("key", "gpt-4") == {"rpm": 9}


SLOT = [Limit.concurrent("parallel", 1, ttl=60)]


@pytest.mark.parametrize("lived_through", [True, False], ids=["lived through it", "fresh"])
async def test_a_dead_holder_s_slot_is_back_after_its_time_to_live_though_the_clock_was_set_back(
    harness: Harness, lived_through: bool
) -> None:
    """An hour forward, a slot is taken, an hour back: it must not be missing for an hour."""
    dead, limiter = harness.limiter(), harness.limiter()
    await limiter.set_limits("key", SLOT)
    harness.clock.advance(3_600)
    lease = dead.acquire("key", "gpt-4", {})
    await lease.enter()  # and never renewed
    if lived_through:
        assert not await granted(limiter, {})
    harness.clock.advance(-3_600)
    with pytest.raises(RateLimitExceeded) as refused:
        await take(limiter, {})
    assert refused.value.retry_after_seconds == 60
    harness.clock.advance_ms(59_999)
    assert not await granted(limiter, {})
    harness.clock.advance_ms(1)
    assert await granted(limiter, {})


async def test_a_living_holder_keeps_its_slot_though_the_clock_was_set_back(harness: Harness) -> None:
    holder, other = harness.limiter(), harness.limiter()
    await other.set_limits("key", SLOT)
    async with holder.acquire("key", "gpt-4", {}) as lease:
        harness.clock.advance(30)
        await holder.renew_slots()
        harness.clock.advance(-3_600)
        for _ in range(12):
            assert not await granted(other, {})
            await holder.renew_slots()
            assert not await granted(other, {})
            harness.clock.advance(20)
        assert not lease.lost
    assert await granted(other, {})


async def test_a_slot_with_a_longer_time_to_live_than_the_limit_states_by_now_is_left_alone(harness: Harness) -> None:
    holder, other = harness.limiter(), harness.limiter()
    await other.set_limits("key", [Limit.concurrent("parallel", 1, ttl=3_600)])
    async with holder.acquire("key", "gpt-4", {}):
        await other.set_limits("key", SLOT)
        for _ in range(10):
            assert not await granted(other, {})
            harness.clock.advance(60)


async def test_a_client_whose_clock_is_behind_returns_all_that_it_took(harness: Harness) -> None:
    """A bucket that is full by the newest instant that it knows may still have room by the clock of this client."""
    limits = [Limit.per_second("rpm", 10, burst=100), Limit.per_second("tpm", 10, burst=100)]
    ahead, limiter = harness.limiter(), harness.limiter()
    assert await granted(ahead, {"rpm": 0}, limits=limits)
    harness.clock.advance(1)
    assert await granted(ahead, {"rpm": 1}, limits=limits)
    harness.clock.advance(-1)
    with pytest.raises(ZeroDivisionError):
        async with limiter.acquire("key", "gpt-4", {"tpm": 50}, limits):
            raise ZeroDivisionError
    assert await limiter.available("key", "gpt-4", limits) == {"rpm": 89, "tpm": 100}
    harness.clock.advance(1)
    assert await limiter.available("key", "gpt-4", limits) == {"rpm": 99, "tpm": 100}


async def test_time_that_a_bucket_has_seen_is_not_counted_at_another_rate(harness: Harness) -> None:
    """Not of any of its limits, also if only one was taken from, and by nobody whose clock is behind."""
    limits = [Limit.per_second("rpm", 10, burst=100), Limit.per_second("tpm", 10, burst=100)]
    ahead, limiter = harness.limiter(), harness.limiter()
    assert await granted(ahead, {"rpm": 100, "tpm": 100}, limits=limits)
    harness.clock.advance(1)
    assert await granted(ahead, {"rpm": 1}, limits=limits)
    harness.clock.advance(-1)
    faster = [Limit.per_second("rpm", 20, burst=100), Limit.per_second("tpm", 20, burst=100)]
    assert await granted(limiter, {"tpm": 10}, limits=faster), "as of the newest instant, which has made 10"
    assert not await granted(limiter, {"tpm": 1}, limits=faster)
    harness.clock.advance(1)
    assert await limiter.available("key", "gpt-4", faster) == {"rpm": 9, "tpm": 0}


async def test_a_dead_clock_is_an_error_and_not_another_clock(harness: Harness) -> None:
    class Mortal(ManualClock):
        dead = False

        def now_ms(self) -> int:
            if self.dead:
                raise OSError("no clock")
            return super().now_ms()

    clock = Mortal()
    limiter = harness.limiter(harness.store(clock), on_unavailable="allow")
    assert await granted(limiter, {"rpm": 1}, limits=RPM)
    clock.dead = True
    with pytest.raises(OSError, match="no clock"):
        await granted(limiter, {"rpm": 1}, limits=RPM)
    clock.dead = False
    assert await limiter.available("key", "gpt-4", RPM) == {"rpm": 99}


async def test_a_clock_60_s_ahead_mints_nothing_and_starves_nobody(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    ahead = ManualClock(harness.clock.now_ms() + 60_000)
    store = harness.store()
    right = harness.limiter(harness.repository(store, clock=harness.clock))
    with caplog.at_level(logging.WARNING, "zae_limiter"):
        skewed = harness.limiter(harness.repository(store, clock=ahead))
    assert right.repository.clock_skew_ms == 0
    assert skewed.repository.clock_skew_ms == 60_000
    assert (await skewed.repository.status()).clock_skew_ms == 60_000
    assert "+60000 ms" in caplog.text
    assert await granted(right, {"rpm": 100}, limits=MINUTELY)
    assert not await granted(skewed, {"rpm": 1}, limits=MINUTELY), "a second bucket"
    harness.clock.advance_ms(600)
    ahead.advance_ms(600)
    assert await granted(skewed, {"rpm": 1}, limits=MINUTELY)
    harness.clock.advance_ms(600)
    ahead.advance_ms(600)
    assert await granted(right, {"rpm": 1}, limits=MINUTELY), "starved"


async def test_a_clock_that_steps_back_across_a_border_while_limits_change_is_no_contention(harness: Harness) -> None:
    """What does not fit as of the bucket's newest instant is refused, although more would fit before the border."""
    evening = round(datetime(2026, 6, 10, 22, 0, tzinfo=UTC).timestamp() * 1000)
    harness.clock.set_ms(evening + 400)
    limiter = harness.limiter()
    await limiter.set_limits("key", [Limit("a", 50, 10, 1), Limit("b", 100, 100, 1)])
    await take(limiter, {"a": 1, "b": 25})
    harness.clock.advance(-9)
    night = ScheduleEntry("* 22-23 * * *", capacity=5)
    await limiter.set_limits("key", [Limit("a", 5, 100, 1), Limit("b", 100, 100, 1, schedule=(night,))])
    assert not await granted(limiter, {"a": 0, "b": 25})
    assert await granted(limiter, {"a": 0, "b": 5})


@pytest.mark.parametrize("seed", range(8))
async def test_no_history_of_clocks_and_limits_makes_contention(harness: Harness, seed: int) -> None:
    chance = random.Random(seed)
    night = ScheduleEntry("* 22-23 * * *", capacity=5, refill_amount=1)
    choices = [
        Limit("a", capacity, rate, 1, schedule=schedule, floors=floors)
        for capacity in (5, 100)
        for rate in (1, 100)
        for schedule in ((), (night,))
        for floors in ((), (("batch", 0.5),))
    ]
    choices.append(Limit.quota("a", 50, every="hour", floors={"batch": 0.5}))
    harness.clock.set_ms(round(datetime(2026, 6, 10, 21, 59, 55, tzinfo=UTC).timestamp() * 1000))
    limiters = [harness.limiter(), harness.limiter()]
    await limiters[0].set_limits("key", [Limit("a", 100, 10, 1, floors=(("batch", 0.5),))])
    for _ in range(60):
        limiter, action = chance.choice(limiters), chance.random()
        if action < 0.2:
            await limiter.set_limits("key", [chance.choice(choices)])
        elif action < 0.5:
            harness.clock.advance_ms(chance.choice([-9_000, -60, 1, 49, 60, 500, 9_000]))
        else:
            with contextlib.suppress(ValidationError):  # floors may have gone
                cost, priority = {"a": chance.choice([0, 1, 5, 25, 50, 100])}, chance.choice([None, "batch"])
                await granted(limiter, cost, priority=priority)


async def test_a_new_key_is_served_while_the_clock_is_behind_its_project(harness: Harness) -> None:
    """Its bucket is decided as of the instant at which the project was seen, and so is the age of its config."""
    repository = harness.repository()
    limiter = harness.limiter(repository)
    await repository.set_system_defaults(RPM)
    await repository.create_entity("project")
    await repository.create_entity("key", parent_id="project", cascade=True)
    await limiter.available("key", "gpt-4")  # the config of the key is read
    harness.clock.advance(5)
    assert await granted(limiter, {"rpm": 1}, "project")
    harness.clock.advance(-4.5)
    with ends_within(20):
        assert await granted(limiter, {"rpm": 1}, "key")


async def test_several_resources_are_taken_after_the_clock_was_set_back(harness: Harness) -> None:
    """One bucket was seen later than now, the other has to be made: both are decided as of one instant."""
    limiter = harness.limiter()
    await limiter.set_system_defaults(MINUTELY)
    harness.clock.advance_ms(10_000)
    await take(limiter, {"rpm": 1}, "key")
    await limiter.available("key", "search")
    harness.clock.advance_ms(5_000)
    await take(limiter, {"rpm": 1}, "key")
    harness.clock.advance_ms(-4_500)
    with ends_within(20):
        async with limiter.acquire("key", "gpt-4", {"rpm": 1}, also={"search": {"rpm": 1}}) as lease:
            assert lease.resource("search").consumed == {"rpm": 1}
