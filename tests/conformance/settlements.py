"""Settlements: unused tokens come back in full, overuse becomes debt, and both count when they come."""

from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING

from tests.conformance.expect import raises, same
from tests.conformance.room import beside, new_limiter, take
from tests.conformance.traffic import RESOURCE, Boom, host
from zae_limiter.core.errors import RateLimitExceeded
from zae_limiter.core.limit import Limit
from zae_limiter.testing.conformance.check import check, checks_of

if TYPE_CHECKING:
    from zae_limiter.limiter.lease import Lease
    from zae_limiter.limiter.limiter import RateLimiter
    from zae_limiter.testing.harness import Harness

DAILY = Limit.per_day("t", 100)
DAY_MS = 86_400_000


async def _limiter(harness: Harness, limit: Limit = DAILY) -> RateLimiter:
    limiter = await new_limiter(harness)
    await limiter.set_system_defaults([limit])
    return limiter


async def _open(limiter: RateLimiter, amount: int, entity_id: str = "key") -> Lease:
    """Enter a lease that its check leaves by hand, in the order that it is about."""
    lease = limiter.acquire(entity_id, RESOURCE, {"t": amount})
    await lease.__aenter__()
    return lease


async def _end(lease: Lease, change: int) -> None:
    await lease.adjust(t=change)
    await lease.__aexit__(None, None, None)


async def _left(limiter: RateLimiter, entity_id: str = "key") -> int:
    return (await limiter.available(entity_id, RESOURCE))["t"]


@check
async def overlapping_give_backs(harness: Harness) -> None:
    """Two clients give back what they took at the same time: each of them in full."""
    limiter = await _limiter(harness, Limit.per_second("t", 100))
    other = beside(harness, limiter)
    first, second = await _open(limiter, 50), await _open(other, 50)
    await _end(first, -50)
    harness.clock.advance(0.49)
    await take(limiter, "key", RESOURCE, [{"t": 99}])
    await _end(second, -50)
    same(await _left(limiter), 50, "all of it is there")
    await take(other, "key", RESOURCE, [{"t": 50}])


@check
async def overlapping_give_backs_unseen(harness: Harness) -> None:
    """The same by a client that has not seen what the other one gave back."""
    limiter = await _limiter(harness, Limit.per_second("t", 100))
    unaware = beside(harness, limiter)
    first, second = await _open(limiter, 50), await _open(unaware, 49)
    await take(unaware, "key", RESOURCE, [{"t": 1}])
    await _end(first, -50)
    harness.clock.advance(0.49)
    await take(limiter, "key", RESOURCE, [{"t": 99}])
    await _end(second, -49)
    same(await _left(limiter), 49, "all of it is there")


@check
async def debt_beside_give_backs_unseen(harness: Harness) -> None:
    """A client owes that has not seen what others gave back: the level falls by exactly that."""
    limiter = await _limiter(harness)
    unaware = beside(harness, limiter)
    first, second = await _open(limiter, 60), await _open(unaware, 30)
    harness.clock.advance_ms(DAY_MS // 2)
    await _end(first, -60)
    await _end(second, 20)
    same(await _left(limiter), 80, "it was full before that")


@check
async def nothing_of_a_limit_in_debt(harness: Harness) -> None:
    """A cost of 0 is refused in debt, also to a client that has not seen the debt."""
    limiter = await _limiter(harness)
    unaware = beside(harness, limiter)
    lease = await _open(limiter, 1)
    await take(unaware, "key", RESOURCE, [{"t": 0}])
    await _end(lease, 200)
    for who in (limiter, unaware):
        with raises(RateLimitExceeded, "nothing, in debt"):
            await take(who, "key", RESOURCE, [{"t": 0}])


@check
async def failures_in_any_order(harness: Harness) -> None:
    """Calls that fail give back all they took, also the first of them last."""
    limiter = await _limiter(harness)
    for order in permutations(range(4)):
        leases = [await _open(limiter, amount) for amount in (30, 1, 40, 7)]
        for place in order:
            await leases[place].__aexit__(Boom, Boom(), None)
        same(await _left(limiter), 100, f"all are back in the order {order}")


@check
async def give_back_beside_others(harness: Harness) -> None:
    """A give-back is a plain add, whatever others have taken since; a level above the capacity is cut."""
    for seconds, left in ((4, 80), (7, 100)):
        limiter = await _limiter(harness, Limit("t", 100, 10, 1))
        lease = await _open(limiter, 60)
        await take(limiter, "key", RESOURCE, [{"t": 30}])
        harness.clock.advance(seconds)
        await take(limiter, "key", RESOURCE, [{"t": 40}])
        harness.clock.advance(1)
        await _end(lease, -60)
        same(await _left(limiter), left, f"60 came back after {seconds} s")
        await take(limiter, "key", RESOURCE, [{"t": left}])
        with raises(RateLimitExceeded, "more than there is"):
            await take(limiter, "key", RESOURCE, [{"t": 1}])


@check
async def a_draw_that_met_more_than_was_seen(harness: Harness) -> None:
    """A client that has not seen what others gave back loses nothing of it."""
    limiter = await _limiter(harness, Limit("t", 100, 10, 1))
    unaware, giver = beside(harness, limiter), beside(harness, limiter)
    large = await _open(giver, 60)
    await take(unaware, "key", RESOURCE, [{"t": 30}])
    await _end(large, -60)
    lease = await _open(limiter, 30)
    harness.clock.advance(4.5)
    await take(unaware, "key", RESOURCE, [{"t": 40}])
    await _end(lease, -30)
    same(await _left(limiter), 75, "45 and the 30 that came back")


@check
async def beyond_the_capacity(harness: Harness) -> None:
    """Tokens that come back to a full bucket are not kept for later: neither by who gave them nor by another."""
    limiter = await _limiter(harness, Limit("t", 100, 10, 1))
    for who in (limiter, beside(harness, limiter)):
        lease = await _open(limiter, 60)
        harness.clock.advance(6)
        await _end(lease, -60)
        await take(who, "key", RESOURCE, [{"t": 100}])
        with raises(RateLimitExceeded, "the capacity was taken"):
            await take(who, "key", RESOURCE, [{"t": 1}])
        harness.clock.advance(10)


@check
async def returns_add_up(harness: Harness) -> None:
    """Several returns of one time count together for all that was taken."""
    for by_another in (False, True):
        limiter = await _limiter(harness, Limit.per_second("t", 100))
        other = beside(harness, limiter) if by_another else limiter
        first, second = await _open(limiter, 50), await _open(other, 50)
        harness.clock.advance(0.74)
        await take(limiter, "key", RESOURCE, [{"t": 74}])
        for lease in (second, first):
            await lease.__aexit__(Boom, Boom(), None)
        same(await _left(limiter), 100, "both are back")


@check
async def give_back_after_a_raised_rate(harness: Harness) -> None:
    """What was produced at a raised rate since the charge stays, and the give-back is added."""
    limiter = await _limiter(harness, Limit("t", 100, 1, 1))
    lease = await _open(limiter, 50)
    harness.clock.advance(1)
    await limiter.set_system_defaults([Limit("t", 100, 10, 1)])
    await take(limiter, "key", RESOURCE, [{"t": 0}])
    harness.clock.advance(3)
    await take(limiter, "key", RESOURCE, [{"t": 80}])
    await _end(lease, -50)
    same(await _left(limiter), 51, "1 of 81 was left")


@check
async def give_back_after_a_cut_capacity(harness: Harness) -> None:
    """A give-back is cut at the capacity in force; one that was cut and raised again while it was open counts all."""
    for raised, left in ((10, 10), (100, 55)):
        limiter = await _limiter(harness, Limit("t", 100, 1, 1))
        lease = await _open(limiter, 50)
        for capacity, cost in ((10, 10), (raised, 0)):
            await limiter.set_system_defaults([Limit("t", capacity, 1, 1)])
            await take(limiter, "key", RESOURCE, [{"t": cost}])
        harness.clock.advance(5)
        await _end(lease, -50)
        same(await _left(limiter), left, f"10 were taken after the cut; then the capacity is {raised}")


@check
async def the_past_is_not_rated_again(harness: Harness) -> None:
    """A client whose clock is behind and that meets other rates first neither mints nor takes anything."""
    for before, after, owes in ((100, 1_000, False), (1_000, 100, False), (100, 1_000, True), (1_000, 100, True)):
        ahead = await _limiter(harness, Limit("t", 10_000, before, 1))
        store = host(harness.store(), -2_000)
        behind = harness.limiter(harness.repository(store, namespace=ahead.repository.namespace))
        lease = await _open(ahead, 1)
        harness.clock.advance(3)
        store.clock.advance(3)
        await (_end(lease, 10_000) if owes else take(ahead, "key", RESOURCE, [{"t": 10_000}]))
        await behind.set_system_defaults([Limit("t", 10_000, after, 1)])
        await take(behind, "key", RESOURCE, [{"t": 0}])
        same(await _left(beside(harness, ahead)), 0, f"from {before} to {after} a second")


@check
async def debt_to_a_reset_bucket(harness: Harness) -> None:
    """A bucket that is gone is made anew under the limits in force, and owes what is owed."""
    limiter = await _limiter(harness)
    lease = await _open(limiter, 10)
    await limiter.set_system_defaults([Limit.per_day("t", 1_000)])
    await limiter.reset_bucket("key", RESOURCE)
    await _end(lease, 400)
    same(await _left(limiter), 600, "400 of the 1,000 in force")
    (state,) = await limiter.get_buckets("key")
    same(state.capacity_milli, 1_000_000, "under the limits in force")


@check
async def debt_counts_when_it_comes(harness: Harness) -> None:
    """Debt lowers the level by exactly what is owed, whether the bucket was kept or made anew since the charge."""
    limiter = await _limiter(harness, Limit("t", 100, 1, 1))
    leases = {who: await _open(limiter, 100, who) for who in ("reset", "kept", "forgotten")}
    harness.clock.advance(150)
    for who in ("reset", "forgotten"):
        await limiter.reset_bucket(who, RESOURCE)
    await take(limiter, "reset", RESOURCE, [{"t": 0}])
    for who, lease in leases.items():
        await _end(lease, 120)
        same(await _left(limiter, who), -20, f"120 of the 100 that there were: {who}")


@check
async def a_quota_is_settled_after_its_window(harness: Harness) -> None:
    """Overuse of yesterday is owed today, whoever has called in between; what was not used stays yesterday's."""
    for rollover, change, others, left in ((0, 50, 0, 50), (0, 50, 1, 49), (0, -10, 5, 95), (50, -10, 5, 145)):
        limiter = await _limiter(harness, Limit.quota("t", 100, every="day", rollover=rollover))
        harness.clock.set_ms(harness.clock.now_ms() // DAY_MS * DAY_MS + DAY_MS - 60_000)
        await take(limiter, "key", RESOURCE, [{"t": 2 * rollover}])
        lease = await _open(limiter, 10)
        harness.clock.advance(120)
        await take(limiter, "key", RESOURCE, [{"t": others}] if others else [])
        await _end(lease, change)
        same(await _left(limiter), left, f"10 of yesterday, {change} after midnight, {others} taken today")


@check
async def a_late_clock_gives_nothing_back_to_the_next_window(harness: Harness) -> None:
    """A client that takes it for yesterday still settles as of the instant that others have charged at: midnight."""
    limiter = await _limiter(harness, Limit.quota("t", 100, every="day"))
    harness.clock.set_ms(harness.clock.now_ms() // DAY_MS * DAY_MS + DAY_MS - 60_000)
    store = host(harness.store(), -300_000)
    late = harness.limiter(harness.repository(store, namespace=limiter.repository.namespace))
    lease = await _open(late, 60)
    harness.clock.advance(60)
    store.clock.advance(60)
    await take(limiter, "key", RESOURCE, [{"t": 70}])
    await _end(lease, -60)
    same(await _left(limiter), 30, "what was taken yesterday is yesterday's")


@check
async def tokens_of_a_limit_that_counts_slots_by_now(harness: Harness) -> None:
    """They are settled while it does, by several clients, and found when it counts tokens again."""
    limiter = await _limiter(harness)
    other = beside(harness, limiter)
    first, second, third = await _open(limiter, 30), await _open(other, 20), await _open(limiter, 10)
    slots = [Limit.concurrent("t", 3), Limit.per_day("rpd", 100)]
    await limiter.set_system_defaults(slots)
    for client in (limiter, beside(harness, limiter), limiter):
        await take(client, "key", RESOURCE, [{"rpd": 1}])
    for lease, change in ((first, -30), (second, -5), (third, 7)):
        await _end(lease, change)
    await limiter.set_system_defaults([DAILY])
    same(await _left(limiter), 40 + 35 - 7, "as if it had counted tokens all the time")


@check
async def give_back_to_a_bucket_made_since(harness: Harness) -> None:
    """A new bucket is given nothing back, not even in the same millisecond by a client that has not seen the reset."""
    limiter = await _limiter(harness)
    for number, other in enumerate((beside(harness, limiter), limiter)):
        for deletes in (False, True):
            key = f"key-{number}-{deletes}"
            await limiter.create_entity(key)
            lease = await _open(limiter, 60, key)
            await take(limiter, key, RESOURCE, [{"t": 1}])
            await (other.delete_entity(key) if deletes else other.reset_bucket(key, RESOURCE))
            await take(other, key, RESOURCE, [{"t": 50}, {"t": 30}])
            await _end(lease, -60)
            same(await _left(other, key), 20, "what the new one had left")


@check
async def give_back_after_a_deletion_and_changed_limits(harness: Harness) -> None:
    """The same where, in that millisecond, a client that has not seen it moves the new one to other limits."""
    limiter = await _limiter(harness, Limit.per_day("t", 10))
    await limiter.create_entity("key")
    unaware = beside(harness, limiter)
    await take(unaware, "key", RESOURCE, [{"t": 1}])
    lease = await _open(limiter, 5)
    await unaware.set_system_defaults([Limit.per_day("t", 20)])
    await limiter.delete_entity("key")
    await take(limiter, "key", RESOURCE, [{"t": 2}])
    await take(unaware, "key", RESOURCE, [{"t": 2}])
    left = await _left(beside(harness, limiter))
    await _end(lease, -4)
    same(await _left(beside(harness, limiter)), left, "nothing came back to the new one")


CHECKS = checks_of(globals())
