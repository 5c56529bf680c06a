"""Every kind of acquire, settlement, renewal and alert, by name: what the acquire policies have to allow."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from zae_limiter import Limit, RateLimitExceeded, ScheduleEntry, SyncRateLimiter
from zae_limiter.testing import ManualClock

DAY = 86_400
ENTITY = "everything"
FLOORS = {"batch": 0.5}
RATE = Limit.per_minute("rpm", 100)
QUOTA = Limit.quota("tpd", 100, every="day")
SLOTS = Limit.concurrent("parallel", 3, ttl=30)
MANY_SLOTS = Limit.concurrent("parallel", 400, ttl=30)

Work: TypeAlias = Callable[[SyncRateLimiter, ManualClock, str], None]
"""What is done by a limiter to the buckets of a resource."""


def limited_by(*limits: Limit) -> Work:
    """Return the whole life of buckets with these limits."""

    def work(limiter: SyncRateLimiter, clock: ManualClock, resource: str) -> None:
        for _ in range(2):
            live(limiter, clock, resource, limits)
            clock.advance(DAY)

    return work


def live(limiter: SyncRateLimiter, clock: ManualClock, resource: str, limits: Sequence[Limit]) -> None:
    """Acquire, settle both ways, fail, hold on for long, and ask for too much."""
    tokens = {limit.name: 10 for limit in limits if not limit.is_concurrency}
    place, priority = (ENTITY, resource), "batch" if limits[0].floors else None
    with limiter.acquire(*place, tokens, limits) as lease:
        lease.adjust(dict.fromkeys(tokens, 5))
    with limiter.acquire(*place, tokens, limits, holder="worker-1") as lease:
        lease.adjust(dict.fromkeys(tokens, -5))
        clock.advance(20)
        limiter.renew_slots()
        limiter.check_availability(*place, tokens, limits)
    with contextlib.suppress(ZeroDivisionError), limiter.acquire(*place, tokens, limits, priority=priority):
        raise ZeroDivisionError
    abandoned = limiter.acquire(*place, tokens, limits)
    abandoned.__enter__()
    clock.advance(40)  # its slot has expired
    with contextlib.suppress(RateLimitExceeded), limiter.acquire(*place, dict.fromkeys(tokens, 90), limits):
        pass
    abandoned.__exit__(None, None, None)


def change_kinds(limiter: SyncRateLimiter, clock: ManualClock, resource: str) -> None:
    """A limit counts tokens, then slots, then tokens of a window, and tokens again."""
    for limit in (
        Limit.per_minute("each", 10, alerts=(0.5,)),
        Limit.concurrent("each", 10),
        Limit.quota("each", 10, reset_after=timedelta(hours=1), alerts=(0.5,)),
        Limit.per_minute("each", 20),
    ):
        with limiter.acquire(ENTITY, resource, {"each": 1}, [limit]):
            clock.advance(1)


def fill_with_slots(limiter: SyncRateLimiter, clock: ManualClock, resource: str) -> None:
    """So many slots are taken that the record is split, and holders in all parts renew theirs."""
    with contextlib.ExitStack() as stack:
        for _ in range(70):
            stack.enter_context(limiter.acquire(ENTITY, resource, {"parallel": 1}, [MANY_SLOTS]))
        clock.advance(20)
        limiter.renew_slots()


def lower_slots(limiter: SyncRateLimiter, clock: ManualClock, resource: str) -> None:
    """A limit is lowered while slots above it are taken, which then expire."""
    for slots in (9, 1):
        limit = Limit.concurrent("parallel", slots, ttl=30)
        for _ in range(slots):
            limiter.acquire(ENTITY, resource, {"parallel": 1}, [limit]).__enter__()
        limiter._inner._slot_leases.let_go(list(limiter._inner._slot_leases._places))
        clock.advance(60)


def spend_credits(limiter: SyncRateLimiter, clock: ManualClock, resource: str) -> None:
    """Credit is spent, and some expires. Giving it takes more rights: `give_credits` has done that."""
    with limiter.acquire(ENTITY, resource, {"rpm": 103}, [RATE]) as lease:
        lease.adjust(rpm=2)
    clock.advance(DAY * 2)
    with limiter.acquire(ENTITY, resource, {"rpm": 102}, [RATE]):
        pass


def give_credits(limiter: SyncRateLimiter, clock: ManualClock, resource: str) -> None:
    """Give the credit that `spend_credits` spends."""
    with limiter.acquire(ENTITY, resource, {"rpm": 1}, [RATE]):
        clock.advance(60)
    soon = datetime.fromtimestamp(clock.now_ms() / 1000, UTC) + timedelta(days=1)
    limiter.repository.top_up(ENTITY, resource, {"rpm": 10}, expires_at=soon)
    limiter.repository.top_up(ENTITY, resource, {"rpm": 10})


def draw_in_advance(limiter: SyncRateLimiter, clock: ManualClock, resource: str) -> None:
    """Tokens are drawn before they are asked for, and go back."""
    limit = Limit.per_second("rps", 1_000)
    eager = SyncRateLimiter(limiter.repository, prefetch=60)
    for _ in range(40):
        with eager.acquire(ENTITY, resource, {"rps": 1}, [limit]) as lease:
            lease.adjust(rps=1)
        clock.advance(0.05)
    eager.flush()


def take_together(limiter: SyncRateLimiter, clock: ManualClock, resource: str) -> None:
    """Several resources are taken as one, by single writes and by a transaction."""
    limits = [RATE, SLOTS]
    for atomic in (False, True):
        both = {resource: {"rpm": 1}, f"{resource}-2": {"rpm": 2}}
        with limiter.acquire(ENTITY, both, limits=limits, atomic=atomic) as lease:
            lease.resource(resource).adjust(rpm=3)
            clock.advance(1)


def wait_in_line(limiter: SyncRateLimiter, clock: ManualClock, resource: str) -> None:
    """Requests wait for tokens that refill, and for slots that nobody frees until they expire."""
    for limit, tokens in ((RATE, 80), (SLOTS, 2)):
        for _ in range(2):
            limiter.acquire(ENTITY, resource, {limit.name: tokens}, [limit], max_wait=120).__enter__()


KINDS: dict[str, Work] = {
    "waiting": wait_in_line,
    "rate": limited_by(RATE),
    "soft-rate": limited_by(Limit.per_minute("rpm", 20, soft=True)),
    "rate-with-floors": limited_by(Limit.per_minute("rpm", 100, floors=FLOORS)),
    "rate-with-alerts": limited_by(Limit.per_minute("rpm", 100, alerts=(0.05, 0.8))),
    "rate-by-schedule": limited_by(RATE.with_schedule([ScheduleEntry("* 0-11 * * *", scale=0.5)])),
    "quota": limited_by(QUOTA),
    "soft-quota": limited_by(Limit.quota("tpd", 20, every="day", soft=True)),
    "quota-with-rollover": limited_by(Limit.quota("tpd", 100, every="day", rollover=50)),
    "quota-with-alerts": limited_by(Limit.quota("tpd", 100, every="day", alerts=(0.05, 0.8, 1.0))),
    "quota-by-cron": limited_by(Limit.quota("tpd", 100, cron="0 9 * * 1-5")),
    "quota-from-first-use": limited_by(Limit.quota("tph", 100, reset_after=timedelta(hours=1))),
    "slots": limited_by(SLOTS),
    "soft-slots": limited_by(Limit.concurrent("parallel", 1, ttl=30, soft=True)),
    "slots-with-floors": limited_by(Limit.concurrent("parallel", 4, ttl=30, floors=FLOORS)),
    "slots-held-for-long": limited_by(Limit.concurrent("parallel", 4, ttl=30, max_hold=30)),
    "all-in-one-bucket": limited_by(RATE, QUOTA, SLOTS),
    "change-of-kind": change_kinds,
    "slots-in-two-shards": fill_with_slots,
    "fewer-slots": lower_slots,
    "credits": spend_credits,
    "prefetch": draw_in_advance,
    "several-resources": take_together,
}
BEFORE: dict[str, Work] = {"credits": give_credits}
"""What somebody with more rights does first."""
