"""Concurrency limits: slots that are held, renewed, given back and lost, in one bucket with tokens.

Law 9: at every instant at most as many slots are held as the limit states, over all clients; what a dead holder has is
free again after the time to live.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from tests.conformance.expect import raises, same, true
from tests.conformance.room import beside, new_limiter
from tests.conformance.traffic import RESOURCE, Boom, host
from zae_limiter.core.errors import CapacityExceeded, RateLimitExceeded, ValidationError
from zae_limiter.core.limit import Limit
from zae_limiter.testing.conformance.check import check, checks_of
from zae_limiter.testing.faults import FaultyStore

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from tests.conformance.traffic import Host
    from zae_limiter.limiter.lease import Lease
    from zae_limiter.limiter.limiter import RateLimiter
    from zae_limiter.records.algebra import Committed, Conflict, Write
    from zae_limiter.testing.harness import Harness

SECOND_MS = 1_000
PARALLEL = Limit.concurrent("parallel", 3, ttl=60)
RATE = Limit.per_hour("rph", 1_000)


async def _take(limiter: RateLimiter, entity: str = "key", **cost: int) -> Lease:
    """Enter a lease, which the caller has to end."""
    lease = limiter.acquire(entity, RESOURCE, cost or {"rph": 1})
    await lease.enter()
    return lease


async def _refused(limiter: RateLimiter, entity: str = "key", **cost: int) -> RateLimitExceeded:
    with raises(RateLimitExceeded, "no slot is free") as caught:
        await _take(limiter, entity, **cost)
    return caught.error


async def _counted(harness: Harness) -> tuple[RateLimiter, FaultyStore]:
    """Return a limiter over a store that counts its calls."""
    store, first = FaultyStore(harness.store()), await new_limiter(harness)
    return harness.limiter(harness.repository(store, namespace=first.repository.namespace)), store


class _Overtaken(FaultyStore):
    """A store before whose next commit something else happens."""

    before: Callable[[], Awaitable[None]] | None = None

    async def commit(self, writes: Sequence[Write], *, timeout: float | None = None) -> Committed | Conflict:
        """Commit to the store inside, late."""
        before, self.before = self.before, None
        if before is not None:
            await before()
        return await super().commit(writes, timeout=timeout)


# Law 9, as a property.


@dataclass(frozen=True, slots=True)
class Step:
    """After ``wait_ms`` somebody does something.

    ``action`` is ``take``, ``end``, ``fail`` (end by an exception), ``kill`` (a client dies with all its leases),
    ``stall`` (a client does nothing for the length of a time to live) or ``look``. ``client`` says who.
    """

    wait_ms: int
    action: str
    client: int = 0


@dataclass
class Member:
    """One client with its host, and the leases that it has open."""

    limiter: RateLimiter
    host: Host
    leases: list[Lease] = field(default_factory=list)
    stalled_until_ms: int = 0


@dataclass
class Crowd:
    """Several clients on one concurrency limit, and those who died with leases."""

    harness: Harness
    limit: Limit
    members: list[Member] = field(default_factory=list)
    dead: list[int] = field(default_factory=list)
    """Until when each slot of a dead client may be taken."""
    namespace: str = ""

    async def open(self, skews_ms: Sequence[int]) -> None:
        """Open a client for each skew of a clock."""
        first = await new_limiter(self.harness)
        await first.set_system_defaults([self.limit, RATE])
        self.namespace = first.repository.namespace
        for skew_ms in skews_ms:
            self.members.append(await self._open(skew_ms))

    async def _open(self, skew_ms: int) -> Member:
        seen_from = host(self.harness.store(), skew_ms)
        repository = self.harness.repository(seen_from, namespace=self.namespace)
        return Member(self.harness.limiter(repository, refusal_ttl=0), seen_from)

    @property
    def now_ms(self) -> int:
        """The time of the store."""
        return self.harness.clock.now_ms()

    def held(self) -> int:
        """Return how many leases hold a slot, as far as their clients know."""
        return sum(not lease.lost for member in self.members for lease in member.leases)

    async def pass_time(self, wait_ms: int) -> None:
        """Let time pass in steps in which every client that is not stalled renews what it holds."""
        while wait_ms > 0:
            step_ms = min(wait_ms, self.limit.ttl * SECOND_MS // 12)
            wait_ms -= step_ms
            self.harness.clock.advance_ms(step_ms)
            for member in self.members:
                member.host.clock.advance_ms(step_ms)
                if member.stalled_until_ms <= self.now_ms:
                    await member.limiter.renew_slots()
            self.check()

    def check(self) -> None:
        """Raise AssertionError if more slots are held than there are."""
        true(self.held() <= self.limit.capacity, f"{self.held()} of {self.limit.capacity} slots are held")

    async def do(self, step: Step) -> None:
        """Do a step, and check the law."""
        await self.pass_time(step.wait_ms)
        member = self.members[step.client % len(self.members)]
        if step.action == "take":
            await self._try(member)
        elif step.action in ("end", "fail") and member.leases:
            lease = member.leases.pop(0)
            lost = lease.lost
            await lease.exit(give_back=step.action == "fail")
            true(lost or not lease.lost, "a slot that was given back was not lost")
        elif step.action == "kill":
            place = self.members.index(member)
            self.dead += [self.now_ms + self.limit.ttl * SECOND_MS + abs(member.host.skew_ms)] * len(member.leases)
            self.members[place] = await self._open(member.host.skew_ms)
        elif step.action == "stall":
            member.stalled_until_ms = self.now_ms + self.limit.ttl * SECOND_MS
        self.check()

    async def _try(self, member: Member) -> None:
        """Take a slot: granted if one must be free, refused if all are held."""
        self.dead = [until_ms for until_ms in self.dead if until_ms > self.now_ms]
        held, forsaken = self.held(), len(self.dead)
        lost = sum(lease.lost for each in self.members for lease in each.leases)
        try:
            member.leases.append(await _take(member.limiter))
            true(held < self.limit.capacity, "a slot was granted while all were held")
        except RateLimitExceeded as refused:
            skewed = any(each.host.skew_ms for each in self.members)
            true(
                skewed or held + forsaken + lost >= self.limit.capacity,
                f"refused although only {held} are held and {forsaken} may be: {refused}",
            )


async def slots_never_exceed(
    harness: Harness, limit: Limit, steps: Sequence[Step], skews_ms: Sequence[int] = (0, 0, 0)
) -> None:
    """Law 9: never more slots held than the limit states, and all free once their holders are done or dead."""
    crowd = Crowd(harness, limit)
    await crowd.open(skews_ms)
    for step in steps:
        await crowd.do(step)
    for member in crowd.members:
        for lease in member.leases:
            await lease.exit()
        member.leases.clear()
    await crowd.pass_time((limit.ttl + 10) * SECOND_MS)
    left = await crowd.members[0].limiter.available("key", RESOURCE)
    same(left["parallel"], limit.capacity, "all slots are free after their holders")


@check
async def at_most_so_many(harness: Harness) -> None:
    """Three clients take, end, fail, die and stall: never more slots are held than the limit states."""
    chance = Random(11)
    waits = (0, 1, 700, 9_000, 21_000, 45_000, 61_000)
    actions = ("take", "take", "take", "take", "end", "fail", "kill", "stall")
    steps = [Step(chance.choice(waits), chance.choice(actions), chance.randrange(3)) for _ in range(120)]
    await slots_never_exceed(harness, PARALLEL, steps)


@check
async def clocks_that_are_off(harness: Harness) -> None:
    """The same with clients whose clocks are five seconds ahead and behind."""
    chance = Random(12)
    actions = ("take", "take", "take", "end", "kill")
    steps = [Step(chance.choice((0, 700, 9_000, 21_000)), chance.choice(actions), place % 3) for place in range(90)]
    await slots_never_exceed(harness, PARALLEL, steps, (0, 5_000, -5_000))


# Stories.


@check
async def taken_with_tokens_all_or_nothing(harness: Harness) -> None:
    """A slot is taken with the tokens or not at all, whichever of the two is lacking."""
    limiter = await new_limiter(harness)
    await limiter.set_system_defaults([PARALLEL, Limit.per_hour("rph", 4)])
    leases = [await _take(limiter) for _ in range(3)]
    same(leases[0].consumed, {"rph": 1, "parallel": 1}, "a slot is taken although nobody has named it")
    refused = await _refused(limiter)
    same([status.limit_name for status in refused.violations], ["parallel"], "the slots refuse")
    same([status.in_flight for status in refused.violations], [3], "the refusal says how many are in flight")
    true(refused.at_latest, "the moment of a slot is one at the latest")
    same(await limiter.available("key", RESOURCE), {"parallel": 0, "rph": 1}, "a refusal takes no tokens")
    await leases.pop().exit()
    refused = await _refused(limiter, rph=2)
    same([status.limit_name for status in refused.violations], ["rph"], "the tokens refuse")
    same(await limiter.available("key", RESOURCE), {"parallel": 1, "rph": 1}, "a refusal takes no slot")
    for lease in leases:
        await lease.exit()
    same(await limiter.available("key", RESOURCE), {"parallel": 3, "rph": 1}, "slots come back with the lease")


@check
async def named_slots(harness: Harness) -> None:
    """A cost may name several slots, or none; more than there are is never granted."""
    limiter = await new_limiter(harness)
    await limiter.set_system_defaults([PARALLEL, RATE])
    two = await _take(limiter, parallel=2)
    none = await _take(limiter, parallel=0)
    await _refused(limiter, parallel=2)
    with raises(CapacityExceeded, "more than there are"):
        await _take(limiter, parallel=4)
    one = await _take(limiter)
    same(await limiter.available("key", RESOURCE), {"parallel": 0, "rph": 999}, "two, none and one")
    with raises(ValidationError, "slots cannot be adjusted"):
        await one.adjust(parallel=1)
    for lease in (two, none, one):
        await lease.exit()
    same((await limiter.available("key", RESOURCE))["parallel"], 3, "all are back")


@check
async def the_promised_moment(harness: Harness) -> None:
    """A slot whose holder has died is free at the promised moment, and not a millisecond earlier."""
    dying = await new_limiter(harness)
    limiter = beside(harness, dying, refusal_ttl=0)
    await dying.set_system_defaults([Limit.concurrent("parallel", 1, ttl=60), RATE])
    await _take(dying)
    harness.clock.advance(7)
    refused = await _refused(limiter)
    same(refused.retry_after_seconds, 53.0, "it comes back by itself after its time to live")
    harness.clock.advance_ms(52_999)
    await _refused(limiter)
    harness.clock.advance_ms(1)
    await (await _take(limiter)).exit()


@check
async def renewed_while_held(harness: Harness) -> None:
    """A slot is kept for as long as it is renewed, but not beyond its longest hold."""
    limiter = await new_limiter(harness)
    limits = [Limit.concurrent("parallel", 1, ttl=60, max_hold=200), RATE]
    await limiter.set_system_defaults(limits)
    lease = await _take(limiter)
    for _ in range(9):
        harness.clock.advance(21)
        await limiter.renew_slots()
        true(not lease.lost, "it is renewed")
        await _refused(limiter)
    harness.clock.advance(11)
    true(lease.lost, "after its longest hold it is lost")
    other = await _take(limiter)
    await limiter.renew_slots()
    await lease.exit()
    same((await limiter.available("key", RESOURCE))["parallel"], 0, "who has lost a slot frees no other")
    await other.exit()
    same((await limiter.available("key", RESOURCE))["parallel"], 1, "its holder does")


@check
async def ownership_tokens(harness: Harness) -> None:
    """A holder that wakes up too late can neither renew nor free what its successor has."""
    stale = await new_limiter(harness, refusal_ttl=0)
    limiter = beside(harness, stale, refusal_ttl=0)
    await stale.set_system_defaults([Limit.concurrent("parallel", 1, ttl=60), RATE])
    lease = await _take(stale)
    await limiter.reset_bucket("key", RESOURCE)
    successor = await _take(limiter)  # at the same instant: only the ownership token tells them apart
    await lease.exit()
    await _refused(limiter)
    await successor.exit()
    lease = await _take(stale)
    harness.clock.advance(60)
    successor = await _take(limiter)
    await stale.renew_slots()
    true(lease.lost, "it is told that it has lost its slot")
    harness.clock.advance(50)
    await limiter.renew_slots()
    await lease.exit()
    await _refused(limiter)
    harness.clock.advance(50)
    await limiter.renew_slots()
    await _refused(stale)
    true(not successor.lost, "the successor has it still")
    await successor.exit()
    await (await _take(stale)).exit()


@check
async def late_writes(harness: Harness) -> None:
    """A renewal or a release that arrives when somebody else has the slot changes nothing."""
    for ends in (False, True):
        first = await new_limiter(harness)
        store = _Overtaken(harness.store())
        stale = harness.limiter(harness.repository(store, namespace=first.repository.namespace), timeout=3_600)
        await first.set_system_defaults([Limit.concurrent("parallel", 1, ttl=60), RATE])
        lease = await _take(stale)
        harness.clock.advance(21)
        successors: list[Lease] = []

        async def succeed(taken: list[Lease] = successors, limiter: RateLimiter = first) -> None:
            harness.clock.advance(60)
            taken.append(await _take(limiter))

        store.before = succeed
        await (lease.exit() if ends else stale.renew_slots())
        true(lease.lost, "it is told that it has lost its slot")
        await _refused(beside(harness, first))
        harness.clock.advance(50)
        await first.renew_slots()
        await lease.exit()
        harness.clock.advance(50)
        true(not successors[0].lost, "the successor has it still")
        await _refused(first)
        await successors[0].exit()
        same((await first.available("key", RESOURCE))["parallel"], 1, "and has freed it")


@check
async def failed_calls(harness: Harness) -> None:
    """A block that raises gives back its slot and its tokens; a settlement rides on the write that frees the slot."""
    limiter, store = await _counted(harness)
    await limiter.set_system_defaults([PARALLEL, RATE])
    with raises(Boom):
        async with limiter.acquire("key", RESOURCE, {"rph": 5}):
            raise Boom
    same(await limiter.available("key", RESOURCE), {"parallel": 3, "rph": 1_000}, "all is back")
    async with limiter.acquire("key", RESOURCE, {"rph": 5}) as lease:
        await lease.adjust(rph=20)
        before = store.calls["commit"]
    same(store.calls["commit"] - before, 1, "one write settles and frees")
    same(await limiter.available("key", RESOURCE), {"parallel": 3, "rph": 975}, "it is settled, and the slot is back")


@check
async def calls(harness: Harness) -> None:
    """An acquire is one call with tokens and slots, its end is one, and so is a renewal of any number of slots."""
    limiter, store = await _counted(harness)
    await limiter.set_system_defaults([Limit.concurrent("parallel", 8, ttl=60), RATE, Limit.per_hour("tph", 9_000)])
    leases = [await _take(limiter, rph=1, tph=500)]
    before = store.calls.copy()
    leases += [await _take(limiter, rph=1, tph=500) for _ in range(5)]
    same(dict(store.calls - before), {"commit": 5}, "five acquires")
    harness.clock.advance(21)
    before = store.calls.copy()
    await limiter.renew_slots()
    await limiter.renew_slots()
    same(dict(store.calls - before), {"commit": 1}, "one renewal of six slots")
    before = store.calls.copy()
    for lease in leases:
        await lease.exit()
    same(dict(store.calls - before), {"commit": 6}, "six ends")
    harness.clock.advance(21)
    await limiter.renew_slots()
    same(dict(store.calls - before), {"commit": 6}, "nothing is left to renew")


@check
async def changed_live(harness: Harness) -> None:
    """A raised limit has new slots at once; of a lowered one the slots above drain, and count until then."""
    limiter = await new_limiter(harness)
    await limiter.set_system_defaults([PARALLEL, RATE])
    leases = [await _take(limiter) for _ in range(3)]
    await limiter.set_system_defaults([Limit.concurrent("parallel", 5, ttl=60), RATE])
    leases += [await _take(limiter) for _ in range(2)]
    await _refused(limiter)
    await limiter.set_system_defaults([Limit.concurrent("parallel", 2, ttl=60), RATE])
    (state,) = [state for state in await limiter.get_buckets("key") if state.limit_name == "parallel"]
    same(state.capacity_milli, 5_000, "a bucket states what it was last used under")
    for expected in (-3, -2, -1, 0):
        same((await limiter.available("key", RESOURCE))["parallel"], expected, "what is in flight counts")
        await _refused(limiter)
        await leases.pop(0).exit()
    leases.append(await _take(limiter))
    await _refused(limiter)
    for lease in leases:
        true(not lease.lost, "none is revoked")
        await lease.exit()
    same((await limiter.available("key", RESOURCE))["parallel"], 2, "all are back")


@check
async def floors_and_soft_limits(harness: Harness) -> None:
    """A floor leaves slots for others, a soft limit counts what is beyond it, a bypass refuses nobody."""
    limiter = await new_limiter(harness)
    await limiter.set_system_defaults([Limit.concurrent("parallel", 4, floors={"batch": 0.5}), RATE])
    for cost, priority in ({"parallel": 5}, None), ({"parallel": 3}, "batch"):
        with raises(CapacityExceeded, "more than there are, of a new bucket"):
            await limiter.acquire("key", RESOURCE, cost, priority=priority).enter()
    leases = []
    for _ in range(2):
        leases.append(limiter.acquire("key", RESOURCE, {"rph": 1}, priority="batch"))
        await leases[-1].enter()
    with raises(RateLimitExceeded, "the floor"):
        await limiter.acquire("key", RESOURCE, {"rph": 1}, priority="batch").enter()
    leases += [await _take(limiter) for _ in range(2)]
    await _refused(limiter)
    await limiter.bypass_entity("key")
    beyond = await _take(limiter)
    true(beyond.bypassed and beyond.overdrawn == ("parallel",), "it is beyond, and says so")
    await limiter.enable_entity("key")
    await beyond.exit()
    await limiter.set_system_defaults([Limit.concurrent("parallel", 4, soft=True), RATE])
    leases += [await _take(limiter) for _ in range(3)]
    same((await limiter.available("key", RESOURCE))["parallel"], -3, "three beyond the limit")
    for lease in leases:
        await lease.exit()
    same((await limiter.available("key", RESOURCE))["parallel"], 4, "all are back")


@check
async def hierarchies(harness: Harness) -> None:
    """A slot is held at every level or at none, and all of them come back."""
    limiter = await new_limiter(harness)
    await limiter.set_system_defaults([PARALLEL, RATE])
    await limiter.create_entity("org")
    for child in ("one", "two"):
        await limiter.create_entity(child, parent_id="org", cascade=True)
        await limiter.set_limits(child, [Limit.concurrent("parallel", 2), RATE])
    leases = [await _take(limiter, "one"), await _take(limiter, "one"), await _take(limiter, "two")]
    refused = await _refused(limiter, "two")
    same([status.entity_id for status in refused.violations], ["org"], "the organisation refuses")
    same((await limiter.available("two", RESOURCE))["parallel"], 0, "the least of both levels")
    for lease in leases:
        await lease.exit()
    for entity, slots in (("org", 3), ("one", 2), ("two", 2)):
        same((await limiter.available(entity, RESOURCE))["parallel"], slots, "all are back")


@check
async def several_resources(harness: Harness) -> None:
    """Slots of several resources are taken together, and end with their own lease."""
    limiter = await new_limiter(harness)
    await limiter.set_resource_defaults("model", [PARALLEL, RATE])
    await limiter.set_resource_defaults("tool", [Limit.concurrent("seats", 1), RATE])
    lease = limiter.acquire("key", {"model": {"rph": 1}, "tool": {"rph": 1}})
    await lease.enter()
    same(lease.resource("tool").consumed, {"rph": 1, "seats": 1}, "each has its own")
    with raises(RateLimitExceeded, "the seat is taken"):
        await limiter.acquire("key", {"model": {"rph": 1}, "tool": {"rph": 1}}).enter()
    same((await limiter.available("key", "model"))["parallel"], 2, "a refusal takes nothing")
    await lease.exit()
    same((await limiter.available("key", "model"))["parallel"], 3, "back")
    same((await limiter.available("key", "tool"))["seats"], 1, "back")


@check
async def more_inside(harness: Harness) -> None:
    """What is consumed inside of a lease takes another slot only if it names it."""
    limiter = await new_limiter(harness)
    await limiter.set_system_defaults([PARALLEL, RATE])
    lease = await _take(limiter)
    await lease.consume(rph=3)
    same((await limiter.available("key", RESOURCE))["parallel"], 2, "the one that it has")
    await lease.consume(parallel=1)
    same((await limiter.available("key", RESOURCE))["parallel"], 1, "one more")
    await lease.exit()
    same((await limiter.available("key", RESOURCE))["parallel"], 3, "both are back")


CHECKS = checks_of(globals())
