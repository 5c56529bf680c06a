"""Quotas, soft limits, floors and switches: in one bucket with rates, against books that are kept by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from random import Random
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from tests.conformance.expect import raises, same, true
from tests.conformance.room import beside, grants, new_limiter
from zae_limiter.core.errors import CapacityExceeded, RateLimitExceeded, ResourceDisabled
from zae_limiter.core.limit import Limit
from zae_limiter.testing.conformance.check import check, checks_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from zae_limiter.limiter.limiter import RateLimiter
    from zae_limiter.testing.harness import Harness

BERLIN = ZoneInfo("Europe/Berlin")
QUOTA = Limit.quota("tpd", 1_000, every="day", tz="Europe/Berlin", floors={"batch": 0.3})
RATE = Limit.per_minute("rpm", 120, burst=60, floors={"batch": 0.5})
SOFT = Limit.per_hour("tph", 500, soft=True)
HOUR_MS = 3_600_000


@dataclass
class Books:
    """What each limit holds: windows one by one, rates in whole millitokens."""

    now_ms: int
    held: dict[str, int] = field(
        default_factory=lambda: {limit.name: limit.capacity * 1000 for limit in (QUOTA, RATE, SOFT)}
    )

    def move_to(self, now_ms: int) -> None:
        """Refill to an instant."""
        day, last = (datetime.fromtimestamp(ms / 1000, BERLIN).date() for ms in (self.now_ms, now_ms))
        while day < last:
            day += timedelta(1)
            self.held["tpd"] = min(QUOTA.capacity * 1000, self.held["tpd"] + QUOTA.refill_amount * 1000)
        for limit in (RATE, SOFT):
            late, early = (ms * limit.refill_amount // limit.refill_period_seconds for ms in (now_ms, self.now_ms))
            self.held[limit.name] = min(limit.capacity * 1000, self.held[limit.name] + late - early)
        self.now_ms = now_ms

    def fits(self, cost: dict[str, int], priority: str | None) -> bool:
        """Return whether the limits that refuse have as much, and their floors beside it."""
        return all(
            self.held[limit.name] - cost[limit.name] * 1000 >= limit.capacity * 1000 * limit.floor(priority)
            for limit in (QUOTA, RATE)
            if limit.name in cost
        )

    def left(self) -> dict[str, int]:
        """Return what is left in whole tokens."""
        return {name: milli // 1000 for name, milli in self.held.items()}


def _set_clock(harness: Harness, local: str, zone: ZoneInfo = BERLIN) -> None:
    moment = datetime.fromisoformat(local).replace(tzinfo=zone)
    harness.clock.advance_ms(round(moment.timestamp() * 1000) - harness.clock.now_ms())


@check
async def all_kinds_in_one_bucket(harness: Harness) -> None:
    """A week with a change of the clocks: debt crosses midnight, idle days do not pile up, floors stay."""
    _set_clock(harness, "2026-03-26T21:00")
    limiter, chance = await new_limiter(harness), Random(7)
    await limiter.set_system_defaults([QUOTA, RATE, SOFT])
    books = Books(harness.clock.now_ms())
    for _ in range(120):
        harness.clock.advance_ms(chance.choice((0, 1, 700, 45_000, 600_000, 3 * HOUR_MS, 26 * HOUR_MS)))
        books.move_to(harness.clock.now_ms())
        cost = {"tpd": chance.randrange(400), "rpm": chance.randrange(1, 30), "tph": chance.randrange(300)}
        for name in chance.sample(sorted(cost), chance.randrange(2)):
            del cost[name]
        priority, more = chance.choice((None, None, "batch")), chance.choice((0, 0, 0, 900))
        fits = books.fits(cost, priority)
        try:
            async with limiter.acquire("key", "gpt-4", cost, priority=priority) as lease:
                true(fits, f"granted {cost} of {books.left()}")
                if more and "tpd" in cost:
                    await lease.adjust(tpd=more)
                    books.held["tpd"] -= more * 1000
            for name, tokens in cost.items():
                books.held[name] -= tokens * 1000
        except RateLimitExceeded:
            true(not fits, f"refused {cost} of {books.left()}")
        same(await limiter.available("key", "gpt-4"), books.left(), "what is left is in the books")


@check
async def a_quota_is_back_when_its_window_begins(harness: Harness) -> None:
    """To the millisecond, on a day of 25 hours too; debt is paid by the allowances that follow."""
    for zone, evening in (("Europe/Berlin", "2026-10-24T18:00"), ("America/Los_Angeles", "2026-10-31T18:00")):
        _set_clock(harness, evening, ZoneInfo(zone))
        limiter = await new_limiter(harness)
        await limiter.set_system_defaults([Limit.quota("tpd", 1_000, tz=zone)])
        await limiter.reset_bucket("key", "gpt-4")
        true(await grants(limiter, {"tpd": 1_000}), "all of it at once")
        for hours in (6, 25):
            with raises(RateLimitExceeded, "nothing is left") as refused:
                async with limiter.acquire("key", "gpt-4", {"tpd": 1}):
                    pass
            same(refused.error.retry_after_seconds, hours * 3600.0, "the promised moment is midnight")
            harness.clock.advance_ms(hours * HOUR_MS - 1)
            true(not await grants(limiter, {"tpd": 1}), "not before midnight")
            harness.clock.advance_ms(1)
            async with limiter.acquire("key", "gpt-4", {"tpd": 1_000}) as lease:
                await lease.adjust(tpd=0 if hours == 6 else 1_500)
        with raises(RateLimitExceeded, "it is in debt") as refused:
            async with limiter.acquire("key", "gpt-4", {"tpd": 600}):
                pass
        same(refused.error.retry_after_seconds, 3 * 24 * 3600.0, "-500, then 500, then 1,000")


@check
async def a_floor_is_left_to_others(harness: Harness) -> None:
    """A request of a priority is granted if its floor is left, to the millitoken; never if it cannot be."""
    limiter = await new_limiter(harness)
    await limiter.set_system_defaults([RATE])
    true(await grants(limiter, {"rpm": 30}, "batch"), "down to the floor")
    true(not await grants(limiter, {"rpm": 1}, "batch"), "and no further")
    true(not await grants(limiter, {"rpm": 31}), "others have what is there")
    true(await grants(limiter, {"rpm": 10}), "and no less")
    with raises(RateLimitExceeded, "11 are missing") as refused:
        async with limiter.acquire("key", "gpt-4", {"rpm": 1}, priority="batch"):
            pass
    same(refused.error.retry_after_seconds, 5.5, "the promised moment counts the floor")
    harness.clock.advance_ms(5_499)
    true(not await grants(limiter, {"rpm": 1}, "batch"), "one millisecond early")
    harness.clock.advance_ms(1)
    true(await grants(limiter, {"rpm": 1}, "batch"), "and to the millisecond")
    for seconds in (3_600, 0):
        harness.clock.advance(seconds)
        with raises(CapacityExceeded, "with its floor it is more than the capacity") as never:
            async with limiter.acquire("key", "gpt-4", {"rpm": 31}, priority="batch"):
                pass
        same(never.error.statuses[0].retry_after_seconds, None, "there is nothing to wait for")


async def _ask_in_a_batch(limiter: RateLimiter, tokens: int) -> None:
    async with limiter.acquire("key", "gpt-4", {"rpm": tokens}, priority="batch"):
        pass


@check
async def never_and_not_yet_with_a_floor(harness: Harness) -> None:
    """Of a bucket that is new, known, not known, or under other limits: more than it holds with the floor, or not."""
    for ttl in (1, 0):
        limiter = await new_limiter(harness, refusal_ttl=ttl)
        await limiter.set_limits("key", [RATE])
        for step, (never, later) in enumerate([(31, 0), (31, 30), (31, 30), (16, 15), (0, 30)]):
            client = limiter if step < 2 else beside(harness, limiter, refusal_ttl=ttl)
            if step == 1:
                true(await grants(limiter, {"rpm": 60}), "there is a bucket now, and it is empty")
            elif step > 2:
                await limiter.set_limits("key", [RATE.scale(0.5) if step == 3 else RATE])
            if never:
                with raises(CapacityExceeded, f"{never} and the floor are more than the capacity") as refused:
                    await _ask_in_a_batch(client, never)
                same(refused.error.statuses[0].retry_after_seconds, None, "there is nothing to wait for")
            if later:
                with raises(RateLimitExceeded, f"{later} and the floor are all of it") as full:
                    await _ask_in_a_batch(client, later)
                same(full.error.retry_after_seconds, 30.0, "when it is full")


@check
async def a_floor_is_left_when_limits_change(harness: Harness) -> None:
    """By the write that moves a bucket to other limits, of those that it had and of those that are new in it."""
    limiter = await new_limiter(harness)
    await limiter.set_limits("key", [RATE])
    true(await grants(limiter, {"rpm": 20}), "40 are left")
    await limiter.set_limits("key", [RATE, QUOTA])
    for client, cost in ((limiter, {"rpm": 11}), (beside(harness, limiter), {"rpm": 1, "tpd": 701})):
        true(not await grants(client, cost, "batch"), "30 of these have to stay, and 300 of the others")
        await limiter.set_limits("key", [RATE])
        true(await grants(limiter, {"rpm": 0}), "a bucket without the quota")
        await limiter.set_limits("key", [RATE, QUOTA])
    true(await grants(limiter, {"rpm": 10, "tpd": 700}, "batch"), "down to the floors")


@check
async def switches_decide_first(harness: Harness) -> None:
    """Disabled refuses, bypassed admits and counts; the most specific decides."""
    limiter = await new_limiter(harness)
    await limiter.set_system_defaults([RATE])
    await limiter.disable_resource("gpt-4")
    with raises(ResourceDisabled, "the resource is off"):
        await grants(limiter, {"rpm": 1})
    await limiter.bypass_entity("key", "gpt-4")
    true(await grants(limiter, {"rpm": 500}), "a bypass admits")
    same(await limiter.available("key", "gpt-4"), {"rpm": -440}, "and counts")
    await limiter.enable_entity("key", "gpt-4")
    true(not await grants(limiter, {"rpm": 1}), "limits decide again")


@check
async def the_most_specific_cascade_policy_decides(harness: Harness) -> None:
    """Entity and resource before entity before resource before the entity's own word; at once where it is set."""
    limiter = await new_limiter(harness)
    await limiter.set_system_defaults([Limit.per_minute("rpm", 1_000)])
    await limiter.create_entity("org")
    await limiter.create_entity("key", parent_id="org", cascade=True)
    steps: list[tuple[Callable[[], Awaitable[None]], bool]] = [
        (lambda: limiter.set_resource_cascade("gpt-4", False), False),
        (lambda: limiter.set_entity_cascade("key", True), True),
        (lambda: limiter.set_entity_cascade("key", False, "gpt-4"), False),
        (lambda: limiter.clear_entity_cascade("key", "gpt-4"), True),
        (lambda: limiter.clear_entity_cascade("key"), False),
        (lambda: limiter.clear_resource_cascade("gpt-4"), True),
    ]
    charged = 0
    for number, (step, cascades) in enumerate(steps):
        await step()
        same(await limiter.resolve_cascade("key", "gpt-4"), cascades, "the policy in force")
        true(await grants(limiter, {"rpm": 1}), "there is enough")
        charged += cascades
        same(await limiter.available("org", "gpt-4"), {"rpm": 1_000 - charged}, f"the parent after step {number}")
    same(await limiter.resolve_cascade("key", "other"), True, "another resource is left alone")


CHECKS = checks_of(globals())
