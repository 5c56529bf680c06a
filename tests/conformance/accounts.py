"""Usage equals what was consumed, to the token, in every window."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING

from tests.conformance.expect import same
from tests.conformance.room import beside, new_limiter
from tests.conformance.traffic import RESOURCE, Boom
from zae_limiter.core.errors import RateLimitExceeded
from zae_limiter.core.limit import Limit
from zae_limiter.records.ledger import DAY_MS
from zae_limiter.records.level import HOUR_MS
from zae_limiter.records.usage import WINDOWS, end_ms, window_of
from zae_limiter.testing.conformance.check import check, checks_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zae_limiter.limiter.limiter import RateLimiter
    from zae_limiter.testing.harness import Harness

LIMITS = (Limit.per_minute("rpm", 600), Limit.per_minute("tpm", 90_000), Limit.per_minute("ttl", 90_000))
"""One of them has the name of an attribute of ours."""

CHILDREN = ("key-1", "key-2")
PARENT = "org"
LONER = "key-3"
"""Nobody is charged with it."""
TAKERS = (*CHILDREN, LONER)
_PAUSES = (0, 0, 1, 40, 700, 1_900, 3_600, 50_000, 1_500_000)
"""Seconds: within an hour, into the next one, the next day, the next month."""

Windows = dict[tuple[str, str, str], dict[str, int]]
"""Tokens by limit, for an entity, a window type and the beginning of the window."""


class Books:
    """Clients that take for a small family, and an account of what was consumed in which window."""

    def __init__(self, harness: Harness, chance: random.Random) -> None:
        self.harness = harness
        self.chance = chance
        self.clients: list[RateLimiter] = []
        self._used: dict[tuple[str, str, str], Counter[str]] = {}

    async def open(self, clients: int = 2) -> Books:
        """Store the family and its limits."""
        keeper = await new_limiter(self.harness)
        await keeper.set_system_defaults(LIMITS)
        await keeper.create_entity(PARENT)
        await keeper.set_limits(PARENT, LIMITS)
        for child in CHILDREN:
            await keeper.create_entity(child, parent_id=PARENT, cascade=True)
        self.clients = [keeper, *(beside(self.harness, keeper) for _ in range(clients - 1))]
        return self

    @property
    def keeps(self) -> bool:
        """Return whether the writes of this store keep usage at all."""
        return self.clients[0].repository.capabilities.usage_retention_days > 0

    def note(self, slot_request: str, amounts: Mapping[str, int]) -> None:
        """Note one grant or settlement, as of now, at every level."""
        for who in (slot_request, PARENT) if slot_request in CHILDREN else (slot_request,):
            for window_type in WINDOWS:
                window = window_of(window_type, self.harness.clock.now_ms())
                into = self._used.setdefault((who, window_type, window.start), Counter())
                into.update({name: amount for name, amount in amounts.items() if amount})
                into["events"] += any(amounts.values())

    def expected(self) -> Windows:
        """Return the usage that must be found."""
        return _plain(self._used) if self.keeps else {}

    async def request(self) -> None:
        """Acquire once and settle in some way, perhaps in another hour."""
        chance, child = self.chance, self.chance.choice(TAKERS)
        cost = {"rpm": 1, "tpm": chance.choice([0, 3, 700, 60_000]), "ttl": 7}
        more = {"tpm": chance.choice([0, 0, 1_501, 200_000, -cost["tpm"]])}
        broken = chance.random() < 0.2
        try:
            async with chance.choice(self.clients).acquire(child, RESOURCE, cost) as lease:
                self.note(child, cost)
                self.pause()
                await lease.adjust(more)
                if broken:
                    raise Boom
        except RateLimitExceeded:
            return
        except Boom:
            more = {name: -amount for name, amount in cost.items()}
        self.note(child, more)

    def pause(self) -> None:
        """Let some time pass, seldom much."""
        self.harness.clock.advance(self.chance.choice(_PAUSES[: self.chance.choice([3, 5, 9])]))

    async def happen(self, steps: int) -> None:
        """Make requests and pauses; now and then read usage or reset a bucket."""
        for _ in range(steps):
            step = self.chance.random()
            if step < 0.75:
                await self.request()
            elif step < 0.85:
                self.pause()
            elif step < 0.95:
                await self.clients[-1].get_usage_summary(self.chance.choice([*TAKERS, PARENT]))
            else:
                await self.clients[0].reset_bucket(self.chance.choice([*TAKERS, PARENT]), RESOURCE)

    async def by_entity(self) -> Windows:
        """Return the usage found for each entity."""
        found: dict[tuple[str, str, str], Counter[str]] = {}
        for who in (*TAKERS, PARENT):
            snapshots, _ = await self.clients[0].get_usage_snapshots(who, limit=10_000)
            for each in snapshots:
                counted = Counter({**each.counters, "events": each.total_events})
                found[each.entity_id, each.window_type, each.window_start] = counted
        return _plain(found)

    async def by_resource(self) -> Windows:
        """Return the usage found for the resource, read in small pages."""
        found: dict[tuple[str, str, str], Counter[str]] = {}
        for window_type in WINDOWS:
            next_key = None
            while True:
                page, next_key = await self.clients[-1].get_usage_snapshots(
                    resource=RESOURCE, window_type=window_type, limit=7, next_key=next_key
                )
                for each in page:
                    counted = Counter({**each.counters, "events": each.total_events})
                    found[each.entity_id, each.window_type, each.window_start] = counted
                if next_key is None:
                    break
        return _plain(found)


def _plain(used: dict[tuple[str, str, str], Counter[str]]) -> Windows:
    """Return the counters without limits and windows in which nothing happened."""
    counts = {what: {name: n for name, n in amounts.items() if n} for what, amounts in used.items()}
    return {what: amounts for what, amounts in counts.items() if amounts}


async def usage_is_consumption(harness: Harness, seed: int, steps: int) -> None:
    """Whatever happened, usage says what was consumed: per entity, window and limit, and how often."""
    books = await Books(harness, random.Random(seed)).open()
    await books.happen(steps)
    same(await books.by_entity(), books.expected(), f"usage by entity is what was consumed (seed {seed})")
    same(await books.by_resource(), books.expected(), f"usage by resource is what was consumed (seed {seed})")
    same(await books.by_entity(), books.expected(), "reading changes nothing")


@check
async def usage_is_what_was_consumed(harness: Harness) -> None:
    """Grants, settlements, give-backs and debts of two clients, over hours and months, add up to the token."""
    for seed in range(6):
        await usage_is_consumption(harness, seed, 40)


@check
async def usage_at_the_turn_of_an_hour(harness: Harness) -> None:
    """What is consumed in the last millisecond of an hour is of that hour, and what in the next one is not."""
    books = await Books(harness, random.Random(0)).open()
    for slot_request in (LONER, CHILDREN[0]):
        for _ in range(2):
            to_end_ms = -harness.clock.now_ms() % HOUR_MS or HOUR_MS
            for wait_ms in (to_end_ms - 1, 1):
                harness.clock.advance_ms(wait_ms)
                for client in books.clients:
                    async with client.acquire(slot_request, RESOURCE, {"rpm": 1, "tpm": 5}):
                        books.note(slot_request, {"rpm": 1, "tpm": 5})
    same(await books.by_entity(), books.expected(), "usage is what was consumed")


@check
async def usage_that_was_read_is_not_booked_again(harness: Harness) -> None:
    """A client that has not seen a reader book its usage does not book it a second time."""
    books = await Books(harness, random.Random(0)).open()
    writer, reader = books.clients
    for slot_request in (LONER, CHILDREN[0]):
        for _ in range(3):
            # With a timeout of its own it does not look before it writes, on any store.
            async with writer.acquire(slot_request, RESOURCE, {"rpm": 1, "tpm": 5}, timeout=5):
                books.note(slot_request, {"rpm": 1, "tpm": 5})
            await reader.get_usage_summary(slot_request)
            harness.clock.advance_ms(HOUR_MS)
    same(await books.by_entity(), books.expected(), "usage is what was consumed")


@check
async def usage_outlives_its_bucket_and_its_entity(harness: Harness) -> None:
    """What was used stays on record when a bucket is reset and when the entity is deleted."""
    books = await Books(harness, random.Random(0)).open()
    (client, _), child = books.clients, CHILDREN[0]
    async with client.acquire(child, RESOURCE, {"rpm": 1, "tpm": 500}) as lease:
        books.note(child, {"rpm": 1, "tpm": 500})
        await client.reset_bucket(child, RESOURCE)
        await lease.adjust(tpm=-400)
    books.note(child, {"tpm": -400})
    async with client.acquire(child, RESOURCE, {"rpm": 2, "tpm": 30}):
        books.note(child, {"rpm": 2, "tpm": 30})
    await client.delete_entity(child)
    same(await books.by_entity(), books.expected(), "usage is what was consumed")


@check
async def usage_is_kept_for_as_long_as_promised(harness: Harness) -> None:
    """Every window of the last consumption can be read until its retention is over, and not any more then."""
    books = await Books(harness, random.Random(0)).open()
    days = books.clients[0].repository.capabilities.usage_retention_days
    for slot_request in (LONER, CHILDREN[0]):
        async with books.clients[0].acquire(slot_request, RESOURCE, {"rpm": 1}):
            books.note(slot_request, {"rpm": 1})
    last_ms = {each: end_ms(window_of(each, harness.clock.now_ms())) + days * DAY_MS - 1 for each in WINDOWS}
    left = books.expected()
    for window_type, until_ms in last_ms.items():
        harness.clock.set_ms(max(until_ms, harness.clock.now_ms()))
        same(await books.by_entity(), left, f"the {window_type} window is there")
        harness.clock.advance_ms(1)
        left = {what: used for what, used in left.items() if what[1] != window_type}
        same(await books.by_entity(), left, f"the {window_type} window is not")


CHECKS = checks_of(globals())
