"""Levels: hierarchies of entities, and the four levels at which limits are stored."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from tests.conformance.expect import raises, same, true
from tests.conformance.oracle import balances, same_balances
from tests.conformance.room import beside, new_limiter, take
from tests.conformance.traffic import RESOURCE, Boom
from zae_limiter.core.errors import EntityNotFoundError, RateLimitExceeded, ResourceDisabled, ValidationError
from zae_limiter.core.limit import Limit
from zae_limiter.testing.conformance.check import check, checks_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from zae_limiter.limiter.limiter import RateLimiter
    from zae_limiter.testing.harness import Harness

CHAIN = ("key", "project", "org")


async def _chain(harness: Harness, **capacities: int) -> RateLimiter:
    """Key, project and org, each charging the one above, with so many tokens each."""
    limiter = await new_limiter(harness)
    for entity_id, parent_id in (("org", None), ("project", "org"), ("key", "project")):
        await limiter.create_entity(entity_id, parent_id=parent_id, cascade=True)
        await limiter.set_limits(entity_id, [Limit.per_hour("tpm", capacities[entity_id])])
    return limiter


async def _left(limiter: RateLimiter) -> dict[str, int]:
    rows = await limiter.get_status("key", RESOURCE)
    return {row.entity_id: row.available for row in rows}


@check
async def three_levels(harness: Harness) -> None:
    """One acquire charges the entity and all above it; settlement and failure go all the way up too."""
    limiter = await _chain(harness, key=100, project=200, org=300)
    async with limiter.acquire("key", RESOURCE, {"tpm": 50}) as lease:
        same(lease.consumed, {"tpm": 50}, "counted once, not once per level")
        same(await _left(limiter), {"key": 50, "project": 150, "org": 250}, "every level is charged")
        await lease.adjust(tpm=70)
    same(await _left(limiter), {"key": -20, "project": 80, "org": 180}, "every level is settled")
    harness.clock.advance(2 * 3_600)
    with raises(Boom):
        async with limiter.acquire("key", RESOURCE, {"tpm": 100}):
            raise Boom
    same(await _left(limiter), {"key": 100, "project": 200, "org": 300}, "every level gets it back")
    async with limiter.acquire("project", RESOURCE, {"tpm": 150}):
        same(await _left(limiter), {"key": 100, "project": 50, "org": 150}, "those below are not charged")
    same(await limiter.available("key", RESOURCE), {"tpm": 50}, "what is left is the least of all levels")


@check
async def any_level_refuses(harness: Harness) -> None:
    """A refusal at any level leaves all of them as they were, and shows all of them."""
    for tight in CHAIN:
        limiter = await _chain(harness, **{**dict.fromkeys(CHAIN, 100), tight: 60})
        other = beside(harness, limiter)
        for who in (limiter, other):
            await take(who, "key", RESOURCE, [{"tpm": 20}])
        before = await balances(limiter, CHAIN, harness.clock.now_ms())
        for who in (limiter, other):
            with raises(RateLimitExceeded, f"{tight} has 20 left") as refused:
                await take(who, "key", RESOURCE, [{"tpm": 21}])
            same([status.entity_id for status in refused.error.violations], [tight], "it names who refused")
            same(sorted(status.entity_id for status in refused.error.statuses), sorted(CHAIN), "and shows all")
        same_balances(await balances(limiter, CHAIN, harness.clock.now_ms()), before, "all as they were")


@check
async def no_cascade(harness: Harness) -> None:
    """Without ``cascade`` the parent is not charged; turned on, it is from then on."""
    limiter = await _chain(harness, key=100, project=100, org=100)
    await limiter.update_entity("project", cascade=False)
    await take(limiter, "key", RESOURCE, [{"tpm": 10}])
    same(await _left(limiter), {"key": 90, "project": 90}, "the chain ends where nobody passes on")
    await limiter.update_entity("project", cascade=True)
    await take(limiter, "key", RESOURCE, [{"tpm": 10}])
    same(await _left(limiter), {"key": 80, "project": 80, "org": 90}, "and goes on again")


@check
async def no_cycles(harness: Harness) -> None:
    """A hierarchy is a tree: no cycle, no unknown parent, no deeper than eight levels."""
    limiter = await _chain(harness, key=1, project=1, org=1)
    for parent_id in CHAIN:
        with raises(ValidationError, f"org under {parent_id} would be a cycle"):
            await limiter.update_entity("org", parent_id=parent_id)
    with raises(EntityNotFoundError, "an unknown parent"):
        await limiter.create_entity("new", parent_id="nobody")
    for number in range(5):
        await limiter.create_entity(f"deep-{number}", parent_id=f"deep-{number - 1}" if number else "key")
    with raises(ValidationError, "a ninth level"):
        await limiter.create_entity("deep-5", parent_id="deep-4")


@check
async def family_tree(harness: Harness) -> None:
    """Children are found by their parent, move with it, and keep it from being deleted."""
    limiter = await new_limiter(harness)
    for entity_id in ("a", "b"):
        await limiter.create_entity(entity_id)
    for number in (2, 0, 1):
        await limiter.create_entity(f"child-{number}", parent_id="a", metadata={"number": number})
    same([child.id for child in await limiter.get_children("a")], ["child-0", "child-1", "child-2"], "by id")
    await limiter.update_entity("child-1", parent_id="b")
    await limiter.update_entity("child-2", parent_id=None)
    same([child.id for child in await limiter.get_children("a")], ["child-0"], "one moved, one left")
    same([child.id for child in await limiter.get_children("b")], ["child-1"], "to here")
    with raises(ValidationError, "it has a child"):
        await limiter.delete_entity("a")
    await limiter.delete_entity("child-0")
    await limiter.delete_entity("a")
    same(await limiter.get_entity("a"), None, "gone")


@check
async def which_limits(harness: Harness) -> None:
    """Entity and resource before entity before resource before system; what is deleted falls back."""
    limiter = await new_limiter(harness)
    repository = limiter.repository
    with raises(ValidationError, "no limits anywhere is an error, not unlimited"):
        await take(limiter, "key", RESOURCE, [{"rpm": 1}])
    await limiter.set_system_defaults([Limit.per_minute("rpm", 1)], on_unavailable="allow")
    await limiter.set_resource_defaults(RESOURCE, [Limit.per_minute("rpm", 2)])
    await limiter.set_limits("key", [Limit.per_minute("rpm", 3)])
    await limiter.set_limits("key", [Limit.per_minute("rpm", 4)], resource=RESOURCE)
    steps: tuple[tuple[int, str, Callable[[], Coroutine[Any, Any, None]]], ...] = (
        (4, "entity", lambda: limiter.delete_limits("key", RESOURCE)),
        (3, "entity_default", lambda: limiter.delete_limits("key")),
        (2, "resource", lambda: limiter.delete_resource_defaults(RESOURCE)),
        (1, "system", limiter.delete_system_defaults),
    )
    for capacity, source, delete in steps:
        limits, _, found = await repository.resolve_limits("key", RESOURCE)
        same(([limit.capacity for limit in limits or ()], found), ([capacity], source), f"from {source}")
        await delete()
    same(await repository.resolve_limits("key", RESOURCE), (None, None, None), "nothing is left")
    same(await repository.resolve_limits("other", "else"), (None, None, None), "nor for others")


@check
async def changed_limits_apply(harness: Harness) -> None:
    """A changed limit applies to buckets that exist: a raise keeps the tokens, a cut clamps them, debt stays debt."""
    limiter = await new_limiter(harness)
    await limiter.set_limits("key", [Limit.per_hour("tpm", 100)])
    await take(limiter, "key", RESOURCE, [{"tpm": 30}])
    harness.clock.advance(54)  # makes one and a half at the old rate, fifteen at the new one
    for capacity, left in ((1_000, 71), (50, 50), (100, 50)):
        await limiter.set_limits("key", [Limit.per_hour("tpm", capacity)])
        for _ in range(2):
            same(await limiter.available("key", RESOURCE), {"tpm": left}, f"after a change to {capacity}")
            await take(limiter, "key", RESOURCE, [{"tpm": 0}])
    harness.clock.advance(86_400)
    await limiter.set_limits("key", [Limit.per_hour("tpm", 1_000)])
    same(await limiter.available("key", RESOURCE), {"tpm": 100}, "a raise does not fill what was full")
    await take(limiter, "key", RESOURCE, [{"tpm": 50}])
    same(await limiter.available("key", RESOURCE), {"tpm": 50}, "nor does it when it is written down")
    async with limiter.acquire("key", RESOURCE, {"tpm": 50}) as lease:
        await lease.adjust(tpm=500)
    await limiter.set_limits("key", [Limit.per_hour("tpm", 3_600)])
    same(await limiter.available("key", RESOURCE), {"tpm": -500}, "debt stays debt")
    with raises(RateLimitExceeded, "in debt") as refused:
        await take(limiter, "key", RESOURCE, [{"tpm": 1}])
    same(refused.error.retry_after_seconds, 501.0, "paid at the new rate")
    harness.clock.advance(501)
    await take(limiter, "key", RESOURCE, [{"tpm": 1}])


@check
async def changed_at_once(harness: Harness) -> None:
    """Limits that change several times in one millisecond neither make nor lose a token, at any rate."""
    limiter = await new_limiter(harness)
    fast, faster = Limit.per_second("tps", 10**6), Limit.per_second("tps", 10**6, burst=2 * 10**6)
    await limiter.set_limits("key", [fast])
    await take(limiter, "key", RESOURCE, [{"tps": 10**6 - 100}])
    for limits in ([faster], [fast], [faster]):
        await limiter.set_limits("key", limits)
        await take(limiter, "key", RESOURCE, [{"tps": 10}])
    await limiter.set_limits("key", [faster, Limit.per_second("more", 10**6)])
    await take(limiter, "key", RESOURCE, [{"more": 10_000}])
    same(await limiter.available("key", RESOURCE), {"tps": 70, "more": 990_000}, "nothing but that was taken")
    harness.clock.advance_ms(1)
    same(await limiter.available("key", RESOURCE), {"tps": 1_070, "more": 991_000}, "a millisecond makes a thousand")


@check
async def limits_come_and_go(harness: Harness) -> None:
    """A limit that is dropped and comes back has refilled as if it had been there, and is not a new one."""
    one, other = Limit.per_hour("one", 100), Limit.per_hour("other", 3_600)
    for whose in ("key", None):
        limiter = await new_limiter(harness)
        change = partial(limiter.set_limits, whose) if whose else partial(limiter.set_resource_defaults, RESOURCE)
        await change([one, other])
        await take(limiter, "key", RESOURCE, [{"one": 10, "other": 3_600}])
        await change([one])
        for _ in range(3):
            harness.clock.advance(10)
            await take(limiter, "key", RESOURCE, [{"one": 1}])
        await change([one, other])
        same(await limiter.available("key", RESOURCE), {"one": 87, "other": 30}, "thirty seconds make thirty")
        await take(limiter, "key", RESOURCE, [{"other": 30}])
        with raises(RateLimitExceeded, "no more than that"):
            await take(limiter, "key", RESOURCE, [{"other": 1}])


@check
async def news_travels_with_the_bucket(harness: Harness) -> None:
    """A client whose config is cached learns of a change from the first bucket charged under it, not in a minute."""
    limiter = await new_limiter(harness)
    await limiter.set_resource_defaults(RESOURCE, [Limit.per_hour("tpm", 100)])
    stale, informed = beside(harness, limiter), beside(harness, limiter)
    await take(stale, "key", RESOURCE, [{"tpm": 10}])
    await limiter.set_resource_defaults(RESOURCE, [Limit.per_hour("tpm", 20)])
    await take(informed, "key", RESOURCE, [{"tpm": 15}])
    with raises(RateLimitExceeded, "5 are left under the new limit, 75 under the old one"):
        await take(stale, "key", RESOURCE, [{"tpm": 6}])
    await take(stale, "key", RESOURCE, [{"tpm": 5}])


@check
async def floors_travel_with_the_bucket(harness: Harness) -> None:
    """A client learns of a change that the limits stored in a bucket do not show, as soon as another has charged it."""
    low, high = (Limit.per_hour("tpm", 100, floors={"batch": part}) for part in (0.1, 0.5))
    limiter = await new_limiter(harness)
    await limiter.set_resource_defaults(RESOURCE, [low])
    stale, informed = beside(harness, limiter), beside(harness, limiter)
    await take(stale, "key", RESOURCE, [{"tpm": 10}])
    await limiter.set_resource_defaults(RESOURCE, [high])
    await take(informed, "key", RESOURCE, [{"tpm": 10}])
    with raises(RateLimitExceeded, "50 of the 80 that are left have to stay"):
        async with stale.acquire("key", RESOURCE, {"tpm": 40}, priority="batch"):
            pass


@check
async def a_limit_of_another_kind(harness: Harness) -> None:
    """A quota becomes a rate of the same numbers, and a quota again: what is left stays, and refills as it should."""
    limiter = await new_limiter(harness)
    rate = Limit.per_day("tpm", 86_400)
    quotas = Limit.quota("tpm", 86_400), Limit.quota("tpm", 86_400, reset_after=timedelta(days=1))
    left = 86_400
    for quota in quotas:
        await limiter.set_limits("key", [quota])
        await take(limiter, "key", RESOURCE, [{"tpm": 1_000}])
        await limiter.set_limits("key", [rate])
        await take(limiter, "key", RESOURCE, [{"tpm": 1_000}, {"tpm": 500}])
        left -= 2_500
        for _ in range(2):
            harness.clock.advance(100)
            await take(limiter, "key", RESOURCE, [{"tpm": 10}])
            left += 90
            same(await limiter.available("key", RESOURCE), {"tpm": left}, "a hundred seconds make a hundred")


@check
async def changes_count_from_their_instant(harness: Harness) -> None:
    """Old limits until the change, new ones since, however late a bucket is used, and whether somebody looks at it."""
    for looks in (False, True):
        limiter = await new_limiter(harness)
        fast, slow = Limit.per_second("tpm", 1_000), Limit("tpm", 1_000, 1, 1)
        await limiter.set_limits("key", [fast])
        await take(limiter, "key", RESOURCE, [{"tpm": 1_000}])
        harness.clock.advance_ms(100)
        await limiter.set_limits("key", [slow])
        if looks:
            await limiter.check_availability("key", RESOURCE, {"tpm": 1})
        harness.clock.advance(60)
        same(await limiter.available("key", RESOURCE), {"tpm": 160}, "100 ms at the old rate, a minute at the new one")
        with raises(RateLimitExceeded, "no more than that") as refused:
            await take(limiter, "key", RESOURCE, [{"tpm": 160}, {"tpm": 2}])
        same(refused.error.retry_after_seconds, 2.0, "at the new rate")


@check
async def changes_of_an_entity_reach_every_process(harness: Harness) -> None:
    """A process that has cached the config of an entity follows a change of it with its next write."""
    limiter = await new_limiter(harness)
    await limiter.set_limits("key", [Limit.per_hour("tpm", 100)])
    others = [beside(harness, limiter) for _ in range(2)]
    for other in others:
        await take(other, "key", RESOURCE, [{"tpm": 10}])
    await limiter.set_limits("key", [Limit.per_hour("tpm", 20)])
    with raises(RateLimitExceeded, "cut to 20"):
        await take(others[0], "key", RESOURCE, [{"tpm": 20}, {"tpm": 1}])
    await limiter.disable_entity("key")
    for other in others:
        with raises(ResourceDisabled, "nothing is granted any more"):
            await take(other, "key", RESOURCE, [{"tpm": 0}])
    await limiter.enable_entity("key")
    same(await limiter.available("key", RESOURCE), {"tpm": 0}, "the switch has taken nothing, and given nothing")


@check
async def old_rates_do_not_linger(harness: Harness) -> None:
    """A client that still has the old rate neither spends by it nor spoils the bucket with it."""
    for slow_down in (True, False):
        limiter = await new_limiter(harness)
        rates = [Limit("tpm", 100, 100, 1), Limit("tpm", 100, 1, 100)]
        before, after = rates if slow_down else rates[::-1]
        await limiter.set_resource_defaults(RESOURCE, [before])
        stale, informed = beside(harness, limiter), beside(harness, limiter)
        await take(stale, "key", RESOURCE, [{"tpm": 10}, {"tpm": 10}, {"tpm": 10}])
        await limiter.set_resource_defaults(RESOURCE, [after])
        await take(informed, "key", RESOURCE, [{"tpm": 70}])
        harness.clock.advance(20)
        due = min(100, after.refill_amount * 20 // after.refill_period_seconds)
        with raises(RateLimitExceeded, f"{due} have been made at the new rate"):
            await take(stale, "key", RESOURCE, [{"tpm": due}, {"tpm": 1}] if due else [{"tpm": 1}])
        same(await limiter.available("key", RESOURCE), {"tpm": 0}, "the bucket is as it should be")


@check
async def given_limits(harness: Harness) -> None:
    """Limits given with the call stand in for the stored ones of the entity, not for those of its parents."""
    limiter = await _chain(harness, key=10, project=50, org=100)
    async with limiter.acquire("key", RESOURCE, {"tpm": 20}, limits=[Limit.per_hour("tpm", 40)]):
        pass
    rows = await limiter.get_status("key", RESOURCE, limits=[Limit.per_hour("tpm", 40)])
    same({row.entity_id: row.available for row in rows}, {"key": 20, "project": 30, "org": 80}, "all are charged")
    true([row.source for row in rows] == ["override", "entity_default", "entity_default"], "and it says by what")


CHECKS = checks_of(globals())
