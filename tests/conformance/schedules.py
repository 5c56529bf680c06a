"""Limits with a schedule, against books that know the numbers of every hour."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from importlib.util import find_spec
from random import Random
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from tests.conformance.expect import raises, same, true
from tests.conformance.room import new_limiter, new_limiters
from zae_limiter.core.errors import CapacityExceeded, RateLimitExceeded
from zae_limiter.core.limit import Limit
from zae_limiter.testing.conformance.check import Check, check, checks_of

if TYPE_CHECKING:
    from zae_limiter.limiter.limiter import RateLimiter
    from zae_limiter.testing.harness import Harness

BERLIN = ZoneInfo("Europe/Berlin")
MINUTE_MS, HOUR_MS = 60_000, 3_600_000
NAMES = ("rate", "quota", "soft")
NUMBERS = {
    "day": {"rate": (500, 300), "quota": (600, 600), "soft": (40, 40)},
    "evening": {"rate": (2_000, 100), "quota": (1_500, 1_500), "soft": (40, 40)},
    "night": {"rate": (1_000, 600), "quota": (1_200, 1_200), "soft": (40, 40)},
}
"""By the time of the day: capacity and refill, of the rate per hour, of the quota per day, of the soft one per hour."""


def time_of_day(instant_ms: int) -> str:
    """Return which of `NUMBERS` are in force: the day is from 9 to 17 on weekdays, the evening from 20 to 22."""
    local = datetime.fromtimestamp(instant_ms / 1000, BERLIN)
    if local.weekday() < 5 and 9 <= local.hour < 17:
        return "day"
    return "evening" if 20 <= local.hour < 22 else "night"


def make_limits() -> list[Limit]:
    """Return the limits of `NUMBERS` as a user writes them; without `ScheduleEntry` for who lacks cronsim."""
    from zae_limiter.core.schedule import ScheduleEntry

    def entries(name: str) -> list[ScheduleEntry]:
        (day, made), (evening, more) = (NUMBERS[time][name] for time in ("day", "evening"))
        refills = (None, None) if name == "quota" else (made, more)
        return [
            ScheduleEntry("* 9-16 * * MON-FRI", "Europe/Berlin", capacity=day, refill_amount=refills[0]),
            ScheduleEntry("* 20,21 * * *", "Europe/Berlin", capacity=evening, refill_amount=refills[1]),
        ]

    rate, quota = Limit.custom("rate", 1_000, 600, 3_600), Limit.quota("quota", 1_200, tz="Europe/Berlin")
    soft = Limit.per_hour("soft", 40, soft=True)
    return [rate.with_schedule(entries("rate")), quota.with_schedule(entries("quota")), soft]


@dataclass
class Books:
    """What each limit holds in millitokens, moved on from hour to hour."""

    now_ms: int
    held: dict[str, int] = field(default_factory=dict)

    def open(self) -> None:
        """Fill all limits, as they are when a bucket is made."""
        self.held = {name: NUMBERS[time_of_day(self.now_ms)][name][0] * 1000 for name in NAMES}

    def move_to(self, now_ms: int) -> None:
        """Refill to an instant. Nothing changes but at full hours."""
        while self.held and self.now_ms < now_ms:
            end = min(now_ms, (self.now_ms // HOUR_MS + 1) * HOUR_MS)
            before, after = (NUMBERS[time_of_day(instant)] for instant in (end - 1, end))
            midnight = datetime.fromtimestamp(end / 1000, BERLIN).strftime("%H%M%S%f") == "000000000000"
            for name in NAMES:
                capacity, amount = before[name]
                made = end * amount // 3_600 - self.now_ms * amount // 3_600
                if name == "quota":
                    made = after[name][1] * 1000 * midnight
                self.held[name] = min(capacity * 1000, self.held[name] + made)
                self.held[name] = min(after[name][0] * 1000, self.held[name])
            self.now_ms = end
        self.now_ms = now_ms

    def fits(self, cost: dict[str, int]) -> bool:
        """Return whether the limits that refuse have as much."""
        return all(self.held[name] >= cost[name] * 1000 for name in ("rate", "quota") if name in cost)

    def left(self) -> dict[str, int]:
        """Return what is left in whole tokens."""
        return {name: milli // 1000 for name, milli in self.held.items()}


def _set_clock(harness: Harness, local: str) -> None:
    moment = datetime.fromisoformat(local).replace(tzinfo=BERLIN)
    harness.clock.advance_ms(round(moment.timestamp() * 1000) - harness.clock.now_ms())


async def _grants(limiter: RateLimiter, cost: dict[str, int]) -> bool:
    try:
        async with limiter.acquire("key", "gpt-4", cost):
            return True
    except RateLimitExceeded:
        return False


@check
async def schedules_in_the_books(harness: Harness) -> None:
    """Two clients over a change of the clocks: what is left, what is granted, the moment that a refusal promises."""
    _set_clock(harness, "2027-03-26T07:30")
    clients, chance = await new_limiters(harness, 2), Random(5)
    await clients[0].set_system_defaults(make_limits())
    books = Books(harness.clock.now_ms())
    books.open()
    true(await _grants(clients[0], {"rate": 0}), "a bucket is made")
    for _ in range(100):
        pause_ms = chance.choice((0, 1, MINUTE_MS, 20 * MINUTE_MS, HOUR_MS, 5 * HOUR_MS, 17 * HOUR_MS))
        harness.clock.advance_ms(pause_ms)
        books.move_to(harness.clock.now_ms())
        client, cost = (
            chance.choice(clients),
            {"rate": chance.randrange(450), "quota": chance.randrange(250), "soft": 9},
        )
        for name in chance.sample(NAMES, chance.randrange(2)):
            del cost[name]
        fits, more = books.fits(cost), chance.choice((0, 0, 0, 400))
        try:
            async with client.acquire("key", "gpt-4", cost) as lease:
                true(fits, f"granted {cost} of {books.left()}")
                await lease.adjust(dict.fromkeys(cost, more))
            for name, taken in cost.items():
                books.held[name] -= (taken + more) * 1000
        except RateLimitExceeded as refused:
            true(not fits, f"refused {cost} of {books.left()}")
            wait_ms = round((refused.retry_after_seconds or 0) * 1000)
            if wait_ms:
                harness.clock.advance_ms(wait_ms - 1)
                books.move_to(harness.clock.now_ms())
                true(not books.fits(cost), "it does not fit before the promised moment")
                harness.clock.advance_ms(1)
                books.move_to(harness.clock.now_ms())
                true(books.fits(cost), "and does at it")
        same(await client.available("key", "gpt-4"), books.left(), "what is left is in the books")


@check
async def a_wait_across_a_border(harness: Harness) -> None:
    """Half an hour at 300 an hour, and five minutes at 600."""
    _set_clock(harness, "2027-06-01T16:30")
    limiter = await new_limiter(harness)
    await limiter.set_system_defaults(make_limits())
    true(await _grants(limiter, {"rate": 500}), "all of it")
    with raises(RateLimitExceeded, "nothing is left") as refused:
        async with limiter.acquire("key", "gpt-4", {"rate": 200}):
            pass
    same(refused.error.retry_after_seconds, 35.0 * 60, "after the border there is more an hour")
    harness.clock.advance_ms(35 * MINUTE_MS - 1)
    true(not await _grants(limiter, {"rate": 200}), "a millisecond early")
    harness.clock.advance_ms(1)
    true(await _grants(limiter, {"rate": 200}), "and to the millisecond")


@check
async def not_yet_and_never_with_a_schedule(harness: Harness) -> None:
    """A cost above the capacity of now fits when a larger one is in force; one above all of them never does."""
    _set_clock(harness, "2027-06-01T12:00")
    limiter = await new_limiter(harness)
    await limiter.set_system_defaults(make_limits())
    with raises(RateLimitExceeded, "not by day") as refused:
        async with limiter.acquire("other", "gpt-4", {"rate": 1_100}):
            pass
    same(refused.error.retry_after_seconds, 8.0 * 3_600, "whoever has used nothing has all of it at 20:00")
    true(await _grants(limiter, {"rate": 1}), "others have what they have")
    with raises(RateLimitExceeded, "not by day") as refused:
        async with limiter.acquire("key", "gpt-4", {"rate": 1_100}):
            pass
    # From 17:00 on 600 an hour up to 1,000, from 20:00 on 100 an hour up to 2,000.
    same(refused.error.retry_after_seconds, 9.0 * 3_600, "an hour after 20:00")
    with raises(CapacityExceeded, "never") as never:
        async with limiter.acquire("key", "gpt-4", {"rate": 2_001}):
            pass
    same(never.error.retry_after_seconds, None, "there is nothing to wait for")
    harness.clock.advance_ms(9 * HOUR_MS - 1)
    true(not await _grants(limiter, {"rate": 1_100}), "a millisecond early")
    harness.clock.advance_ms(1)
    true(await _grants(limiter, {"rate": 1_100}), "and to the millisecond")


@check
async def a_border_is_one_write(harness: Harness) -> None:
    """Two clients whose clocks differ meet at a border: nothing is granted that was not produced."""
    _set_clock(harness, "2027-06-01T19:59")
    other = type(harness.clock)(harness.clock.now_ms() - 700)
    one = await new_limiter(harness)
    two = harness.limiter(harness.repository(harness.store(other), namespace=one.repository.namespace))
    await one.set_system_defaults([limit for limit in make_limits() if limit.name == "rate"])
    true(await _grants(one, {"rate": 1_000}), "all of it")
    granted = 0
    for _ in range(1_200):
        harness.clock.advance_ms(100)
        other.advance_ms(100)
        granted += await _grants(one, {"rate": 1}) + await _grants(two, {"rate": 1})
    true(granted <= 12, f"a minute at 600 an hour and one at 100 make 11.7, not {granted}")
    true(granted >= 11, f"and no less: {granted}")


CHECKS: tuple[Check, ...] = () if find_spec("cronsim") is None else checks_of(globals())
