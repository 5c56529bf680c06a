"""Quotas whose window begins with its first use: one write each, and equal to windows that are kept by hand."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from tests.laws.mutants import HARNESSES
from tests.support.acquiring import granted, take
from tests.support.charges import create
from zae_limiter import Limit, RateLimitExceeded, ValidationError
from zae_limiter.bucket import calculate_available
from zae_limiter.core.calendar import Calendar
from zae_limiter.records import bucket, keys
from zae_limiter.records.algebra import apply_write
from zae_limiter.records.level import BucketLimits, token_limits_for
from zae_limiter.records.splitting import split
from zae_limiter.testing import FaultyStore, Harness
from zae_limiter.web.fields import Fields

HOUR_MS = 3_600_000
QUOTA = Limit.quota("session", 1_000, reset_after=timedelta(hours=5))
RATE = Limit.per_minute("rpm", 600)


async def test_the_first_use_of_a_window_is_one_write_as_all_others_are(harness: Harness) -> None:
    store = FaultyStore(harness.store())
    limiter = harness.limiter(store)
    await limiter.set_system_defaults([QUOTA, RATE])
    await take(limiter, {"rpm": 1})
    for _ in range(3):
        for names in (("session", "rpm"), ("rpm",), ("session",)):
            await limiter.available("key", "gpt-4")  # config is read anew after a minute
            before = store.calls.copy()
            await take(limiter, dict.fromkeys(names, 1))
            assert (store.calls - before).total() <= 1, names
            harness.clock.advance_ms(60_000)
        harness.clock.advance_ms(6 * HOUR_MS)


async def test_a_bucket_that_is_idle_moves_only_for_those_who_name_the_limit(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults([QUOTA, RATE])
    await take(limiter, {"rpm": 1})
    (rate, _) = await limiter.get_buckets("key")
    for _ in range(5):
        harness.clock.advance_ms(HOUR_MS)
        await take(limiter, {"rpm": 1})
    (other, session) = await limiter.get_buckets("key")
    assert other.last_refill_ms == rate.last_refill_ms
    assert session.window_start_ms is None
    await take(limiter, {"rpm": 1, "session": 0})
    now_ms = harness.clock.now_ms()
    (_, session) = await limiter.get_buckets("key")
    assert (session.window_start_ms, session.last_refill_ms) == (now_ms, now_ms)
    await take(limiter, {"session": 900})
    (_, session) = await limiter.get_buckets("key")
    assert calculate_available(session, now_ms + 5 * HOUR_MS - 1) == 100
    assert calculate_available(session, now_ms + 5 * HOUR_MS) == 1_000


async def test_a_refusal_begins_no_window(harness: Harness) -> None:
    """What was owed is paid by whole windows that pass; whoever does not get anything does not begin one."""
    limiter = harness.limiter()
    await limiter.set_system_defaults([QUOTA])
    async with limiter.acquire("key", "gpt-4", {"session": 1_000}) as lease:
        await lease.adjust(session=1_500)
    for hours, wait in ((0, 10), (7, 3), (1, 2)):
        harness.clock.advance_ms(hours * HOUR_MS)
        with pytest.raises(RateLimitExceeded) as refused:
            await take(limiter, {"session": 500})
        assert refused.value.retry_after_seconds == wait * 3_600
    harness.clock.advance_ms(2 * HOUR_MS - 1)
    assert not await granted(limiter, {"session": 500})
    harness.clock.advance_ms(1)
    assert await granted(limiter, {"session": 500})


async def test_statuses_and_headers_tell_the_window_of_the_bucket(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults([QUOTA, RATE])
    (_, idle) = await limiter.get_status("key", "gpt-4")
    assert (idle.resets_at, idle.available) == (None, 1_000)
    start = harness.clock.now_ms()
    async with limiter.acquire("key", "gpt-4", {"session": 10, "rpm": 1}) as lease:
        pass
    end = datetime.fromtimestamp((start + 5 * HOUR_MS) / 1000, UTC)
    assert [status.resets_at for status in lease.statuses] == [None, end]
    harness.clock.advance_ms(HOUR_MS)
    (_, used) = await limiter.get_status("key", "gpt-4")
    assert (used.resets_at, used.available) == (end, 990)
    (_, view), _ = Fields("ietf").view_statuses([tuple(getattr(used, name) for name in used.__match_args__[:11])] * 2)
    assert (view.full_in_ms, view.limit.refill_period_seconds) == (4 * HOUR_MS, 5 * 3_600)
    harness.clock.advance_ms(4 * HOUR_MS)
    (_, over) = await limiter.get_status("key", "gpt-4")
    assert (over.resets_at, over.available) == (None, 1_000)


async def test_a_limit_may_become_another_kind_and_back(harness: Harness) -> None:
    limiter = harness.limiter()
    daily = Limit.quota("session", 1_000)
    kinds = (
        QUOTA,
        daily,
        Limit.per_hour("session", 1_000),
        QUOTA,
        Limit.quota("session", 1_000, reset_after=timedelta(1)),
    )
    for kind in kinds:
        await limiter.set_system_defaults([kind])
        await take(limiter, {"session": 100})
        (state,) = await limiter.get_buckets("key")
        assert (state.window_start_ms is not None) == (kind in (kinds[0], kinds[-1]))
        assert state.calendar == (None if kind.calendar is None else kind.calendar.text)
    assert await limiter.available("key", "gpt-4") == {"session": 500}


def test_both_halves_of_a_split_bucket_keep_the_window() -> None:
    limits, key, noon = (QUOTA,), keys.bucket("ns", "key", "gpt-4"), 20_000 * 24 * HOUR_MS
    level = BucketLimits(
        key, "ns", "key", "gpt-4", limits, token_limits_for(limits), "system", 1, partition_writes=1000
    )
    image = apply_write(None, create(level, {"session": 300_001}, noon))
    assert image is not None
    later = noon + HOUR_MS
    old, new = (
        apply_write(before, write) for before, write in zip((image, None), split(level, image, later), strict=True)
    )
    assert old is not None
    assert new is not None
    shards = [(level.at(0, 2), old), (level.at(1, 2), new)]
    for hours, held in ((1, 699_999), (5, 1_000_000)):
        for instant, expected in ((noon + hours * HOUR_MS - 1, 699_999), (noon + hours * HOUR_MS, held)):
            (balances,) = bucket.reading(shards, instant).balances.values()
            assert sum(shard.level(instant) for shard in balances) == expected


class Books:
    """The limits of one bucket, by hand: when each window began, and what was left of it then."""

    def __init__(self, limits: tuple[Limit, ...]) -> None:
        self.limits = {limit.name: limit for limit in limits}
        self.start: dict[str, int] = {}
        self.held = {limit.name: limit.capacity for limit in limits}

    def left(self, name: str, now_ms: int) -> int:
        limit = self.limits[name]
        passed = (now_ms - self.start.get(name, now_ms)) // self.length(name)
        return min(limit.capacity, self.held[name] + passed * limit.refill_amount)

    def length(self, name: str) -> int:
        calendar = self.limits[name].calendar
        assert calendar is not None
        return calendar.period_ms

    def use(self, cost: dict[str, int], now_ms: int) -> bool:
        if any(self.left(name, now_ms) < need for name, need in cost.items()):
            return False
        for name, need in cost.items():
            if name not in self.start or now_ms >= self.start[name] + self.length(name):
                self.held[name] = self.left(name, now_ms)
                self.start[name] = now_ms
            self.held[name] -= need
        return True


LIMITS = st.builds(
    lambda lengths, amounts, rollovers: tuple(
        Limit.quota(name, amount, reset_after=timedelta(milliseconds=length), rollover=rollover)
        for name, length, amount, rollover in zip("ab", lengths, amounts, rollovers, strict=True)
    ),
    st.tuples(*[st.sampled_from([1, 7, 1_000, 86_400_000])] * 2),
    st.tuples(*[st.integers(1, 50)] * 2),
    st.tuples(*[st.sampled_from([0, 0, 30])] * 2),
)
STEP = st.tuples(
    st.sampled_from([0, 0, 1, 2, 6, 7, 999, 1_000, 86_400_000, 10**9]),
    st.dictionaries(st.sampled_from("ab"), st.integers(0, 40), min_size=1),
    st.sampled_from([0, 0, 0, 60]),
    st.integers(0, 1),
)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(HARNESSES)), LIMITS, st.lists(STEP, max_size=25))
def test_equal_to_windows_that_are_kept_by_hand(where: str, limits: tuple[Limit, ...], steps: list[Any]) -> None:
    """Two clients, each of which knows the bucket as it last saw it: one of them wins the race for the first use."""
    harness = HARNESSES[where]()

    async def play() -> None:
        clients = (harness.limiter(refusal_ttl=0), harness.limiter(refusal_ttl=0))
        await clients[0].set_system_defaults(limits)
        books = Books(limits)
        for pause_ms, cost, more, who in steps:
            harness.clock.advance_ms(pause_ms)
            now_ms, fits = harness.clock.now_ms(), False
            try:
                async with clients[who].acquire("key", "gpt-4", cost) as lease:
                    fits = True
                    if more:
                        await lease.adjust(dict.fromkeys(cost, more))
            except RateLimitExceeded as refused:
                waits = [status.retry_after_seconds for status in refused.violations]
                assert all(wait is None or wait > 0 for wait in waits)
            assert books.use(cost, now_ms) == fits
            if fits and more:
                books.held |= {name: books.held[name] - more for name in cost}
            left = await clients[1 - who].available("key", "gpt-4")
            assert left == {name: books.left(name, now_ms) for name in books.limits}

    harness.run(play())


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"reset_after": 5}, "reset_after"),
        ({"reset_after": timedelta(0)}, "reset_after"),
        ({"reset_after": timedelta(microseconds=1500)}, "reset_after"),
        ({"reset_after": timedelta(days=4000)}, "reset_after"),
        ({"reset_after": timedelta(1), "tz": "Europe/Berlin"}, "tz"),
        ({"reset_after": timedelta(1), "every": "hour"}, "every"),
        ({"reset_after": timedelta(1), "at": "09:00"}, "at"),
        ({"reset_after": timedelta(1), "on": 5}, "on"),
        ({"reset_after": timedelta(1), "cron": "0 9 * * *"}, "cron"),
    ],
)
def test_what_cannot_be_said(more: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Limit.quota("t", 1, **more)
    assert caught.value.field == field


def test_its_text() -> None:
    assert QUOTA.calendar is not None
    assert QUOTA.calendar.text == "18000000ms@first-use"
    assert QUOTA.calendar.begin(5).text == QUOTA.calendar.text
    assert Calendar.parse("5h@first-use") == QUOTA.calendar
    assert Limit.from_dict(QUOTA.to_dict()) == QUOTA
    with pytest.raises(ValidationError, match="first-use"):
        Calendar.parse("day@first-use")
