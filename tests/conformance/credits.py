"""Credits: beside an allowance, against books that keep allowance and lots apart."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING

from tests.conformance.expect import raises, same, true
from tests.conformance.room import new_limiter, new_limiters
from zae_limiter.core.errors import CapacityExceeded, RateLimitExceeded, ValidationError
from zae_limiter.core.limit import Limit
from zae_limiter.records.fields import iso
from zae_limiter.testing.conformance.check import check, checks_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zae_limiter.limiter.limiter import RateLimiter
    from zae_limiter.testing.harness import Harness

RATE = Limit.custom("tpm", capacity=100, refill_amount=7, refill_period_seconds=9, floors={"batch": 0.3})
STILL = Limit.custom("tpm", capacity=100, refill_amount=1, refill_period_seconds=10 * 365 * 86_400)
SOFT = Limit.custom("tpm", capacity=100, refill_amount=7, refill_period_seconds=9, soft=True)
STILL_SOFT = replace(STILL, soft=True)
FOR_EVER = 2**62
EXPIRIES = (3_000, 40_000, 41_000, 300_000, None)


class Deliberate(Exception):
    """What a block raises so that everything is given back."""


@dataclass
class Books:
    """The allowance of one limit and its lots, in millitokens."""

    now_ms: int
    limit: Limit
    held: int
    lots: dict[int, int] = field(default_factory=dict)
    consumed: int = 0
    """All that was ever taken, less what was given back."""
    overdrawn: int = 0
    """All that was taken beyond a soft limit, less what was given back of it."""

    def level(self, at_ms: int) -> int:
        """Return the allowance at an instant; negative means debt."""
        period = self.limit.refill_period_seconds
        late, early = (ms * self.limit.refill_amount // period for ms in (at_ms, self.now_ms))
        return min(self.limit.capacity * 1000, self.held + late - early)

    def credit(self, at_ms: int) -> int:
        """Return the credit that has not expired at an instant."""
        return sum(milli for expiry, milli in self.lots.items() if expiry > at_ms)

    def move_to(self, now_ms: int) -> None:
        """Refill to an instant, and drop what has expired."""
        self.held, self.now_ms = self.level(now_ms), now_ms
        self.lots = {expiry: milli for expiry, milli in self.lots.items() if expiry > now_ms}

    def change(self, limit: Limit) -> None:
        """Go on under another limit, of which no more than its capacity is kept."""
        self.limit, self.held = limit, min(self.held, limit.capacity * 1000)

    def top_up(self, milli: int, expires_ms: int) -> None:
        """Add a lot."""
        self.lots[expires_ms] = self.lots.get(expires_ms, 0) + milli

    def fits(self, milli: int, at_ms: int, least: int = 0) -> bool:
        """Return whether a cost would be granted at an instant."""
        return self.limit.soft or self.level(at_ms) + self.credit(at_ms) - milli >= least

    def take(self, milli: int) -> dict[int, int]:
        """Take a cost, and return what of it was taken from which lot, in this order."""
        allowance, credit = max(0, min(milli, self.held)), self.credit(self.now_ms)
        if self.held + credit < milli:  # of a soft limit: what no debt uses up of the credit, and the rest as debt
            allowance = milli - max(0, min(self.held, 0) + credit)
            self.overdrawn += allowance - max(0, self.held)
        self.held -= allowance
        self.consumed += milli
        left, taken = milli - allowance, {}
        for expiry in sorted(self.lots):
            taken[expiry] = min(left, self.lots[expiry])
            self.lots[expiry] -= taken[expiry]
            left -= taken[expiry]
        return taken

    def owe(self, milli: int) -> None:
        """Take from the allowance alone what was used beyond a cost."""
        if self.limit.soft:
            self.overdrawn += max(0, milli - max(0, self.held))
        self.held -= milli
        self.consumed += milli

    def give_back(self, milli: int, taken: dict[int, int], beyond: int = 0) -> None:
        """Return a part of a cost: to the lots that it came from, the last first, then to the allowance.

        What was overdrawn by it, ``beyond``, is the first of the allowance.
        """
        self.consumed -= milli
        for expiry in sorted(taken, reverse=True):
            back = min(milli, taken[expiry])
            milli -= back
            if expiry in self.lots:
                self.lots[expiry] += back
        self.overdrawn -= min(milli, beyond)
        self.held = min(self.limit.capacity * 1000, self.held + milli)

    def first_fit(self, milli: int, least: int = 0) -> int | None:
        """Return the first instant from now on at which a cost fits, or None."""
        borders = sorted({self.now_ms, *(expiry for expiry in self.lots if expiry < FOR_EVER)})
        for early, late in zip(borders, [*(border - 1 for border in borders[1:]), self.now_ms + 10**15], strict=True):
            if not self.fits(milli, late, least):
                continue
            begin, end = early, late
            while begin < end:
                middle = (begin + end) // 2
                begin, end = (begin, middle) if self.fits(milli, middle, least) else (middle + 1, end)
            return begin
        return None


class Play:
    """Clients and the books, which must always agree."""

    def __init__(self, harness: Harness, limit: Limit, clients: list[RateLimiter]) -> None:
        self.harness = harness
        self.clients = clients
        self.books = Books(harness.clock.now_ms(), limit, limit.capacity * 1000)

    @classmethod
    async def start(cls, harness: Harness, limit: Limit, clients: int = 1) -> Play:
        """Open as many clients in a namespace of their own."""
        return cls(harness, limit, await new_limiters(harness, clients, refusal_ttl=0))

    def advance(self, milliseconds: int) -> None:
        """Let time pass."""
        self.harness.clock.advance_ms(milliseconds)
        self.books.move_to(self.harness.clock.now_ms())

    async def change(self, client: int, limit: Limit) -> None:
        """Replace the limit."""
        await self.clients[client].set_limits("key", [limit], resource="gpt-4")
        self.books.change(limit)

    async def top_up(self, client: int, tokens: int, lasts_ms: int | None) -> None:
        """Add credit."""
        expires_ms = FOR_EVER if lasts_ms is None else self.books.now_ms + lasts_ms
        expires_at = None if lasts_ms is None else iso(expires_ms)
        await self.clients[client].top_up("key", "gpt-4", {"tpm": tokens}, expires_at=expires_at)
        self.books.top_up(tokens * 1000, expires_ms)

    async def acquire(
        self, client: int, tokens: int, delta: int = 0, lasts_ms: int = 0, *, fails: bool = False, batch: bool = False
    ) -> None:
        """Take tokens as the books say, correct them by ``delta`` after some time, or fail."""
        books, least = self.books, self.books.limit.capacity * 300 if batch else 0
        fits, promised = books.fits(tokens * 1000, books.now_ms, least), books.first_fit(tokens * 1000, least)
        try:
            priority = "batch" if batch else None
            async with self.clients[client].acquire("key", "gpt-4", {"tpm": tokens}, priority=priority) as lease:
                true(fits, f"granted {tokens} of {books}")
                overdrawn = books.overdrawn
                taken = books.take(tokens * 1000)
                beyond = books.overdrawn - overdrawn
                left = (books.held + books.credit(books.now_ms)) // 1000
                same(lease.available, {"tpm": left}, f"what a lease has left of {books}")
                self.advance(lasts_ms)
                if fails:
                    raise Deliberate
                await lease.adjust(tpm=delta)
            if delta > 0:
                books.owe(delta * 1000)
            else:
                books.give_back(-delta * 1000, taken, beyond)
        except Deliberate:
            books.give_back(tokens * 1000, taken, beyond)
        except RateLimitExceeded as refused:
            true(not fits, f"refused {tokens} of {books}")
            seconds = None if promised is None else (promised - books.now_ms) / 1000
            same(refused.retry_after_seconds, seconds, f"the promised moment of {tokens} of {books}")
            same(isinstance(refused, CapacityExceeded), promised is None, f"whether {tokens} never fits {books}")

    async def compare(self, client: int) -> None:
        """Look at what is left."""
        books = self.books
        left = (books.held + books.credit(books.now_ms)) // 1000
        same(await self.clients[client].available("key", "gpt-4"), {"tpm": left}, f"what is left of {books}")
        for state in await self.clients[client].get_buckets("key", "gpt-4"):
            found = {lot.expires_ms or FOR_EVER: lot.tokens_milli for lot in state.credits}
            same(found, {expiry: milli for expiry, milli in books.lots.items() if milli}, "the lots")
            same(state.total_consumed_milli, books.consumed, "what was used in all")
            same(state.total_overdrawn_milli, books.overdrawn, "what was overdrawn in all")


async def play(
    harness: Harness, limit: Limit, clients: int, seed: int, steps: int, others: Sequence[Limit] = ()
) -> None:
    """Compare the limiter with the books at every step of a random walk, on which ``others`` replace the limit."""
    table, chance = await Play.start(harness, limit, clients), Random(seed)
    if others:
        await table.change(0, limit)
    else:
        await table.clients[0].set_system_defaults([limit])
    for _ in range(steps):
        if others and chance.random() < 0.3:
            await table.change(chance.randrange(clients), chance.choice(others))
        client = chance.randrange(clients)
        table.advance(chance.choice((0, 0, 1, 700, 5_000, 60_000)))
        if chance.random() < 0.2 and len(table.books.lots) < 12:
            await table.top_up(client, chance.randrange(1, 80), chance.choice(EXPIRIES))
        delta, lasts_ms = chance.choice((0, 0, 0, 30, -5, -40)), chance.choice((0, 0, 0, 1, 3_500, 42_000))
        tokens = chance.choice((0, 1, 20, 60, 130))
        batch = bool(table.books.limit.floors) and chance.random() < 0.2
        await table.acquire(client, tokens, max(delta, -tokens), lasts_ms, fails=chance.random() < 0.15, batch=batch)
        await table.compare(chance.randrange(clients))


@check
async def credits_are_spent_after_the_allowance(harness: Harness) -> None:
    """Beside a rate with a floor: refusals, promised moments, debt, expiry and give-backs to the millitoken."""
    await play(harness, RATE, 1, 3, 150)


@check
async def several_clients_share_credits(harness: Harness) -> None:
    """Clients that remember an older bucket take neither more nor less."""
    table = await Play.start(harness, STILL, 2)
    await table.clients[0].set_system_defaults([STILL])
    await table.top_up(0, 50, None)
    for client, tokens, delta in ((0, 10, 0), (1, 80, 0), (0, 120, 0), (1, 10, 20), (0, 1, 0), (1, 0, 20), (0, 25, 0)):
        await table.acquire(client, tokens, delta)
    await table.top_up(0, 60, None)
    for client, tokens in ((1, 20), (0, 60), (0, 49)):
        await table.acquire(client, tokens)
    await table.compare(1)


@check
async def any_history_of_clients_with_credits(harness: Harness) -> None:
    """At random, by three of them."""
    await play(harness, STILL, 3, 5, 120)


@check
async def a_soft_limit_is_overdrawn_after_its_credits(harness: Harness) -> None:
    """By the rest of a cost that allowance and credits do not have; a debt uses credit up before that."""
    await play(harness, SOFT, 1, 8, 150)


@check
async def several_clients_overdraw_a_soft_limit_with_credits(harness: Harness) -> None:
    """Clients that remember an older bucket spend and overdraw to the millitoken, too."""
    await play(harness, SOFT, 3, 9, 150)


@check
async def a_soft_limit_spends_the_credits_that_there_are(harness: Harness) -> None:
    """A client overdraws it by what there is, though it has seen a smaller debt, or more credit, or less."""
    for name in ("a smaller debt", "more credit", "less credit"):
        table = await Play.start(harness, STILL_SOFT, 2)
        await table.clients[0].set_system_defaults([STILL_SOFT])
        await table.top_up(0, 50, None)
        lease = table.clients[0].acquire("key", "gpt-4", {"tpm": 120})
        await lease.enter()
        taken = table.books.take(120_000)
        await table.acquire(1, 0, 5 if name == "a smaller debt" else 0)
        if name == "a smaller debt":
            await table.acquire(0, 0, 3)
        elif name == "more credit":
            await table.acquire(0, 15)
        else:
            await lease.release(tpm=10)
            table.books.give_back(10_000, taken)
        await lease.exit()
        await table.acquire(1, 60)
        await table.compare(0)


@check
async def credits_are_spent_under_changing_limits(harness: Harness) -> None:
    """A write that moves the bucket to other limits spends and overdraws as any other."""
    await play(harness, RATE, 1, 4, 150, (RATE, RATE.scale(2), RATE.scale(0.5), SOFT))


@check
async def a_floor_is_left_of_both(harness: Harness) -> None:
    """Credit counts towards the floor that a request of a lower priority has to leave."""
    table = await Play.start(harness, RATE)
    await table.clients[0].set_system_defaults([RATE])
    await table.top_up(0, 50, None)
    for tokens, batch in ((60, False), (30, True), (31, True), (30, True), (1, True), (30, False)):
        await table.acquire(0, tokens, batch=batch)
        await table.compare(0)


@check
async def credits_return_before_the_allowance(harness: Harness) -> None:
    """The last spent is returned first, a lot that has expired gets nothing, and debt has to be covered."""
    table = await Play.start(harness, STILL)
    await table.clients[0].set_system_defaults([STILL])
    await table.top_up(0, 20, 60_000)
    await table.top_up(0, 30, None)
    for delta, lasts_ms in ((-25, 0), (-35, 0), (-10, 0), (-90, 70_000)):
        await table.acquire(0, 140, delta, lasts_ms)
        await table.compare(0)
        await table.clients[0].reset_bucket("key", "gpt-4", ["tpm"])
        table.books.held = 100_000
        await table.compare(0)
    await table.acquire(0, 100, 30)  # into a debt that credits cover but for 5
    await table.compare(0)
    await table.acquire(0, 0)
    await table.acquire(0, 1)


@check
async def expired_credit_is_not_spent(harness: Harness) -> None:
    """A bucket whose allowance is used up refuses as soon as its credit expires, even a client that has seen it."""
    table = await Play.start(harness, STILL)
    await table.clients[0].set_system_defaults([STILL])
    await table.top_up(0, 50, 60_000)
    await table.acquire(0, 100)
    for _ in range(2):
        await table.acquire(0, 20)
        await table.compare(0)
        table.advance(60_000)


@check
async def a_top_up_is_made_once(harness: Harness) -> None:
    """With the same key, also by somebody else; another request with that key is an error."""
    limiter, other = await new_limiters(harness, 2)
    await limiter.set_system_defaults([STILL])
    for client in (limiter, other, limiter):
        done = await client.top_up("key", "gpt-4", {"tpm": 50}, idempotency_key="order-7")
        same((done.shards, dict(done.amounts)), (1, {"tpm": 50}), "the result of the first time")
        harness.clock.advance(86_000)
    same(await limiter.available("key", "gpt-4"), {"tpm": 150}, "only once")
    with raises(ValidationError, "other amounts"):
        await limiter.top_up("key", "gpt-4", {"tpm": 51}, idempotency_key="order-7")
    with raises(ValidationError, "another operation"):
        await limiter.reset_bucket("key", "gpt-4", idempotency_key="order-7")
    await limiter.top_up("key", "gpt-4", {"tpm": 50}, idempotency_key="order-8")
    same(await other.available("key", "gpt-4"), {"tpm": 200}, "another key is another request")
    events = await limiter.get_audit_events("key")
    same([event.action for event in events], ["bucket_topped_up"] * 2, "each is in the audit log once")


@check
async def a_bucket_with_credits_is_kept(harness: Harness) -> None:
    """Under default limits a bucket expires when it is full, but not before its credits."""
    limiter = await new_limiter(harness)
    await limiter.set_system_defaults([Limit.per_second("tpm", 100)])
    await limiter.top_up("other", "gpt-4", {"tpm": 50})
    await limiter.top_up("other", "gpt-4", {"tpm": 5}, expires_at=iso(harness.clock.now_ms() + 60_000))
    same(await limiter.available("other", "gpt-4"), {"tpm": 155}, "both are there")
    harness.clock.advance(60)
    same(await limiter.available("other", "gpt-4"), {"tpm": 150}, "expired, to the millisecond")
    await limiter.top_up("key", "gpt-4", {"tpm": 50}, expires_at=iso(harness.clock.now_ms() + 86_400_000 * 400))
    for _ in range(2):
        true(await _takes(limiter, 1), "a charge does not bring the expiry nearer")
    harness.clock.advance(86_400 * 399)
    same(await limiter.available("key", "gpt-4"), {"tpm": 150}, "kept until then")
    harness.clock.advance(86_400)
    same(await limiter.available("key", "gpt-4"), {"tpm": 100}, "expired")
    async with limiter.acquire("other", "gpt-4", {"tpm": 120}):
        true(await _takes(limiter, 1, "other"), "another charge")
        harness.clock.advance(86_400 * 500)
    same(await limiter.available("other", "gpt-4"), {"tpm": 129}, "kept for ever")


@check
async def a_bypass_spends_no_credits(harness: Harness) -> None:
    """What is taken beyond the allowance is debt, in the write that first meets the bypass and in those after it."""
    limiter = await new_limiter(harness)
    await limiter.set_system_defaults([STILL])
    for entity_id in ("key", "other"):
        await limiter.top_up(entity_id, "gpt-4", {"tpm": 50})
        true(await _takes(limiter, 90, entity_id), "of the allowance")
    await limiter.bypass_entity("key")
    await limiter.bypass_resource("gpt-4")
    for entity_id in ("key", "other"):
        for _ in range(2):
            true(await _takes(limiter, 20, entity_id), "beyond it")
        (state,) = await limiter.get_buckets(entity_id, "gpt-4")
        same([lot.tokens_milli for lot in state.credits], [50_000], "the credit is there")
        same(state.total_overdrawn_milli, 30_000, "beside the debt")


@check
async def a_partial_reset_does_not_void_open_leases(harness: Harness) -> None:
    """Filling up some limits leaves the others alone, and what open leases give back afterwards still counts."""
    limiter, other = await new_limiters(harness, 2)
    await limiter.set_system_defaults([STILL, Limit.per_day("rpd", 10)])
    async with limiter.acquire("key", "gpt-4", {"tpm": 80, "rpd": 8}) as lease:
        done = await other.reset_bucket("key", "gpt-4", ["tpm"], idempotency_key="ticket-3")
        same((done.shards, dict(done.amounts)), (1, {"tpm": 80}), "what was filled up")
        true(await _takes(other, 100), "the bucket is full")
        await lease.release(tpm=80, rpd=8)
    same(await limiter.available("key", "gpt-4"), {"tpm": 80, "rpd": 10}, "the give-back counts")
    same(await limiter.reset_bucket("key", "gpt-4", ["tpm"], idempotency_key="ticket-3"), done, "only once")
    same(await limiter.available("key", "gpt-4"), {"tpm": 80, "rpd": 10}, "nothing happens the second time")


@check
async def a_bucket_that_was_reset_is_still_listed(harness: Harness) -> None:
    """Full, under the limits in force, and without what open leases give back."""
    limiter, other = await new_limiters(harness, 2)
    day = Limit.per_day("rpd", 10)
    await limiter.set_system_defaults([STILL, day])
    async with limiter.acquire("key", "gpt-4", {"tpm": 80, "rpd": 10}) as lease:
        await limiter.set_system_defaults([STILL.scale(2), day])
        done = await limiter.reset_bucket("key", "gpt-4")
        same((done.shards, dict(done.amounts)), (1, {"tpm": 180, "rpd": 10}), "what was filled up")
        states = await other.get_buckets("key", "gpt-4")
        same([state.limit_name for state in states], ["rpd", "tpm"], "both limits are listed")
        same(await limiter.available("key", "gpt-4"), {"rpd": 10, "tpm": 200}, "up to the raised limit")
        await _takes(limiter, 50)
        await lease.release(tpm=80, rpd=10)
    same(await limiter.available("key", "gpt-4"), {"rpd": 10, "tpm": 150}, "an open lease gives nothing back to it")


@check
async def credit_without_a_charge_is_listed(harness: Harness) -> None:
    """Under the limits in force, and under its name alone where nothing is stored about the limit."""
    limiter = await new_limiter(harness)
    await limiter.set_system_defaults([STILL, Limit.per_day("rpd", 10)])
    await limiter.top_up("key", "gpt-4", {"tpm": 50})
    for _ in range(2):
        found = {state.limit_name: state for state in await limiter.get_buckets("key", "gpt-4")}
        true("tpm" in found, "the limit with the credit is listed")
        same([lot.tokens_milli for lot in found["tpm"].credits], [50_000], "with its credit")
        same(found["tpm"].tokens_milli, 100_000, "beside a full allowance")
        await limiter.available("key", "gpt-4")
    await _takes(limiter, 120)
    (state,) = [each for each in await limiter.get_buckets("key", "gpt-4") if each.limit_name == "tpm"]
    same([lot.tokens_milli for lot in state.credits], [30_000], "what is left of it")
    same(len(await limiter.get_resource_buckets("gpt-4", "tpm")), 1, "once")
    await limiter.delete_system_defaults()
    await limiter.top_up("other", "gpt-4", {"any": 7})
    (state,) = await limiter.get_buckets("other")
    same((state.limit_name, state.tokens_milli, state.capacity_milli), ("any", 0, 0), "its limit is not known yet")
    same([lot.tokens_milli for lot in state.credits], [7_000], "but the credit is")


@check
async def credits_go_with_the_entity(harness: Harness) -> None:
    """Give-backs to credits of a deleted entity do not reach those of its next bucket."""
    limiter = await new_limiter(harness)
    await limiter.set_system_defaults([STILL])
    await limiter.create_entity("key")
    await limiter.top_up("key", "gpt-4", {"tpm": 50})
    async with limiter.acquire("key", "gpt-4", {"tpm": 140}) as lease:
        await limiter.delete_entity("key")
        await limiter.top_up("key", "gpt-4", {"tpm": 7})
        await lease.release(tpm=140)
    same(await limiter.available("key", "gpt-4"), {"tpm": 107}, "only the new credit is there")


@check
async def a_deleted_entity_leaves_no_idempotency_keys(harness: Harness) -> None:
    """An entity that is created again gets its credit, also with a key that the deleted one has used."""
    limiter = await new_limiter(harness)
    await limiter.set_system_defaults([STILL])
    used = [f"order-{number}" for number in range(60)]
    for lives in range(2):
        await limiter.create_entity("key")
        for key in used if lives == 0 else used[:1] + used[-1:]:
            await limiter.top_up("key", "gpt-4", {"tpm": 50}, idempotency_key=key)
        credit = 50 * (60 if lives == 0 else 2)
        same(await limiter.available("key", "gpt-4"), {"tpm": 100 + credit}, f"after {lives} deletions")
        await limiter.delete_entity("key")


async def _takes(limiter: RateLimiter, tokens: int, entity_id: str = "key") -> bool:
    async with limiter.acquire(entity_id, "gpt-4", {"tpm": tokens}):
        return True


CHECKS = checks_of(globals())
