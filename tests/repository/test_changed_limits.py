"""From which instant changed limits count: the old ones until the change, the new ones since, whoever looks when."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import TypeAlias

import pytest

from tests.support.acquiring import granted, take
from zae_limiter import Limit, RateLimiter, RateLimitExceeded, ScheduleEntry
from zae_limiter.testing import Harness

Look: TypeAlias = Callable[[RateLimiter], Awaitable[object]]

FAST, SLOW = Limit.per_second("t", 1_000), Limit("t", 1_000, 1, 1)
EARLIER = Limit("t", 1_000, 100, 1)
"""Fills slowly enough that a bucket under it as a default outlives a test of a minute."""
DAILY, MONTHLY = (Limit.quota("t", 1_000, every=every) for every in ("day", "month"))

LOOKS: dict[str, Look] = {
    "nobody": lambda limiter: limiter.get_system_limits(),
    "available": lambda limiter: limiter.available("key", "gpt-4"),
    "check_availability": lambda limiter: limiter.check_availability("key", "gpt-4", {"t": 1}),
    "get_status": lambda limiter: limiter.get_status("key", "gpt-4"),
    "acquire": lambda limiter: granted(limiter, {"t": 1_000}),
}


SetLimits: TypeAlias = Callable[[RateLimiter, list[Limit]], Awaitable[object]]


async def set_own(limiter: RateLimiter, limits: list[Limit]) -> None:
    await limiter.set_limits("key", limits)


async def left(limiter: RateLimiter) -> int:
    return (await limiter.available("key", "gpt-4"))["t"]


async def sell_out(limiter: RateLimiter) -> int:
    """Take the largest amount that is granted at once, found by halving, and return it."""
    taken = 0
    for power in range(10, -1, -1):
        if await granted(limiter, {"t": 2**power}):
            taken += 2**power
    return taken


def set_clock(harness: Harness, text: str) -> None:
    moment = datetime.fromisoformat(text).replace(tzinfo=UTC)
    harness.clock.advance_ms(round(moment.timestamp() * 1000) - harness.clock.now_ms())


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
async def test_a_cut_rate_counts_from_the_change_whoever_looks(harness: Harness, look: Look) -> None:
    limiter = harness.limiter()
    await limiter.set_limits("key", [FAST])
    await take(limiter, {"t": 1_000})
    await limiter.set_limits("key", [SLOW])
    await look(limiter)
    harness.clock.advance(60)
    assert await left(limiter) == await left(harness.limiter()) == 60
    assert await sell_out(limiter) == 60


async def test_the_capacity_of_a_resource_is_that_of_the_limits_in_force(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults([EARLIER])
    for who in ("key", "other"):
        async with limiter.acquire(who, "gpt-4", {"t": 1_000}):
            pass
    await limiter.set_system_defaults([SLOW])
    await limiter.set_limits("other", [Limit("t", 2_000, 2, 1)])
    harness.clock.advance(60)
    async with limiter.acquire("given", "gpt-4", {"t": 1}, [EARLIER]):
        pass
    for asked in (limiter, harness.limiter()):
        found = await asked.get_resource_capacity("gpt-4", "t")
        left = {each.entity_id: (each.capacity, each.available) for each in found.entities}
        assert left == {"key": (1_000, 60), "other": (2_000, 120), "given": (1_000, 999)}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
async def test_so_does_a_cut_default(harness: Harness, look: Look) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults([EARLIER])
    await take(limiter, {"t": 1_000})
    await limiter.set_system_defaults([SLOW])
    await look(limiter)
    harness.clock.advance(60)
    assert await left(limiter) == await left(harness.limiter()) == 60
    assert await sell_out(limiter) == 60


ELSE = Limit.per_minute("rpm", 100)
"""A limit beside the one that is cut."""
LATER = {
    "another limit": [SLOW, Limit.per_minute("rpm", 200)],
    "one limit more": [SLOW, ELSE, Limit.per_minute("new", 10)],
    "one limit less": [SLOW],
    "alerts": [Limit("t", 1_000, 1, 1, alerts=(0.8,)), ELSE],
    "nothing": [SLOW, ELSE],
}


@pytest.mark.parametrize("own", [True, False], ids=["own", "default"])
@pytest.mark.parametrize("later", LATER.values(), ids=LATER)
async def test_what_is_changed_beside_a_cut_limit_does_not_move_its_instant(
    harness: Harness, later: list[Limit], *, own: bool
) -> None:
    limiter = harness.limiter()
    set_limits: SetLimits = set_own if own else RateLimiter.set_system_defaults
    await set_limits(limiter, [EARLIER, ELSE])
    await take(limiter, {"t": 1_000})
    await set_limits(limiter, [SLOW, ELSE])
    harness.clock.advance(60)
    await set_limits(limiter, later)
    assert await left(limiter) == await left(harness.limiter()) == 60
    assert await sell_out(limiter) == 60


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
async def test_a_quota_that_becomes_monthly_stays_used_up_overnight(harness: Harness, look: Look) -> None:
    set_clock(harness, "2026-06-10T12:00")
    limiter = harness.limiter()
    await limiter.set_limits("key", [DAILY])
    await take(limiter, {"t": 1_000})
    await limiter.set_limits("key", [MONTHLY])
    await look(limiter)
    set_clock(harness, "2026-06-11T12:00")
    assert await left(limiter) == await left(harness.limiter()) == 0
    with pytest.raises(RateLimitExceeded) as refused:
        await take(limiter, {"t": 1})
    assert refused.value.retry_after_seconds == (19 * 24 + 12) * 3_600, "on the first of July"
    set_clock(harness, "2026-07-01T00:00")
    assert await sell_out(limiter) == 1_000


async def test_a_raised_rate_counts_from_the_change(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults([SLOW])
    await take(limiter, {"t": 1_000})
    harness.clock.advance(100)
    await limiter.set_system_defaults([Limit("t", 2_000, 10, 1)])
    harness.clock.advance(50)
    assert await left(limiter) == 600, "100 at the old rate, 500 at the new one"
    harness.clock.advance(1_000)
    assert await left(limiter) == 2_000


async def test_what_was_full_at_a_raise_refills_from_there(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults([SLOW])
    await take(limiter, {"t": 1})
    harness.clock.advance(3_000)
    await limiter.set_system_defaults([Limit("t", 2_000, 1, 1)])
    harness.clock.advance(10)
    assert await left(limiter) == 1_010
    assert await sell_out(limiter) == 1_010


async def test_the_record_that_gave_way_decides_with_the_one_that_is_in_force(harness: Harness) -> None:
    """Deleting the entity's limits is the change, however old the limits are that are in force afterwards."""
    limiter = harness.limiter()
    await limiter.set_resource_defaults("gpt-4", [SLOW])
    await limiter.set_limits("key", [FAST], "gpt-4")
    await take(limiter, {"t": 1_000})
    harness.clock.advance_ms(100)
    await limiter.delete_limits("key", "gpt-4")
    harness.clock.advance(60)
    assert await left(limiter) == 160, "100 ms at the old rate, a minute at the new one"


async def test_a_record_that_does_not_decide_changes_nothing(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_limits("key", [FAST])
    await take(limiter, {"t": 1_000})
    await limiter.set_limits("key", [SLOW])
    harness.clock.advance(30)
    await limiter.set_system_defaults([FAST])
    await limiter.bypass_entity("key")
    await limiter.enable_entity("key")
    await limiter.set_limits("key", [SLOW], cascade=False)
    harness.clock.advance(30)
    assert await left(limiter) == 60, "the limits in force have not changed for a minute"


async def test_what_was_charged_since_the_change_is_not_counted_again(harness: Harness) -> None:
    """A process that had not heard of the change has used the old rate until its last write."""
    informed, late = harness.limiter(), harness.limiter()
    await informed.set_system_defaults([EARLIER])
    await take(late, {"t": 1_000})
    await informed.set_system_defaults([SLOW])
    harness.clock.advance(10)
    await take(late, {"t": 1_000})
    harness.clock.advance(60)
    assert await left(informed) == 60


async def test_limits_given_with_a_call_count_from_the_call(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults([SLOW])
    await take(limiter, {"t": 1_000})
    harness.clock.advance(60)
    assert await limiter.available("key", "gpt-4", limits=[FAST]) == {"t": 60}
    async with limiter.acquire("key", "gpt-4", {"t": 10}, limits=[FAST]):
        pass
    assert await left(limiter) == 50
    harness.clock.advance(10)
    assert await left(limiter) == 60, "the stored limits count from the last call with others"


async def test_a_change_and_the_borders_of_a_schedule_after_it(harness: Harness) -> None:
    """Old limits until the change, then what the new schedule puts in force at each instant."""
    set_clock(harness, "2026-06-10T12:00")
    limiter = harness.limiter()
    await limiter.set_limits("key", [FAST])
    await take(limiter, {"t": 1_000})
    evening = ScheduleEntry("* 18-19 * * *", refill_amount=360)
    await limiter.set_limits("key", [Limit.per_hour("t", 60, burst=1_000).with_schedule([evening])])
    set_clock(harness, "2026-06-10T19:00")
    assert await left(limiter) == 6 * 60 + 360


async def test_what_is_owed_after_a_change_is_no_more_than_that(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_system_defaults([EARLIER])
    async with limiter.acquire("key", "gpt-4", {"t": 1_000}) as lease:
        await limiter.set_system_defaults([SLOW])
        harness.clock.advance(60)
        await lease.adjust(t=10)
    assert await left(limiter) >= 50


@pytest.mark.parametrize("set_limits", [RateLimiter.set_system_defaults, set_own], ids=["defaults", "own"])
async def test_a_debt_does_not_bring_a_cut_rate_back(harness: Harness, set_limits: SetLimits) -> None:
    """It is paid under the limits in force, which count from their change on."""
    limiter = harness.limiter()
    await set_limits(limiter, [EARLIER])
    async with limiter.acquire("key", "gpt-4", {"t": 1_000}) as lease:
        await set_limits(limiter, [SLOW])
        harness.clock.advance(10)
        await lease.adjust(t=1)
    assert await left(limiter) == await left(harness.limiter()) == 9
    harness.clock.advance(10)
    assert await sell_out(limiter) == 19


async def test_a_debt_of_another_process_does_not_either(harness: Harness) -> None:
    limiter, other = harness.limiter(), harness.limiter()
    await limiter.set_limits("key", [FAST])
    async with other.acquire("key", "gpt-4", {"t": 1_000}) as lease:
        await limiter.set_limits("key", [SLOW])
        harness.clock.advance(10)
        await lease.adjust(t=1)
    assert await left(other) == await left(limiter) == 9


async def test_a_debt_is_paid_under_the_numbers_that_a_schedule_puts_in_force(harness: Harness) -> None:
    set_clock(harness, "2026-06-10T21:59:59")
    night = ScheduleEntry("* 22-23 * * *", refill_amount=1)
    limiter = harness.limiter()
    await limiter.set_limits("key", [Limit("t", 1_000, 1_000, 1, schedule=(night,))])
    async with limiter.acquire("key", "gpt-4", {"t": 1_000}) as lease:
        harness.clock.advance(0.5)
        async with limiter.acquire("key", "gpt-4", {"t": 500}):
            harness.clock.advance(10.5)
        await lease.adjust(t=1)
    assert await left(limiter) == 509


async def test_a_debt_of_an_entity_that_is_switched_off_is_settled(harness: Harness) -> None:
    limiter = harness.limiter()
    await limiter.set_limits("key", [SLOW])
    async with limiter.acquire("key", "gpt-4", {"t": 900}) as lease:
        await limiter.disable_entity("key")
        await lease.adjust(t=50)
    await limiter.enable_entity("key")
    assert await left(limiter) == 50
