"""Clocks that are wrong: ahead, behind, stepping back or dead. None of them mints tokens or starves anybody."""

from __future__ import annotations

import contextlib
import logging
import random
from pathlib import Path

import pytest

from tests.support.acquiring import granted
from zae_limiter import Limit, RateLimitExceeded, SyncRateLimiter
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


async def test_the_limits_of_a_bucket_share_its_time(harness: Harness) -> None:
    """A return by a client whose clock is behind counts as of the newest instant that any limit was taken from.

    At that instant the bucket is full, as if nothing had been taken; before it the refill until then is still to come.
    """
    limits = [Limit.per_second("rpm", 10, burst=100), Limit.per_second("tpm", 10, burst=100)]
    ahead, limiter = harness.limiter(), harness.limiter()
    assert await granted(ahead, {"rpm": 0}, limits=limits)
    harness.clock.advance(1)
    assert await granted(ahead, {"rpm": 1}, limits=limits)
    harness.clock.advance(-1)
    with pytest.raises(ZeroDivisionError):
        async with limiter.acquire("key", "gpt-4", {"tpm": 50}, limits):
            raise ZeroDivisionError
    assert await limiter.available("key", "gpt-4", limits) == {"rpm": 89, "tpm": 90}
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
