"""Settlements: a bucket ends where it would be had the estimate been right from the start."""

from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING

from ...core.errors import RateLimitExceeded
from ...core.limit import Limit
from .check import check, checks_of
from .expect import raises, same
from .room import beside, new_limiter, take
from .traffic import RESOURCE, Boom, host

if TYPE_CHECKING:
    from ...limiter.lease import Lease
    from ...limiter.limiter import RateLimiter
    from ..harness import Harness

DAILY = Limit.per_day("t", 100)


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
    """Two clients give back what they took at the same time: together no more than the capacity is ever there."""
    limiter = await _limiter(harness, Limit.per_second("t", 100))
    other = beside(harness, limiter)
    first, second = await _open(limiter, 50), await _open(other, 50)
    await _end(first, -50)
    harness.clock.advance(0.49)
    await take(limiter, "key", RESOURCE, [{"t": 99}])
    await _end(second, -50)
    same(await _left(limiter), 1, "99 would have been met as 100: 1 is left of the second 50")
    with raises(RateLimitExceeded, "149 in one instant"):
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
    same(await _left(limiter), 0, "99 would have been met as 100, of which 1 was taken")


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
    """While no draw has met three quarters, a quarter counts however much was refilled; afterwards it does not."""
    for seconds, left in ((4, 45), (7, 50)):
        limiter = await _limiter(harness, Limit("t", 100, 10, 1))
        lease = await _open(limiter, 60)
        await take(limiter, "key", RESOURCE, [{"t": 30}])
        harness.clock.advance(seconds)
        await take(limiter, "key", RESOURCE, [{"t": 40}])
        harness.clock.advance(1)
        await _end(lease, -60)
        same(await _left(limiter), left, f"{10 + 10 * seconds} were met")


@check
async def a_draw_that_met_more_than_was_seen(harness: Harness) -> None:
    """A client that has not seen what others gave back says nothing wrong of the bucket that it has met."""
    limiter = await _limiter(harness, Limit("t", 100, 10, 1))
    unaware, giver = beside(harness, limiter), beside(harness, limiter)
    large = await _open(giver, 60)
    await take(unaware, "key", RESOURCE, [{"t": 30}])
    await _end(large, -60)
    lease = await _open(limiter, 30)
    harness.clock.advance(4.5)
    await take(unaware, "key", RESOURCE, [{"t": 40}])
    await _end(lease, -30)
    same(await _left(limiter), 60, "85 would have been met as 100")


@check
async def undone_at_once(harness: Harness) -> None:
    """What was taken and given back with nothing in between makes up for nothing else."""
    limiter = await _limiter(harness, Limit.per_second("t", 100))
    first, second = await _open(limiter, 50), await _open(limiter, 50)
    await second.__aexit__(Boom, Boom(), None)
    harness.clock.advance(0.4)
    await take(limiter, "key", RESOURCE, [{"t": 90}])
    await first.__aexit__(Boom, Boom(), None)
    same(await _left(limiter), 10, "90 of 100 were kept")


@check
async def returns_share_the_room(harness: Harness) -> None:
    """Several returns of one time count together for no more than there is room for."""
    for by_another in (False, True):
        limiter = await _limiter(harness, Limit.per_second("t", 100))
        other = beside(harness, limiter) if by_another else limiter
        first, second = await _open(limiter, 50), await _open(other, 50)
        harness.clock.advance(0.74)
        await take(limiter, "key", RESOURCE, [{"t": 74}])
        for lease in (second, first):
            await lease.__aexit__(Boom, Boom(), None)
        same(await _left(limiter), 26, "74 of 100 were kept")


@check
async def give_back_after_a_raised_rate(harness: Harness) -> None:
    """What was produced at a raised rate since the charge counts."""
    limiter = await _limiter(harness, Limit("t", 100, 1, 1))
    lease = await _open(limiter, 50)
    harness.clock.advance(1)
    await limiter.set_system_defaults([Limit("t", 100, 10, 1)])
    await take(limiter, "key", RESOURCE, [{"t": 0}])
    harness.clock.advance(3)
    await take(limiter, "key", RESOURCE, [{"t": 80}])
    await _end(lease, -50)
    same(await _left(limiter), 20, "81 would have been met as 100")


@check
async def give_back_after_a_cut_capacity(harness: Harness) -> None:
    """The lowest capacity since the charge is all that would have been there."""
    limiter = await _limiter(harness, Limit("t", 100, 1, 1))
    lease = await _open(limiter, 50)
    await limiter.set_system_defaults([Limit("t", 10, 1, 1)])
    await take(limiter, "key", RESOURCE, [{"t": 10}])
    harness.clock.advance(5)
    await _end(lease, -50)
    same(await _left(limiter), 5, "the cut would have left 10, and these were spent")


@check
async def the_past_is_not_rated_again(harness: Harness) -> None:
    """A client whose clock is behind and that meets other rates first neither mints nor takes anything."""
    for before, after in ((100, 1_000), (1_000, 100)):
        ahead = await _limiter(harness, Limit("t", 10_000, before, 1))
        store = host(harness.store(), -2_000)
        behind = harness.limiter(harness.repository(store, namespace=ahead.repository.namespace))
        await take(ahead, "key", RESOURCE, [{"t": 1}])
        harness.clock.advance(3)
        store.clock.advance(3)
        await take(ahead, "key", RESOURCE, [{"t": 10_000}])
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
async def debt_that_was_repaid(harness: Harness) -> None:
    """What the refill has repaid since the charge is not owed, whether the bucket was kept or is gone."""
    limiter = await _limiter(harness, Limit("t", 100, 1, 1))
    leases = {who: await _open(limiter, 100, who) for who in ("reset", "kept")}
    harness.clock.advance(150)
    await limiter.reset_bucket("reset", RESOURCE)
    for who, lease in leases.items():
        await _end(lease, 120)
        same(await _left(limiter, who), 30, f"150 of 220 are repaid: {who}")


@check
async def give_back_to_a_bucket_made_since(harness: Harness) -> None:
    """A new bucket is given nothing back, not even in the same millisecond by a client that has not seen the reset."""
    limiter = await _limiter(harness)
    other = beside(harness, limiter)
    lease = await _open(limiter, 60)
    await take(limiter, "key", RESOURCE, [{"t": 1}])
    await other.reset_bucket("key", RESOURCE)
    await take(other, "key", RESOURCE, [{"t": 80}])
    await _end(lease, -60)
    same(await _left(other), 20, "what the new one had left")


@check
async def give_back_after_a_reset_and_changed_limits(harness: Harness) -> None:
    """The same where, in that millisecond, a client that has not seen the reset moves the new one to other limits."""
    limiter = await _limiter(harness, Limit.per_day("t", 10))
    unaware = beside(harness, limiter)
    await take(unaware, "key", RESOURCE, [{"t": 1}])
    lease = await _open(limiter, 5)
    await unaware.set_system_defaults([Limit.per_day("t", 20)])
    await limiter.reset_bucket("key", RESOURCE)
    await take(limiter, "key", RESOURCE, [{"t": 2}])
    await take(unaware, "key", RESOURCE, [{"t": 2}])
    left = await _left(beside(harness, limiter))
    await _end(lease, -4)
    same(await _left(beside(harness, limiter)), left, "nothing came back to the new one")


CHECKS = checks_of(globals())
