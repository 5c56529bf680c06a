"""Thresholds: whoever crosses one announces it, once over all clients."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from datetime import timedelta
from random import Random
from typing import TYPE_CHECKING

from tests.conformance.expect import same, true
from tests.conformance.room import beside, grants, new_limiter, new_limiters
from tests.conformance.soft import HOUR_MS, RATE, SoftBooks
from zae_limiter.core.errors import RateLimitExceeded
from zae_limiter.core.limit import Limit
from zae_limiter.core.values import AuditAction, AuditEvent
from zae_limiter.observer import Observer
from zae_limiter.records import audit, keys
from zae_limiter.records.algebra import Query
from zae_limiter.testing.conformance.check import check, checks_of

if TYPE_CHECKING:
    from zae_limiter.core.alerts import Alert
    from zae_limiter.limiter.lease import Lease
    from zae_limiter.limiter.limiter import RateLimiter
    from zae_limiter.stores.port import Store
    from zae_limiter.testing.harness import Harness


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
    true(await grants(clients[0], {"tpd": 0, "tph": 0}), "the bucket is older than the thresholds")
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


CHECKS = checks_of(globals())
