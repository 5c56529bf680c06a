"""Several resources in one acquire: all of them or none, against books that are kept by hand."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING

from tests.conformance.expect import raises, same, true
from tests.conformance.room import at_once, beside, new_limiter
from zae_limiter.core.errors import CapacityExceeded, RateLimitExceeded, ResourceDisabled
from zae_limiter.core.limit import Limit
from zae_limiter.testing.conformance.check import check, checks_of

if TYPE_CHECKING:
    from zae_limiter.limiter.limiter import RateLimiter
    from zae_limiter.testing.harness import Harness

CAPACITIES = {"gpt-4": 20, "tools": 6, "search": 9}


@check
async def several_resources_are_taken_together_or_not_at_all(harness: Harness) -> None:
    """Two clients take one to three resources at two levels; a refusal leaves every balance as it was."""
    limiter, chance = await new_limiter(harness), Random(11)
    other = harness.limiter(harness.repository(namespace=limiter.repository.namespace), refusal_ttl=0)
    await limiter.create_entity("org")
    await limiter.create_entity("key", parent_id="org", cascade=True)
    for name, capacity in CAPACITIES.items():
        await limiter.set_resource_defaults(name, [Limit.per_hour("t", capacity)])
    held = dict(CAPACITIES)
    for _ in range(40):
        names = chance.sample(sorted(CAPACITIES), chance.randrange(1, 4))
        costs = {name: {"t": chance.randrange(4)} for name in names}
        fits, fails = all(cost["t"] <= held[name] for name, cost in costs.items()), chance.random() < 0.3
        try:
            async with chance.choice((limiter, other)).acquire("key", costs):
                true(fits, f"granted {costs} of {held}")
                if fails:
                    raise ZeroDivisionError
                held = {name: left - costs.get(name, {"t": 0})["t"] for name, left in held.items()}
        except RateLimitExceeded as refused:
            true(not fits, f"refused {costs} of {held}")
            same({each.resource for each in refused.statuses}, set(names), "it tells of all resources")
        except ZeroDivisionError:
            pass
        for who in ("key", "org"):
            left = {each.resource: each.available["t"] for each in await limiter.check_availability(who, sorted(held))}
            same(left, held, f"what {who} has left is in the books")


@check
async def each_of_several_resources_is_settled_on_its_own(harness: Harness) -> None:
    """Adjusted and given back by resource; the moment that is promised is the one at which all of it fits."""
    limiter = await new_limiter(harness)
    await limiter.set_resource_defaults("gpt-4", [Limit.per_minute("t", 10)])
    await limiter.set_resource_defaults("tools", [Limit.per_minute("t", 3)])
    async with limiter.acquire("key", {"gpt-4": {"t": 5}, "tools": {"t": 2}}) as lease:
        await lease.adjust(t=5)
        await lease.resource("tools").release(t=1)
    same(await limiter.available("key", "gpt-4"), {"t": 0}, "the lease itself is that of the first resource")
    same(await limiter.available("key", "tools"), {"t": 2}, "the other one is settled with it")
    both = {"gpt-4": {"t": 5}, "tools": {"t": 3}}
    with raises(RateLimitExceeded, "both have too little") as refused:
        await limiter.acquire("key", both).enter()
    same(refused.error.retry_after_seconds, 30.0, "the later of 30 and 20 seconds")
    harness.clock.advance_ms(29_999)
    with raises(RateLimitExceeded, "one millisecond early"):
        await limiter.acquire("key", both).enter()
    harness.clock.advance_ms(1)
    async with limiter.acquire("key", both):
        pass
    with raises(CapacityExceeded, "one of them never fits"):
        await limiter.acquire("key", {"gpt-4": {"t": 1}, "tools": {"t": 4}}).enter()
    await limiter.disable_resource("tools")
    with raises(ResourceDisabled, "one of them is off"):
        await limiter.acquire("key", {"gpt-4": {"t": 1}, "tools": {"t": 0}}).enter()


@check
async def as_many_of_several_resources_as_there_are(harness: Harness) -> None:
    """Of many who come at once, over several clients, as many are granted as the scarcer resource has, and no more.

    Where commits are not free, what one has taken for a moment may refuse another, and may come back in part.
    """
    limiter = await new_limiter(harness)
    await limiter.set_resource_defaults("gpt-4", [Limit.per_day("t", 10)])
    await limiter.set_resource_defaults("tools", [Limit.per_day("t", 7)])
    clients = [limiter, beside(harness, limiter), beside(harness, limiter)]
    left = await at_once(harness, [partial(_ask, clients[max(0, number - 20) % 3]) for number in range(30)])
    granted = sorted(each for each in left if each is not None)
    true(1 <= len(granted) <= 7, f"{len(granted)} were granted of seven")
    found = await limiter.check_availability("key", ["gpt-4", "tools"])
    sold = [10 - found[0].available["t"], 7 - found[1].available["t"]]
    true(min(sold) >= len(granted), "no token is sold twice")
    if limiter.repository.capabilities.free_atomic_commit:
        same(granted, [(number + 3, number) for number in range(7)], "each of seven saw what its own write had left")
        same(sold, [7, 7], "nothing was taken of those who were refused")


async def _ask(limiter: RateLimiter) -> tuple[int, int] | None:
    try:
        async with limiter.acquire("key", {"gpt-4": {"t": 1}, "tools": {"t": 1}}) as lease:
            return lease.available["t"], lease.resource("tools").available["t"]
    except RateLimitExceeded:
        return None


CHECKS = checks_of(globals())
