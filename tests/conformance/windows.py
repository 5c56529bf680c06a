"""Quotas whose windows are not those of a calendar: by cron expressions, or from their first use on."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from importlib.util import find_spec
from random import Random
from typing import TYPE_CHECKING

from tests.conformance.expect import raises, same, true
from tests.conformance.room import new_limiter, new_limiters
from zae_limiter.core.errors import RateLimitExceeded
from zae_limiter.core.limit import Limit
from zae_limiter.testing.conformance.check import check, checks_of

if TYPE_CHECKING:
    from zae_limiter.limiter.limiter import RateLimiter
    from zae_limiter.testing.harness import Harness

CRON_WINDOWS = (
    # The clocks skip 02:30 on 29 March, and show it twice on 25 October.
    ("30 2,14 * * *", "Europe/Berlin", ("2026-03-28T13:30Z", "2026-03-29T01:00Z", "2026-03-29T12:30Z")),
    ("0 9 * * 1-5", "UTC", ("2026-07-03T09:00Z", "2026-07-06T09:00Z", "2026-07-07T09:00Z")),
    ("30 2,14 * * *", "Europe/Berlin", ("2026-10-24T12:30Z", "2026-10-25T00:30Z", "2026-10-25T13:30Z")),
)
"""Expressions, zones, and instants at which windows begin one after the other."""

SESSION = Limit.quota("session", 1_000, reset_after=timedelta(hours=5))
OTHER = Limit.per_minute("rpm", 600)
HOUR_MS = 3_600_000


@dataclass
class Session:
    """A window that begins with its first use, by hand."""

    start_ms: int | None = None
    held: int = SESSION.capacity

    def left(self, now_ms: int) -> int:
        """Return what is left: every length of a window that has passed brings an allowance."""
        passed = 0 if self.start_ms is None else (now_ms - self.start_ms) // (5 * HOUR_MS)
        return min(SESSION.capacity, self.held + passed * SESSION.refill_amount)

    def use(self, taken: int, now_ms: int) -> None:
        """Take tokens that are there; the first use after the end of a window begins another."""
        held = self.left(now_ms)
        if self.start_ms is None or now_ms >= self.start_ms + 5 * HOUR_MS:
            self.start_ms, self.held = now_ms, held
        self.held -= taken


def _move_to(harness: Harness, instant_ms: int) -> None:
    harness.clock.advance_ms(instant_ms - harness.clock.now_ms())


def _instant(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


async def _grants(limiter: RateLimiter, entity_id: str, cost: dict[str, int]) -> bool:
    try:
        async with limiter.acquire(entity_id, "gpt-4", cost):
            return True
    except RateLimitExceeded:
        return False


@check
async def a_quota_by_cron(harness: Harness) -> None:
    """It is back at the millisecond at which its expression fires, where clocks are changed too."""
    for number, (cron, tz, texts) in enumerate(CRON_WINDOWS):
        instants, key = [_instant(text) for text in texts], f"key-{number}"
        _move_to(harness, instants[0])
        limiter = await new_limiter(harness)
        await limiter.set_system_defaults([Limit.quota("tpd", 1_000, cron=cron, tz=tz)])
        true(await _grants(limiter, key, {"tpd": 1_000}), "all of it at once")
        for end in instants[1:]:
            with raises(RateLimitExceeded, "nothing is left") as refused:
                async with limiter.acquire(key, "gpt-4", {"tpd": 1}):
                    pass
            wait = (end - harness.clock.now_ms()) / 1000
            same(refused.error.retry_after_seconds, wait, f"{cron} fires at {end}")
            _move_to(harness, end - 1)
            true(not await _grants(limiter, key, {"tpd": 1}), "not a millisecond early")
            _move_to(harness, end)
            true(await _grants(limiter, key, {"tpd": 1_000}), "all of it is back")


@check
async def a_window_begins_with_its_first_use(harness: Harness) -> None:
    """And is over when its time has passed; the next use begins another. To the millisecond, by two clients."""
    one, two = await new_limiters(harness, 2)
    for pause_ms in (3 * HOUR_MS, 0, 7 * HOUR_MS, 2 * HOUR_MS):
        await one.set_system_defaults([SESSION, OTHER])
        true(await _grants(one, "key", {"rpm": 1}), "a bucket is made, or moved, for another limit")
        harness.clock.advance_ms(pause_ms)
        start = harness.clock.now_ms()
        true(await _grants(one, "key", {"session": 400, "rpm": 1}), "the first use")
        harness.clock.advance_ms(2 * HOUR_MS)
        true(await _grants(two, "key", {"session": 600}), "the rest of it")
        harness.clock.advance_ms(3 * HOUR_MS - 1)
        true(await _grants(one, "key", {"rpm": 1}), "other limits have nothing to do with it")
        with raises(RateLimitExceeded, "nothing is left") as refused:
            async with two.acquire("key", "gpt-4", {"session": 1}):
                pass
        same(refused.error.retry_after_seconds, 0.001, "it ends five hours after the first use")
        resets = refused.error.resets_at
        same(None if resets is None else round(resets.timestamp() * 1000), start + 5 * HOUR_MS, "and says when")
        harness.clock.advance_ms(1)


@check
async def windows_of_first_use_in_the_books(harness: Harness) -> None:
    """Two clients, idle times, debt across windows, and what is given back: equal to windows that are kept by hand."""
    clients, chance = await new_limiters(harness, 2), Random(11)
    await clients[0].set_system_defaults([SESSION, OTHER])
    books = Session()
    for _ in range(150):
        harness.clock.advance_ms(chance.choice((0, 1, 600_000, HOUR_MS, 4 * HOUR_MS, 5 * HOUR_MS - 1, 11 * HOUR_MS)))
        now_ms, client = harness.clock.now_ms(), chance.choice(clients)
        taken, more = chance.randrange(500), chance.choice((0, 0, -1, 1_800))
        fits = books.left(now_ms) >= taken
        try:
            async with client.acquire("key", "gpt-4", {"session": taken, "rpm": 1}) as lease:
                true(fits, f"granted {taken} of {books.left(now_ms)}")
                await lease.adjust(session=more if more > 0 else more * taken)
            books.use(taken + (more if more > 0 else more * taken), now_ms)
        except RateLimitExceeded:
            true(not fits, f"refused {taken} of {books.left(now_ms)}")
        true(await _grants(chance.choice(clients), "key", {"rpm": 1}), "which begins nothing")
        left = await client.available("key", "gpt-4")
        same(left["session"], books.left(now_ms), "what is left is in the books")


@check
async def what_comes_back_after_a_window(harness: Harness) -> None:
    """A return raises nothing once the next window has begun, as it is full without it."""
    limiter = await new_limiter(harness)
    harness.clock.advance_ms(HOUR_MS)
    await limiter.set_system_defaults([SESSION])
    async with limiter.acquire("key", "gpt-4", {"session": 700}) as lease:
        harness.clock.advance_ms(5 * HOUR_MS - 1)
        same(await limiter.available("key", "gpt-4"), {"session": 300}, "the use that makes a bucket begins a window")
        harness.clock.advance_ms(HOUR_MS + 1)
        true(await _grants(limiter, "key", {"session": 300}), "another window")
        await lease.adjust(session=-700)
    same(await limiter.available("key", "gpt-4"), {"session": 700}, "it belonged to the window before")
    harness.clock.advance_ms(5 * HOUR_MS - 1)
    same(await limiter.available("key", "gpt-4"), {"session": 700}, "and began when it was used")
    harness.clock.advance_ms(1)
    same(await limiter.available("key", "gpt-4"), {"session": 1_000}, "five hours before")


@check
async def idle_windows_swallow_nothing(harness: Harness) -> None:
    """A quota that nobody has used for days is full and no more, for what was not estimated too."""
    limiter = await new_limiter(harness)
    await limiter.set_system_defaults([Limit.quota("tpd", 1_000), OTHER])
    true(await _grants(limiter, "key", {"tpd": 1}), "some of it")
    harness.clock.advance_ms(5 * 24 * HOUR_MS)
    async with limiter.acquire("key", "gpt-4", {"rpm": 1}) as lease:
        await lease.adjust(tpd=900)
    same((await limiter.available("key", "gpt-4"))["tpd"], 100, "what is left of one allowance")


CHECKS = checks_of(globals())
if find_spec("cronsim") is None:  # it is optional: `pip install 'zae-limiter[cron]'` proves these as well
    CHECKS = tuple(each for each in CHECKS if "cron" not in each.name)
