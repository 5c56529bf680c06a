"""Prefetch as callers see it: what is drawn, held, granted, corrected and returned."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from tests.laws.toys import Toy
from zae_limiter import (
    Limit,
    RateLimiter,
    RateLimiterUnavailable,
    RateLimitExceeded,
    Repository,
    SyncRateLimiter,
    SyncRepository,
    ValidationError,
)
from zae_limiter.testing import Fault, FaultyStore, Harness, ManualClock

if TYPE_CHECKING:
    from collections.abc import Mapping

RPS = Limit.per_second("rps", 1_000)
KEY, MODEL = "key", "gpt-4"


class Count(FaultyStore):
    """A store that counts its calls, and can fail."""

    @property
    def commits(self) -> int:
        return self.calls["commit"]


class Client:
    """A blocking limiter with prefetch on a store of its own, and a clock that is moved by hand."""

    def __init__(self, *limits: Limit, prefetch: float = 0.5, store: Toy | None = None, **options: Any) -> None:
        self.clock = ManualClock()
        self.inner = store or Toy(self.clock)
        self.clock = self.inner.clock  # type: ignore[assignment]  # of another client of the same store
        self.store = Count(self.inner)
        self.limiter = SyncRateLimiter(SyncRepository(self.store), prefetch=prefetch, **options)
        if limits:
            self.limiter.set_system_defaults(limits)

    def join_organisation(self, *limits: Limit) -> None:
        """Put the key below an organisation with limits of its own."""
        self.limiter.create_entity("org")
        self.limiter.create_entity(KEY, parent_id="org", cascade=True)
        if limits:
            self.limiter.set_limits("org", limits)

    def take(self, cost: Mapping[str, int] | None = None, entity: str = KEY, **options: Any) -> Any:
        lease = self.limiter.acquire(entity, MODEL, cost or {"rps": 1}, **options)
        lease.enter()
        return lease

    def heat(self, entity: str = KEY, cost: Mapping[str, int] | None = None, **options: Any) -> None:
        """Ask so often that tokens are drawn in advance."""
        for _ in range(30):
            self.take(cost, entity, **options).exit()
            self.clock.advance_ms(10)

    @property
    def held(self) -> int:
        return self.limiter.repository.get_backend_stats().prefetch.held


@pytest.mark.parametrize(
    ("prefetch", "reason"), [(-1, "prefetch"), (61, "at most 60"), ("1", "prefetch"), (float("nan"), "prefetch")]
)
def test_bad_values_are_told(prefetch: Any, reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        RateLimiter("memory://", prefetch=prefetch)


def test_it_needs_writes_without_reads() -> None:
    with pytest.raises(ValidationError, match="speculative_writes"):
        RateLimiter("memory://", speculative_writes=False, prefetch=0.5)
    with pytest.raises(ValidationError, match="exact"):
        SyncRateLimiter("memory://").acquire(KEY, MODEL, {"rps": 1}, exact=1)  # type: ignore[arg-type]  # the point


def test_a_hot_key_needs_few_calls_and_usage_is_exact_after_the_close() -> None:
    client = Client(RPS)
    client.heat()
    before = client.store.commits
    for _ in range(200):
        client.take().exit()
        client.clock.advance_ms(5)
    assert client.store.commits - before <= 8
    assert client.held > 0
    client.limiter.close()
    (state,) = SyncRepository(client.inner).get_buckets(KEY)
    assert state.total_consumed_milli == 230_000
    assert client.held == 0


def test_exact_goes_around_it() -> None:
    client = Client(RPS)
    client.heat()
    before, held = client.store.commits, client.held
    for _ in range(10):
        client.take(exact=True).exit()
    assert (client.store.commits - before, client.held) == (10, held)


def test_corrections_are_gathered_and_the_lease_says_when_they_are_written() -> None:
    client = Client(RPS, Limit.per_minute("tpm", 1_000_000))
    cost = {"rps": 1, "tpm": 500}
    client.heat(cost=cost)
    lease = client.take(cost)
    before = client.store.commits
    lease.adjust(tpm=-100)
    lease.exit()
    assert client.store.commits == before
    assert not lease.settled
    client.limiter.flush()
    assert lease.settled
    states = {state.limit_name: state.total_consumed_milli for state in SyncRepository(client.inner).get_buckets(KEY)}
    assert states == {"rps": 31_000, "tpm": (31 * 500 - 100) * 1_000}


def test_an_exception_gives_everything_back() -> None:
    client = Client(Limit.per_hour("rps", 1_000))
    client.heat()
    client.limiter.flush()
    before = client.limiter.available(KEY, MODEL)
    client.heat()
    with pytest.raises(ZeroDivisionError), client.limiter.acquire(KEY, MODEL, {"rps": 7}):
        raise ZeroDivisionError
    assert client.limiter.available(KEY, MODEL)["rps"] == before["rps"] - 30, "also before it is written"
    client.limiter.flush()
    assert SyncRateLimiter(SyncRepository(client.inner)).available(KEY, MODEL)["rps"] == before["rps"] - 30


def test_debt_refuses_the_same_process_as_soon_as_nothing_is_held() -> None:
    client = Client(Limit.per_hour("rps", 100))
    client.heat()
    client.limiter.flush()
    lease = client.take()
    lease.adjust(rps=500)
    lease.exit()
    with pytest.raises(RateLimitExceeded):
        for _ in range(50):
            client.take()


@pytest.mark.parametrize(
    "quota",
    [Limit.quota("tokens", 10_000, every="hour"), Limit.quota("tokens", 10_000, reset_after=timedelta(hours=5))],
    ids=["calendar", "first use"],
)
@pytest.mark.parametrize("cost", [{"tokens": 1}, {"rps": 1, "tokens": 1}, {"rps": 1}], ids=repr)
def test_nothing_is_drawn_in_advance_beside_a_quota(quota: Limit, cost: Mapping[str, int]) -> None:
    """Neither is its settlement put off: all of that would be lost until the window ends if the process were killed."""
    client = Client(RPS, quota)
    client.heat(cost=cost)
    before = client.store.commits
    lease = client.take(cost)
    assert (client.held, client.store.commits - before) == (0, 1)
    lease.adjust(tokens=5)
    lease.exit()
    assert lease.settled
    assert SyncRateLimiter(SyncRepository(client.inner)).available(KEY, MODEL)["tokens"] == 10_000 - 5 - 31 * cost.get(
        "tokens", 0
    )


def test_a_floor_is_left_untouched() -> None:
    client = Client(Limit.per_hour("rps", 100, floors={"batch": 0.5}))
    granted = 0
    for _ in range(100):
        client.clock.advance_ms(5)
        try:
            client.take(priority="batch").exit()
            granted += 1
        except RateLimitExceeded:
            break
    client.limiter.flush()
    assert granted == 50
    assert client.limiter.available(KEY, MODEL) == {"rps": 50}


def test_keys_below_one_organisation_share_its_tokens() -> None:
    client = Client(RPS)
    client.limiter.create_entity("org")
    keys = [f"key-{number}" for number in range(60)]
    for key in keys:
        client.limiter.create_entity(key, parent_id="org", cascade=True)
        client.take(entity=key).exit()
        client.clock.advance_ms(10)
    before = client.store.commits
    for key in keys:
        client.take(entity=key).exit()
        client.clock.advance_ms(10)
    assert client.store.commits - before <= 60 + 8, "each cold key is written, the organisation now and then"
    client.limiter.close()
    states = SyncRepository(client.inner).get_buckets("org")
    assert [state.total_consumed_milli for state in states] == [120_000]


def test_a_level_that_refuses_leaves_the_others_as_they_were_and_tells_all() -> None:
    client = Client(RPS)
    client.join_organisation(Limit.per_hour("rps", 31))
    client.heat()
    client.limiter.flush()
    available = client.limiter.available("org", MODEL), client.limiter.available(KEY, MODEL)
    client.take().exit()
    with pytest.raises(RateLimitExceeded) as refused:
        client.take()
    assert [(status.entity_id, status.exceeded) for status in refused.value.statuses] == [(KEY, False), ("org", True)]
    client.limiter.flush()
    assert available[0] == {"rps": 1}
    assert client.limiter.available("org", MODEL) == {"rps": 0}


def test_a_changed_limit_is_in_force_at_once_where_it_is_changed() -> None:
    client = Client(RPS)
    client.heat()
    assert client.held > 0
    client.limiter.set_limits(KEY, [Limit.per_hour("rps", 5)])
    with pytest.raises(RateLimitExceeded):
        for _ in range(6):
            client.take()


def test_what_is_held_is_granted_while_the_store_is_down() -> None:
    client = Client(RPS)
    client.heat()
    client.store.inject(Fault.FAIL_BEFORE, verb="commit", times=1_000)
    granted = 0
    with pytest.raises(RateLimiterUnavailable):
        for _ in range(100):
            client.take().exit()
            granted += 1
    assert granted >= 2


def test_what_was_sent_and_not_answered_is_lost_and_told() -> None:
    client = Client(RPS)
    client.heat()
    lease = client.take()
    lease.release(rps=1)
    lease.exit()
    client.store.inject(Fault.FAIL_AFTER, verb="commit")
    client.limiter.flush()
    assert lease.settled
    assert client.limiter.repository.get_backend_stats().prefetch.lost >= 1
    client.store.heal()
    client.take().exit()


def test_a_lease_that_is_open_at_the_close_is_settled() -> None:
    client = Client(RPS)
    client.heat()
    lease = client.take()
    client.limiter.close()
    lease.adjust(rps=+4)
    lease.exit()
    assert lease.settled
    (state,) = SyncRepository(client.inner).get_buckets(KEY)
    assert state.total_consumed_milli == 35_000


def test_other_clients_get_what_is_given_back() -> None:
    client = Client(Limit.per_hour("rps", 1_000))
    client.heat()
    other = SyncRateLimiter(SyncRepository(client.inner))
    assert other.available(KEY, MODEL)["rps"] < 970
    client.limiter.flush()
    assert other.available(KEY, MODEL)["rps"] == 970


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes do not fork here")
def test_a_child_process_does_not_use_what_its_parent_holds() -> None:
    client = Client(RPS)
    client.heat()
    assert client.held > 0
    child = os.fork()
    if child == 0:
        os._exit(client.held)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert client.held > 0


def test_tokens_outlive_the_loop_that_drew_them() -> None:
    clock = ManualClock()
    toy = Toy(clock)
    limiter = RateLimiter(Repository(Count(toy)), prefetch=0.5)

    async def ask(times: int) -> None:
        for _ in range(times):
            async with limiter.acquire(KEY, MODEL, {"rps": 1}):
                await asyncio.sleep(0)
            clock.advance_ms(5)

    async def begin() -> None:
        await limiter.set_system_defaults([RPS])
        await ask(60)

    asyncio.run(begin())
    asyncio.run(ask(40))
    asyncio.run(limiter.close())
    gc.collect()
    (state,) = SyncRepository(toy).get_buckets(KEY)
    assert state.total_consumed_milli == 100_000


class Slow(Count):
    """A store whose commits take a few turns of the event loop."""

    async def commit(self, *args: Any, **options: Any) -> Any:
        for _ in range(3):
            await asyncio.sleep(0)
        return await super().commit(*args, **options)


@pytest.mark.parametrize("turns", range(6))
def test_what_is_being_drawn_at_the_close_goes_back(turns: int) -> None:
    async def main() -> None:
        clock = ManualClock()
        toy, granted = Toy(clock), 0
        limiter = RateLimiter(Repository(Slow(toy)), prefetch=0.5)
        await limiter.set_system_defaults([RPS])
        assert limiter._prefetcher is not None
        while not any(bucket.is_drawing for bucket in limiter._prefetcher.active()):
            async with limiter.acquire(KEY, MODEL, {"rps": 1}):
                granted += 1
            clock.advance_ms(10 if granted < 30 else 1)
        for _ in range(turns):
            await asyncio.sleep(0)
        await limiter.close()
        (state,) = await Repository(toy).get_buckets(KEY)
        assert state.total_consumed_milli == 1_000 * granted

    asyncio.run(main())


@pytest.mark.parametrize("when", range(1, 6))
def test_a_cancelled_caller_leaves_nothing_behind(when: int) -> None:
    """Cancelled at each of its awaits, while tokens are drawn for it."""

    async def main() -> int:
        harness = Harness(lambda clock, blocking: Toy(clock), blocking=False, prefetch=0.5)
        toy = Toy(harness.clock)
        limiter = RateLimiter(Repository(Slow(toy)), prefetch=0.5)
        await limiter.set_system_defaults([RPS])

        async def call() -> None:
            async with limiter.acquire(KEY, MODEL, {"rps": 1}):
                await asyncio.sleep(0)

        for _ in range(30):
            await call()
            harness.clock.advance_ms(10)
        await limiter.flush()
        task = asyncio.create_task(call())
        for _ in range(when):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        done = not task.cancelled()
        await limiter.close()
        (state,) = await Repository(toy).get_buckets(KEY)
        return state.total_consumed_milli - 30_000 - 1_000 * done

    assert asyncio.run(main()) == 0


def test_a_program_that_ends_without_closing_ends() -> None:
    program = """
from zae_limiter import Limit, SyncRateLimiter
from tests.laws.toys import Toy
from zae_limiter import SyncRepository, SystemClock
limiter = SyncRateLimiter(SyncRepository(Toy(SystemClock())), prefetch=0.5)
limiter.set_system_defaults([Limit.per_second("rps", 1_000)])
import time
begun = time.monotonic()
while limiter.repository.get_backend_stats().prefetch.held == 0 and time.monotonic() < begun + 20:
    with limiter.acquire("key", "gpt-4", {"rps": 1}):
        time.sleep(0.005)
print("held", limiter.repository.get_backend_stats().prefetch.held > 0)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert (ended.stdout, ended.stderr, ended.returncode) == ("held True\n", "", 0)


def test_statistics_say_what_was_spared() -> None:
    client = Client(RPS)
    client.heat()
    for _ in range(100):
        client.take().exit()
    stats = client.limiter.repository.get_backend_stats().prefetch
    assert stats.granted >= 100
    assert 0 < stats.spared_writes < stats.granted
    client.limiter.flush()
    assert client.limiter.repository.get_backend_stats().prefetch.returned > 0


def test_thresholds_are_announced_by_draws_in_advance_and_by_debts_that_they_settle() -> None:
    told: list[tuple[float, int]] = []
    limit = Limit.per_second("rps", 100, burst=1_000, alerts=(0.25, 0.5, 0.9))
    client = Client(limit, on_alert=lambda alert: told.append((alert.threshold, alert.used)))
    for _ in range(80):
        with client.limiter.acquire(KEY, MODEL, {"rps": 10}):
            client.clock.advance_ms(10)
    assert [threshold for threshold, _ in told] == [0.25, 0.5]
    with client.limiter.acquire(KEY, MODEL, {"rps": 10}) as lease:
        lease.settle(rps=400)
    client.limiter.flush()
    assert [threshold for threshold, _ in told] == [0.25, 0.5, 0.9]
    assert client.limiter.repository.get_backend_stats().prefetch.granted, "tokens were drawn in advance"
