"""Quotas, soft limits, floors and switches: in one bucket with rates, against books that are kept by hand."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from random import Random
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from tests.conformance.expect import raises, same, true
from tests.conformance.room import at_once, beside, new_limiter, new_limiters
from zae_limiter.core.errors import CapacityExceeded, RateLimitExceeded, ResourceDisabled
from zae_limiter.core.limit import Limit
from zae_limiter.core.values import AuditAction, AuditEvent
from zae_limiter.observer import Observer
from zae_limiter.records import audit, keys
from zae_limiter.records.algebra import Query
from zae_limiter.records.ledger import kept_ms
from zae_limiter.testing.conformance.check import check, checks_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from zae_limiter.core.alerts import Alert
    from zae_limiter.limiter.lease import Lease
    from zae_limiter.limiter.limiter import RateLimiter
    from zae_limiter.stores.port import Store
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


async def _grants(limiter: RateLimiter, cost: dict[str, int], priority: str | None = None) -> bool:
    try:
        async with limiter.acquire("key", "gpt-4", cost, priority=priority):
            return True
    except RateLimitExceeded:
        return False


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
        true(await _grants(limiter, {"tpd": 1_000}), "all of it at once")
        for hours in (6, 25):
            with raises(RateLimitExceeded, "nothing is left") as refused:
                async with limiter.acquire("key", "gpt-4", {"tpd": 1}):
                    pass
            same(refused.error.retry_after_seconds, hours * 3600.0, "the promised moment is midnight")
            harness.clock.advance_ms(hours * HOUR_MS - 1)
            true(not await _grants(limiter, {"tpd": 1}), "not before midnight")
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
    true(await _grants(limiter, {"rpm": 30}, "batch"), "down to the floor")
    true(not await _grants(limiter, {"rpm": 1}, "batch"), "and no further")
    true(not await _grants(limiter, {"rpm": 31}), "others have what is there")
    true(await _grants(limiter, {"rpm": 10}), "and no less")
    with raises(RateLimitExceeded, "11 are missing") as refused:
        async with limiter.acquire("key", "gpt-4", {"rpm": 1}, priority="batch"):
            pass
    same(refused.error.retry_after_seconds, 5.5, "the promised moment counts the floor")
    harness.clock.advance_ms(5_499)
    true(not await _grants(limiter, {"rpm": 1}, "batch"), "one millisecond early")
    harness.clock.advance_ms(1)
    true(await _grants(limiter, {"rpm": 1}, "batch"), "and to the millisecond")
    for seconds in (3_600, 0):
        harness.clock.advance(seconds)
        with raises(CapacityExceeded, "with its floor it is more than the capacity") as never:
            async with limiter.acquire("key", "gpt-4", {"rpm": 31}, priority="batch"):
                pass
        same(never.error.statuses[0].retry_after_seconds, None, "there is nothing to wait for")


@check
async def a_soft_limit_only_counts(harness: Harness) -> None:
    """It never refuses, and its debt is what was taken beyond it."""
    limiter = await new_limiter(harness)
    await limiter.set_system_defaults([RATE, SOFT])
    for taken in (400, 800, 5_000, 0):
        async with limiter.acquire("key", "gpt-4", {"tph": taken, "rpm": 1}) as lease:
            same(lease.overdrawn, ("tph",) if taken > 400 else (), "what was exceeded")
    same(await limiter.available("key", "gpt-4"), {"rpm": 56, "tph": -5_700}, "all of it is counted")
    async with limiter.acquire("other", "gpt-4", {"tph": 501}) as lease:
        same(lease.overdrawn, ("tph",), "by the first request, too")
    (state,) = [state for state in await limiter.get_buckets("other") if state.limit_name == "tph"]
    same((state.tokens_milli, state.total_overdrawn_milli), (-1_000, 1_000), "by how much")


@check
async def the_debt_of_a_new_bucket_is_not_forgotten(harness: Harness) -> None:
    """What the first request takes of a soft limit is kept until it has been refilled, of a rate and of a quota."""
    for limit in (SOFT, Limit.quota("tph", 500, every="hour", soft=True)):
        limiter = await new_limiter(harness)
        await limiter.set_system_defaults([limit])
        hours = 24 + kept_ms(limiter.repository.capabilities.usage_retention_days) // HOUR_MS
        true(await _grants(limiter, {"tph": 500 * (hours + 24)}), "a soft limit refuses nobody")
        harness.clock.advance(3_600 * hours)
        same(await beside(harness, limiter).available("key", "gpt-4"), {"tph": -500 * 23}, "a day is left to be paid")


@check
async def never_and_not_yet_with_a_floor(harness: Harness) -> None:
    """Of a bucket that is new, known, not known, or under other limits: more than it holds with the floor, or not."""
    for ttl in (1, 0):
        limiter = await new_limiter(harness, refusal_ttl=ttl)
        await limiter.set_limits("key", [RATE])
        for step, (never, later) in enumerate([(31, 30), (31, 30), (31, 30), (16, 15)]):
            client = limiter if step < 2 else beside(harness, limiter, refusal_ttl=ttl)
            if step == 1:
                true(await _grants(limiter, {"rpm": 60}), "there is a bucket now, and it is empty")
            elif step == 3:
                await limiter.set_limits("key", [RATE.scale(0.5)])
            with raises(CapacityExceeded, f"{never} and the floor are more than the capacity") as refused:
                async with client.acquire("key", "gpt-4", {"rpm": never}, priority="batch"):
                    pass
            same(refused.error.statuses[0].retry_after_seconds, None, "there is nothing to wait for")
            if not step:
                continue
            with raises(RateLimitExceeded, f"{later} and the floor are all of it") as full:
                async with client.acquire("key", "gpt-4", {"rpm": later}, priority="batch"):
                    pass
            same(full.error.retry_after_seconds, 30.0, "when it is full")


class SoftBooks:
    """A soft limit as simply as it can be said, in millitokens: what is there, and what was taken beyond it."""

    def __init__(self, limit: Limit, now_ms: int) -> None:
        self.limit = limit
        self.left = self.capacity = limit.capacity * 1000
        self.total_over = 0
        self._as_of = self._made(now_ms)

    def _made(self, now_ms: int) -> int:
        ticks = now_ms if self.limit.calendar is None else self.limit.calendar.index(now_ms)
        period = self.limit.refill_period_seconds if self.limit.calendar is None else 1
        amount = self.limit.refill_amount * (1 if self.limit.calendar is None else 1000)
        return ticks * amount // period

    def change(self, limit: Limit, now_ms: int) -> None:
        """Go on under a limit that refills in another way."""
        self.take(0, now_ms)
        self.limit = limit
        self._as_of = self._made(now_ms)

    def take(self, tokens: int, now_ms: int) -> int:
        """Take tokens, and return how many millitokens of them were not there."""
        self.left = min(self.capacity, self.left + self._made(now_ms) - self._as_of)
        self._as_of = self._made(now_ms)
        beyond = max(0, tokens * 1000 - max(0, self.left))
        self.left -= tokens * 1000
        self.total_over += beyond
        return beyond

    def give_back(self, tokens: int, beyond: int) -> None:
        """Give tokens back of a taking that was so far ``beyond``: what was not there goes first."""
        self.left += tokens * 1000
        self.total_over -= min(tokens * 1000, beyond)


@check
async def what_a_soft_limit_is_overdrawn_by_is_counted(harness: Harness) -> None:
    """To the millitoken, by two clients: what fits, what does not, and what was partly there; settled either way."""
    limits = (Limit.per_hour("tph", 3_601, soft=True), Limit.quota("tpd", 700, soft=True), RATE)
    clients, chance = await new_limiters(harness, 2), Random(11)
    await clients[0].set_system_defaults(limits)
    now_ms = harness.clock.now_ms()
    books = [SoftBooks(limit, now_ms) for limit in limits[:2]]
    for _ in range(60):
        harness.clock.advance_ms(chance.choice((0, 0, 700, 45_000, 600_001, 9 * HOUR_MS)))
        now_ms, client = harness.clock.now_ms(), chance.choice(clients)
        cost = {"tph": chance.randrange(2_000), "tpd": chance.choice((1, 50, 300, 900))}
        more = {name: chance.choice((0, 0, 400, 5_000, -(tokens // 2), -tokens)) for name, tokens in cost.items()}
        async with client.acquire("key", "gpt-4", cost) as lease:
            beyond = {each.limit.name: each.take(cost[each.limit.name], now_ms) for each in books}
            same(lease.overdrawn, tuple(sorted(name for name, milli in beyond.items() if milli)), "what was exceeded")
            await lease.adjust(more)
        for each in books:
            name = each.limit.name
            if more[name] > 0:
                each.take(more[name], now_ms)
            else:
                each.give_back(-more[name], beyond[name])
        counted = {state.limit_name: state.total_overdrawn_milli for state in await client.get_buckets("key")}
        same(counted, {"rpm": 0, **{each.limit.name: each.total_over for each in books}}, "what was overdrawn")
    if client.repository.capabilities.usage_retention_days:
        summary = await clients[0].get_usage_summary("key", "gpt-4", "hourly")
        expected = {each.limit.name: each.total_over // 1000 for each in books if each.total_over}
        same(summary.overdrawn, expected, "usage counts it apart")


@check
async def what_was_given_back_is_not_overdrawn(harness: Harness) -> None:
    """Also by a client that has last seen less than nothing."""
    clients = await new_limiters(harness, 2)
    await clients[0].set_system_defaults([SOFT])
    async with clients[0].acquire("key", "gpt-4", {"tph": 490}) as lease:
        true(await _grants(clients[1], {"tph": 30}), "20 of these are not there")
        await lease.release(tph=400)
    true(await _grants(clients[1], {"tph": 100}), "these are")
    (state,) = await clients[0].get_buckets("key")
    same(state.total_overdrawn_milli, 20_000, "what was overdrawn")


@check
async def what_several_overdraw_at_once_is_told_apart(harness: Harness) -> None:
    """Each gives back what it took beyond a soft limit, though one write has served several."""
    limiter = await new_limiter(harness)
    await limiter.set_system_defaults([SOFT])
    leases = [limiter.acquire("key", "gpt-4", {"tph": 200}) for _ in range(5)]
    await at_once(harness, [lease.enter for lease in leases])
    (state,) = await limiter.get_buckets("key")
    same((state.tokens_milli, state.total_overdrawn_milli), (-500_000, 500_000), "two fit, and a half")
    for lease in leases:
        await lease.release(tph=200)
        await lease.exit()
    (state,) = await limiter.get_buckets("key")
    same((state.tokens_milli, state.total_overdrawn_milli), (500_000, 0), "all of it is back")


@check
async def what_is_owed_to_a_soft_limit_is_overdrawn_unseen(harness: Harness) -> None:
    """By what is not there when a debt comes, also if its client has last seen more."""
    unaware, other = await new_limiters(harness, 2)
    await unaware.set_system_defaults([SOFT])
    async with unaware.acquire("key", "gpt-4", {"tph": 10}) as lease:
        true(await _grants(other, {"tph": 450}), "40 are left")
        await lease.adjust(tph=100)
    (state,) = await unaware.get_buckets("key")
    same((state.tokens_milli, state.total_overdrawn_milli), (-60_000, 60_000), "what was overdrawn")


class AlertBooks:
    """Who has to be told of which threshold: of a quota window by window, of a rate by the level before and after."""

    def __init__(self, limit: Limit, now_ms: int) -> None:
        self.books, self.limit = SoftBooks(limit, now_ms), limit
        self.told: set[tuple[int, float]] = set()

    def _reached(self) -> set[float]:
        used = self.books.capacity - self.books.left
        return {part for part in self.limit.alerts if used * 1000 >= self.books.capacity * round(part * 1000)}

    def take(self, tokens: int, now_ms: int) -> list[tuple[str, float]]:
        """Take tokens, and return the limit and the thresholds that are crossed by it."""
        self.books.take(0, now_ms)
        before = self._reached()
        self.books.take(tokens, now_ms)
        crossed = self._reached() - before if tokens else set()
        if self.limit.calendar is not None:
            window = self.limit.calendar.index(now_ms)
            crossed = {part for part in self._reached() if tokens and (window, part) not in self.told}
            self.told |= {(window, part) for part in crossed}
        return [(self.limit.name, part) for part in sorted(crossed)]


@check
async def thresholds_are_announced_by_the_write_that_crosses_them(harness: Harness) -> None:
    """Once over all clients: of a quota in each window, of a rate each time that it is crossed; by debts too."""
    day = Limit.quota("tpd", 700, tz="Europe/Berlin", alerts=(0.5, 0.8, 1.0))
    hours = [Limit.custom("tph", 3_601, amount, 3_600, soft=True, alerts=(0.25, 0.9)) for amount in (3_601, 1_000)]
    hour = hours[0]
    told: list[tuple[str, float]] = []
    clients, chance = await new_limiters(harness, 2), Random(3)
    for client in clients:
        client.observers = (_Listener(told),)
    await clients[0].set_system_defaults([replace(day, alerts=()), replace(hour, alerts=()), RATE])
    true(await _grants(clients[0], {"tpd": 0, "tph": 0}), "the bucket is older than the thresholds")
    await clients[0].set_system_defaults([day, hour, RATE])
    books = [AlertBooks(limit, harness.clock.now_ms()) for limit in (day, hour)]
    expected: list[tuple[str, float]] = []
    for _ in range(120):
        harness.clock.advance_ms(chance.choice((0, 0, 700, 45_000, 600_001, 2 * HOUR_MS, 9 * HOUR_MS)))
        now_ms, client = harness.clock.now_ms(), chance.choice(clients)
        if chance.random() < 0.2:
            hour = chance.choice(hours)
            await client.set_limits("key", [day, hour, RATE])
            books[1].books.change(hour, now_ms)
        cost = {"tph": chance.randrange(1_500), "tpd": chance.choice((0, 1, 50, 200))}
        more = {name: chance.choice((0, 0, 300, -(tokens // 2), -tokens)) for name, tokens in cost.items()}
        try:
            async with client.acquire("key", "gpt-4", cost) as lease:
                expected += [crossed for each in books for crossed in each.take(cost[each.limit.name], now_ms)]
                same(told, expected, "an acquire announces what it crosses")
                await lease.adjust(more)
        except RateLimitExceeded:
            continue
        for each in books:
            if more[each.limit.name] > 0:
                expected += each.take(more[each.limit.name], now_ms)
            else:
                each.books.give_back(-more[each.limit.name], 0)
        same(told, expected, "a settlement too")
    true(len(expected) > 20, "there were many")
    events = await alert_events(harness.store(), client, "key")
    recorded = [(event.details["limit"], event.details["threshold"]) for event in events]
    same(sorted(recorded), sorted(expected), "each of them is in the audit log, or left for it, once")


async def alert_events(store: Store, limiter: RateLimiter, entity_id: str) -> list[AuditEvent]:
    """Return the audit events of an entity's alerts, newest first, with those that are left for the aggregator."""
    events = await limiter.get_audit_events(entity_id, 1_000)
    if store.capabilities.change_stream:
        pk = keys.pk_alert(str(limiter.repository.namespace_id), entity_id)
        left = await store.query(Query(pk, keys.ALERT_PREFIX, limit=1_000, descending=True))
        events = [audit.decode(image) for _, image in left.items] + events
    return [event for event in events if event.action == AuditAction.LIMIT_ALERT]


@check
async def thresholds_are_announced_by_clients_that_have_seen_another_level(harness: Harness) -> None:
    """Others have taken since, or have given back: whoever crosses a threshold announces it all the same."""
    window_ms, keeper = 1_000, await new_limiter(harness)
    quota = Limit.quota("q", 20, every=timedelta(milliseconds=window_ms), alerts=(0.25, 0.5, 0.75, 1.0))
    rate = Limit.custom("r", 20, 1, 300_000_000, soft=True, alerts=(0.25, 0.5, 0.75))
    told: list[tuple[str, float]] = []
    clients, chance = [beside(harness, keeper) for _ in range(3)], Random(5)
    for client in clients:
        client.observers = (_Listener(told),)
    await keeper.set_system_defaults([quota, rate])
    books = [AlertBooks(limit, harness.clock.now_ms()) for limit in (quota, rate)]
    expected: list[tuple[str, float]] = []
    held: list[tuple[Lease, int]] = []
    for _ in range(250):
        if held and chance.random() < 0.4:
            lease, tokens = held.pop(chance.randrange(len(held)))
            await lease.release(q=tokens, r=tokens)
            await lease.exit()
            left = await keeper.available("key", "gpt-4")
            for each in books:  # less may count where others have given back too
                each.books.left = left[each.limit.name] * 1000
        elif chance.random() < 0.08:
            harness.clock.advance_ms(window_ms)
            await keeper.reset_bucket("key", "gpt-4")
            held.clear()
            for each in books:
                each.books.left = each.books.capacity
        else:
            tokens = chance.randrange(1, 6)
            lease = chance.choice(clients).acquire("key", "gpt-4", {"q": tokens, "r": tokens})
            with contextlib.suppress(RateLimitExceeded):
                await lease.enter()
                held.append((lease, tokens))
                expected += [crossed for each in books for crossed in each.take(tokens, harness.clock.now_ms())]
        same(told, expected, "what was crossed is announced, and nothing else")
    true(len(expected) > 50, "there were many")


class _Listener(Observer):
    def __init__(self, told: list[tuple[str, float]]) -> None:
        self._told = told

    def on_alert(self, alert: Alert) -> None:
        self._told.append((alert.limit_name, alert.threshold))


@check
async def switches_decide_first(harness: Harness) -> None:
    """Disabled refuses, bypassed admits and counts; the most specific decides."""
    limiter = await new_limiter(harness)
    await limiter.set_system_defaults([RATE])
    await limiter.disable_resource("gpt-4")
    with raises(ResourceDisabled, "the resource is off"):
        await _grants(limiter, {"rpm": 1})
    await limiter.bypass_entity("key", "gpt-4")
    true(await _grants(limiter, {"rpm": 500}), "a bypass admits")
    same(await limiter.available("key", "gpt-4"), {"rpm": -440}, "and counts")
    await limiter.enable_entity("key", "gpt-4")
    true(not await _grants(limiter, {"rpm": 1}), "limits decide again")


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
        true(await _grants(limiter, {"rpm": 1}), "there is enough")
        charged += cascades
        same(await limiter.available("org", "gpt-4"), {"rpm": 1_000 - charged}, f"the parent after step {number}")
    same(await limiter.resolve_cascade("key", "other"), True, "another resource is left alone")


CHECKS = checks_of(globals())
