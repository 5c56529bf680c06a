"""The use case: what is granted, what it costs the store, and what happens when the store fails."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, strategies as st

from tests.kv.support import CLIENT, KEY, Mode, Watched
from zae_limiter import Limit, SystemClock, ValidationError
from zae_limiter.kv import (
    ClientIdentity,
    DictRepository,
    EnforceRateLimit,
    RateLimitPolicy,
    RateLimitRepository,
    RateLimitResult,
    SyncEnforceRateLimit,
    TokenBucket,
)
from zae_limiter.kv.state import decode, encode
from zae_limiter.testing import ManualClock

MINUTE_MS = 60_000


def test_ten_requests_and_no_more(mode: Mode, clock: ManualClock) -> None:
    check = mode.check(DictRepository(clock=clock), clock=clock)
    results = [check(CLIENT) for _ in range(11)]
    assert [result.allowed for result in results] == [True] * 10 + [False]
    assert [result.tokens_remaining for result in results] == [*range(9, -1, -1), 0]
    assert not any(result.degraded for result in results)
    assert {result.limit for result in results} == {10}


def test_what_a_result_says(mode: Mode, clock: ManualClock) -> None:
    policy = RateLimitPolicy.create(10, 20)
    check = mode.check(DictRepository(clock=clock), policy, clock)
    now_ms = clock.now_ms()
    assert check(CLIENT) == RateLimitResult(True, 19, 0, 20, now_ms + 6_000)
    clock.advance_ms(1_500)
    for _ in range(19):
        last = check(CLIENT)
    assert last == RateLimitResult(True, 0, 0, 20, now_ms + 20 * 6_000)
    assert check(CLIENT) == RateLimitResult(False, 0, 4_500, 20, now_ms + 6_000)


@pytest.mark.parametrize("past_the_minute_ms", [0, 1, 30_000, 59_999])
def test_one_a_minute_is_granted_a_minute_later_and_not_earlier(
    past_the_minute_ms: int, mode: Mode, clock: ManualClock
) -> None:
    """Wherever on the clock the minute begins, for a new client and for one whose bucket has been full for a while."""
    check = mode.check(DictRepository(clock=clock), RateLimitPolicy.create(1), clock)
    for _ in range(3):
        clock.set_ms((clock.now_ms() // MINUTE_MS + 2) * MINUTE_MS + past_the_minute_ms)
        assert check(CLIENT).allowed
        clock.advance_ms(1)
        assert check(CLIENT).retry_after_ms == MINUTE_MS - 1
        clock.advance_ms(MINUTE_MS - 2)
        assert not check(CLIENT).allowed
        clock.advance_ms(1)
        assert check(CLIENT).allowed


def test_clients_have_buckets_of_their_own(mode: Mode, clock: ManualClock) -> None:
    check = mode.check(DictRepository(clock=clock), RateLimitPolicy.create(1), clock)
    assert check(CLIENT).allowed
    assert not check(f"{CLIENT}:4711").allowed
    assert not check(ClientIdentity.from_ip(f"::ffff:{CLIENT}")).allowed
    assert check("203.0.113.8").allowed
    assert check("who knows").allowed
    assert not check(None).allowed


@pytest.mark.parametrize("rate", [1, 7, 10, 59, 60, 61, 600, 6_000])
def test_the_promised_moment(rate: int, mode: Mode, clock: ManualClock) -> None:
    check = mode.check(DictRepository(clock=clock), RateLimitPolicy.create(rate), clock)
    while (refusal := check(CLIENT)).allowed:
        pass
    for _ in range(20):
        assert refusal.reset_time_ms == clock.now_ms() + refusal.retry_after_ms
        clock.set_ms(refusal.reset_time_ms - 1)
        early = check(CLIENT)
        assert (early.allowed, early.retry_after_ms) == (False, 1)
        clock.advance_ms(1)
        while check(CLIENT).allowed:
            pass
        refusal = check(CLIENT)


class Texts:
    """Keeps the texts that others would store, for ever."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    async def get(self, key: str) -> TokenBucket | None:
        return decode(self.texts[key]) if key in self.texts else None

    async def save(self, key: str, bucket: TokenBucket) -> None:
        self.texts[key] = encode(bucket)


def keep_texts(clock: ManualClock, policy: RateLimitPolicy) -> RateLimitRepository:
    return Texts()


def keep_until_full(clock: ManualClock, policy: RateLimitPolicy) -> RateLimitRepository:
    """Forgets buckets as early as is allowed."""
    fill_ms = policy.calculate_refill_time(policy.bucket_capacity)
    return DictRepository(ttl_seconds=-(-fill_ms // 1000), clock=clock)


@pytest.mark.parametrize("repository", [keep_texts, keep_until_full])
@given(
    rate=st.integers(1, 30) | st.integers(1, 6_000),
    burst=st.integers(0, 50),
    steps=st.lists(st.integers(-20_000, 20_000) | st.integers(0, 400_000), min_size=1, max_size=60),
)
def test_never_more_than_the_policy_says(
    repository: Callable[[ManualClock, RateLimitPolicy], RateLimitRepository], rate: int, burst: int, steps: list[int]
) -> None:
    """Whatever the schedule, also where the clock steps back: only time that was never seen before makes tokens."""
    clock = ManualClock()
    policy = RateLimitPolicy.create(rate, rate + burst)
    check = SyncEnforceRateLimit(repository(clock, policy), policy, clock).check
    clock.advance_ms(steps[0])
    start_ms = latest_ms = clock.now_ms()
    granted = 0
    for step in (0, *steps[1:]):
        clock.advance_ms(step)
        latest_ms = max(latest_ms, clock.now_ms())
        granted += sum(check(CLIENT).allowed for _ in range(10))
        assert granted <= rate + burst + Fraction(rate, MINUTE_MS) * (latest_ms - start_ms)


@given(st.integers(1, 200), st.lists(st.integers(0, 2_000), min_size=1, max_size=60))
def test_no_less_either(rate: int, steps: list[int]) -> None:
    """A client that takes whatever it gets is given all that is made."""
    clock = ManualClock()
    check = SyncEnforceRateLimit(DictRepository(clock=clock), RateLimitPolicy.create(rate), clock).check
    granted = 0
    for step in [0, *steps]:
        clock.advance_ms(step)
        while check(CLIENT).allowed:
            granted += 1
    assert granted == rate + rate * sum(steps) // MINUTE_MS


def test_one_read_and_one_write(mode: Mode, clock: ManualClock) -> None:
    watched = Watched(clock)
    check = mode.check(watched, clock=clock)
    for _ in range(10):
        watched.calls.clear()
        assert check(CLIENT).allowed
        assert watched.calls == ["get", "save"]


def test_a_refusal_writes_nothing(mode: Mode, clock: ManualClock) -> None:
    watched = Watched(clock)
    check = mode.check(watched, RateLimitPolicy.create(1), clock)
    check(CLIENT)
    stored = mode.run(watched.inner.get(KEY))
    watched.calls.clear()
    assert [check(CLIENT).allowed for _ in range(3)] == [False] * 3
    assert watched.calls == ["get"] * 3
    assert mode.run(watched.inner.get(KEY)) == stored


def test_hammering_does_not_keep_a_bucket_alive(mode: Mode, clock: ManualClock) -> None:
    repository = DictRepository(ttl_seconds=60, clock=clock)
    check = mode.check(repository, RateLimitPolicy.create(1), clock)
    assert check(CLIENT).allowed
    for _ in range(59):
        clock.advance(1)
        assert not check(CLIENT).allowed
    clock.advance(1)
    assert mode.run(repository.get(KEY)) is None


@pytest.mark.parametrize("error", [OSError("down"), RuntimeError("odd"), TimeoutError(), KeyError("tokens")], ids=repr)
def test_a_read_that_fails_lets_through(
    error: Exception, mode: Mode, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    watched = Watched(clock, {"get": error})
    result = mode.check(watched, clock=clock)(CLIENT)
    assert result == RateLimitResult(True, 0, 0, 10, clock.now_ms(), degraded=True)
    assert watched.calls == ["get"]
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    details = {name: record.__dict__[name] for name in ("kv_key", "operation", "error_type")}
    assert details == {"kv_key": KEY, "operation": "reading", "error_type": type(error).__name__}
    assert CLIENT not in record.getMessage()


def test_a_write_that_fails_lets_through(mode: Mode, clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched(clock, {"save": OSError("KV PUT failed: 429 Too Many Requests")})
    result = mode.check(watched, clock=clock)(CLIENT)
    assert (result.allowed, result.degraded, result.tokens_remaining) == (True, True, 9)
    assert watched.calls == ["get", "save"]
    (record,) = caplog.records
    assert (record.levelname, record.__dict__["operation"]) == ("WARNING", "writing")
    assert "429 Too Many Requests" in record.getMessage()


def test_it_limits_again_when_the_store_is_back(mode: Mode, clock: ManualClock) -> None:
    watched = Watched(clock)
    check = mode.check(watched, RateLimitPolicy.create(1), clock)
    check(CLIENT)
    watched.failing["get"] = OSError("down")
    assert check(CLIENT).allowed
    watched.failing.clear()
    assert not check(CLIENT).allowed


def test_a_refusal_is_nothing_to_worry_about(mode: Mode, clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "zae_limiter.kv")
    check = mode.check(DictRepository(clock=clock), RateLimitPolicy.create(1), clock)
    check(CLIENT)
    assert not caplog.records
    refusal = check(CLIENT)
    (record,) = caplog.records
    assert record.levelname == "DEBUG"
    assert (record.__dict__["kv_key"], record.__dict__["retry_after_ms"]) == (KEY, refusal.retry_after_ms)


@pytest.mark.parametrize("verb", ["get", "save"])
async def test_cancellation_is_not_swallowed(verb: str, clock: ManualClock) -> None:
    watched = Watched(clock, {verb: asyncio.CancelledError()})
    with pytest.raises(asyncio.CancelledError):
        await EnforceRateLimit(watched, clock=clock).check(CLIENT)


def test_the_time_of_the_decision_is_after_the_read(clock: ManualClock) -> None:
    class Slow(DictRepository):
        async def get(self, key: str) -> TokenBucket | None:
            clock.advance(6)
            return await super().get(key)

    repository = Slow(clock=clock)
    Mode("blocking").run(repository.save(KEY, TokenBucket(0, clock.now_ms(), 10)))
    assert SyncEnforceRateLimit(repository, clock=clock).check(CLIENT).allowed


def test_defaults() -> None:
    work = SyncEnforceRateLimit(DictRepository())
    assert work.policy == RateLimitPolicy.standard_ip_policy()
    assert isinstance(work.clock, SystemClock)
    assert isinstance(work.repository, DictRepository)
    assert work.check(CLIENT).allowed


def test_buckets_must_live_until_they_are_full() -> None:
    slow = RateLimitPolicy.create(1, 6)
    with pytest.raises(ValidationError, match=r"ttl_seconds = 300.*at least 360"):
        EnforceRateLimit(DictRepository(), slow)
    assert EnforceRateLimit(DictRepository(ttl_seconds=360), slow).policy == slow


def test_blocking_code_is_told_when_it_has_an_async_repository() -> None:
    class Async(DictRepository):
        blocking = False

    with pytest.raises(ValidationError, match="repository = 'Async': serves async code only"):
        SyncEnforceRateLimit(Async())


def test_closing_closes_the_repository(mode: Mode) -> None:
    class Closing(DictRepository):
        closed = 0

        async def close(self) -> None:
            self.closed += 1

    repository: Any = Closing()

    async def used() -> None:
        async with EnforceRateLimit(repository) as work:
            assert (await work.check(CLIENT)).allowed

    if mode.blocking:
        with SyncEnforceRateLimit(repository) as work:
            assert work.check(CLIENT).allowed
    else:
        mode.run(used())
    assert repository.closed == 1
    mode.run(EnforceRateLimit(DictRepository()).close())


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        (Limit.concurrent("parallel", 5), "is a concurrency limit.*use RateLimiter"),
        (Limit.per_minute("rpm", 5), "must be a RateLimitPolicy"),
        (60, "must be a RateLimitPolicy"),
    ],
)
@pytest.mark.parametrize("kind", [EnforceRateLimit, SyncEnforceRateLimit])
def test_what_is_no_policy_is_refused(kind: Any, policy: Any, reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        kind(DictRepository(), policy)
