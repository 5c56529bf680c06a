"""Soft limits: they refuse nobody, and count to the millitoken what was taken beyond them."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from tests.conformance.expect import same, true
from tests.conformance.room import at_once, beside, grants, new_limiter, new_limiters
from zae_limiter.core.limit import Limit
from zae_limiter.records.ledger import kept_ms
from zae_limiter.testing.conformance.check import check, checks_of

if TYPE_CHECKING:
    from zae_limiter.testing.harness import Harness

RATE = Limit.per_minute("rpm", 120, burst=60)
SOFT = Limit.per_hour("tph", 500, soft=True)
HOUR_MS = 3_600_000


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
    await limiter.set_limits("new", [RATE])
    true(await grants(limiter, {"rpm": 1}, entity_id="new"), "of a bucket without it")
    await limiter.set_limits("new", [RATE, SOFT])
    true(await grants(limiter, {"tph": 501}, entity_id="new"), "it is overdrawn at once")
    (state,) = [state for state in await limiter.get_buckets("new") if state.limit_name == "tph"]
    same((state.tokens_milli, state.total_overdrawn_milli), (-1_000, 1_000), "by how much")


@check
async def the_debt_of_a_new_bucket_is_not_forgotten(harness: Harness) -> None:
    """What the first request takes of a soft limit is kept until it has been refilled, of a rate and of a quota."""
    for limit in (SOFT, Limit.quota("tph", 500, every="hour", soft=True)):
        limiter = await new_limiter(harness)
        await limiter.set_system_defaults([limit])
        hours = 24 + kept_ms(limiter.repository.capabilities.usage_retention_days) // HOUR_MS
        true(await grants(limiter, {"tph": 500 * (hours + 24)}), "a soft limit refuses nobody")
        harness.clock.advance(3_600 * hours)
        same(await beside(harness, limiter).available("key", "gpt-4"), {"tph": -500 * 23}, "a day is left to be paid")


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
        true(await grants(clients[1], {"tph": 30}), "20 of these are not there")
        await lease.release(tph=400)
    true(await grants(clients[1], {"tph": 100}), "these are")
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
        true(await grants(other, {"tph": 450}), "40 are left")
        await lease.adjust(tph=100)
    (state,) = await unaware.get_buckets("key")
    same((state.tokens_milli, state.total_overdrawn_milli), (-60_000, 60_000), "what was overdrawn")


CHECKS = checks_of(globals())
