"""Quotas whose windows are not those of a calendar: by cron expressions."""

from __future__ import annotations

from datetime import datetime
from importlib.util import find_spec
from typing import TYPE_CHECKING

from ...core.errors import RateLimitExceeded
from ...core.limit import Limit
from .check import check, checks_of
from .expect import raises, same, true

if TYPE_CHECKING:
    from ...limiter.limiter import RateLimiter
    from ..harness import Harness

CRON_WINDOWS = (
    # The clocks skip 02:30 on 29 March, and show it twice on 25 October.
    ("30 2,14 * * *", "Europe/Berlin", ("2026-03-28T13:30Z", "2026-03-29T01:00Z", "2026-03-29T12:30Z")),
    ("0 9 * * 1-5", "UTC", ("2026-07-03T09:00Z", "2026-07-06T09:00Z", "2026-07-07T09:00Z")),
    ("30 2,14 * * *", "Europe/Berlin", ("2026-10-24T12:30Z", "2026-10-25T00:30Z", "2026-10-25T13:30Z")),
)
"""Expressions, zones, and instants at which windows begin one after the other."""


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
        limiter = harness.limiter()
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


CHECKS = checks_of(globals())
if find_spec("cronsim") is None:  # it is optional: `pip install 'zae-limiter[cron]'` proves these as well
    CHECKS = tuple(each for each in CHECKS if "cron" not in each.name)
