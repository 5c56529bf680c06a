"""All kinds of limits in one bucket, with credits beside them, against books that keep windows and lots by hand.

Every limit of the bucket has books of its own: a request is granted if all of them have it, and takes from all of them.
The steps are drawn by hypothesis, on every store and in both modes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from hypothesis import strategies as st

from tests.conformance.oracle import made
from tests.conformance.traffic import RESOURCE, Boom
from tests.laws.test_laws import from_start, prove
from zae_limiter import Limit, RateLimitExceeded

if TYPE_CHECKING:
    from tests.support.backends import Backend
    from zae_limiter import RateLimiter
    from zae_limiter.testing import Harness, ManualClock

RATE = Limit.custom("rpm", 60, 7, 9, floors={"batch": 0.5})
QUOTA = Limit.quota("tpd", 1_000, every="day", tz="Europe/Berlin", rollover=200, floors={"batch": 0.3})
PERIOD = Limit.quota("tp5", 40, every=timedelta(minutes=5))
SOFT = Limit.per_hour("tph", 500, soft=True)
SOFT_QUOTA = Limit.quota("tpm", 5_000, every="month", tz="America/New_York", soft=True)
KINDS = (RATE, QUOTA, PERIOD, SOFT, SOFT_QUOTA)
FOR_EVER = 2**62
LEAST = -(10**18)
DAY_MS = 86_400_000


class Step(NamedTuple):
    """Some time, then an acquire that ends in one way or another, or a top-up."""

    wait_ms: int
    cost: dict[str, int]
    priority: str | None = None
    more: dict[str, int] | None = None
    """What it took more; None where it fails, and all is given back."""
    top_up: tuple[str, int, int | None] | None = None
    """Instead of an acquire: the limit, tokens and how long they last."""


@dataclass
class Books:
    """One limit: what is left of it in millitokens, and its credits by expiry."""

    limit: Limit
    now_ms: int
    held: int
    lots: dict[int, int] = field(default_factory=dict)

    def level(self, at_ms: int) -> int:
        """Return the allowance at an instant."""
        refill = made(self.limit, at_ms) - made(self.limit, self.now_ms)
        return min(self.limit.capacity * 1000, self.held + refill)

    def total(self, at_ms: int) -> int:
        """Return what there is at an instant, with credits."""
        return self.level(at_ms) + sum(milli for expiry, milli in self.lots.items() if expiry > at_ms)

    def move_to(self, now_ms: int) -> None:
        """Refill, and drop the lots that have expired."""
        self.held, self.now_ms = self.level(now_ms), now_ms
        self.lots = {expiry: milli for expiry, milli in self.lots.items() if expiry > now_ms}

    def needs(self, tokens: int, priority: str | None) -> int:
        """Return what has to be there for a request, with the floor that it leaves."""
        return (
            LEAST if self.limit.soft else tokens * 1000 + round(self.limit.capacity * 1000 * self.limit.floor(priority))
        )

    def take(self, tokens: int) -> None:
        """Take from the allowance what it has, then from lots, the first to expire first; the rest is owed."""
        milli = tokens * 1000
        taken = max(0, min(milli, self.held))
        self.held -= taken
        milli -= taken
        for expiry in sorted(self.lots):
            taken = min(milli, self.lots[expiry])
            self.lots[expiry] -= taken
            milli -= taken
        self.held -= milli

    def is_promised(self, needed: int, wait_ms: int) -> bool:
        """Return whether the moment after ``wait_ms`` is the first at which as much is there."""
        before = [self.now_ms + wait_ms - 1, *(expiry - 1 for expiry in self.lots)]
        late = self.now_ms + wait_ms
        return self.total(late) >= needed and all(self.total(at) < needed for at in before if self.now_ms <= at < late)


NAMES = [limit.name for limit in KINDS]
amounts = {
    limit.name: st.sampled_from([0, 1, limit.capacity // 3, limit.capacity - 1, limit.capacity]) for limit in KINDS
}
STEPS = st.builds(
    Step,
    wait_ms=st.sampled_from([0, 0, 1, 999, 1_286, 60_000, 300_000, 6 * 3_600_000, DAY_MS, 20 * DAY_MS]),
    cost=st.fixed_dictionaries({}, optional=amounts).filter(bool),
    priority=st.sampled_from([None, None, None, "batch"]),
    more=st.none() | st.just({}) | st.fixed_dictionaries({}, optional={name: st.integers(0, 3_000) for name in NAMES}),
    top_up=st.none()
    | st.none()
    | st.tuples(st.sampled_from(NAMES), st.integers(1, 900), st.sampled_from([None, 1_000, 90_000, 2 * DAY_MS])),
)


class Play:
    """Clients of one bucket, and its books.

    One of them writes by what it remembers; several look first, as a full bucket over which they race would be drawn
    as of a moment ago.
    """

    def __init__(self, clock: ManualClock, clients: list[RateLimiter]) -> None:
        self.clock = clock
        self.clients = clients
        now_ms = self.clock.now_ms()
        self.books = {limit.name: Books(limit, now_ms, limit.capacity * 1000) for limit in KINDS}

    async def run(self, entity_id: str, steps: list[Step]) -> None:
        """Take one step after the other, and compare what is left after each."""
        for number, step in enumerate(steps):
            self.clock.advance_ms(step.wait_ms)
            for books in self.books.values():
                books.move_to(self.clock.now_ms())
            limiter = self.clients[number % len(self.clients)]
            if step.top_up is not None:
                await self.top_up(limiter, entity_id, *step.top_up)
            else:
                await self.acquire(limiter, entity_id, step)
            left = {name: books.total(self.clock.now_ms()) // 1000 for name, books in self.books.items()}
            found = await limiter.available(entity_id, RESOURCE)
            assert found == left, (number, found, left)

    async def top_up(self, limiter: RateLimiter, entity_id: str, name: str, tokens: int, lasts_ms: int | None) -> None:
        books = self.books[name]
        expires_ms = FOR_EVER if lasts_ms is None else self.clock.now_ms() + lasts_ms
        if expires_ms not in books.lots and len(books.lots) > 10:
            return
        expires_at = None if lasts_ms is None else datetime.fromtimestamp(expires_ms / 1000, UTC)
        await limiter.top_up(entity_id, RESOURCE, {name: tokens}, expires_at=expires_at)
        books.lots[expires_ms] = books.lots.get(expires_ms, 0) + tokens * 1000

    async def acquire(self, limiter: RateLimiter, entity_id: str, step: Step) -> None:
        now_ms = self.clock.now_ms()
        needs = {name: self.books[name].needs(tokens, step.priority) for name, tokens in step.cost.items()}
        short = {name for name, needed in needs.items() if self.books[name].total(now_ms) < needed}
        try:
            async with limiter.acquire(entity_id, RESOURCE, step.cost, priority=step.priority) as lease:
                assert not short
                if step.more is None:
                    raise Boom
                await lease.adjust(step.more)
            for name, tokens in step.cost.items():
                self.books[name].take(tokens)
            for name, tokens in step.more.items():
                self.books[name].held -= tokens * 1000
        except Boom:
            pass
        except RateLimitExceeded as refused:
            self.expect(refused, short, needs)

    def expect(self, refused: RateLimitExceeded, short: set[str], needs: dict[str, int]) -> None:
        """Check who refuses, and that each names the first moment at which it would not."""
        assert {status.limit_name for status in refused.violations} == short
        for status in refused.violations:
            if status.retry_after_seconds is not None:
                wait_ms = round(status.retry_after_seconds * 1000)
                books = self.books[status.limit_name]
                assert books.is_promised(needs[status.limit_name], wait_ms), (status, books)


def test_all_kinds_of_limits_and_credits_in_one_bucket(backend: Backend, harness: Harness) -> None:
    """Grants, refusals, promised moments and what is left are those of every limit by itself."""
    number, alone = 0, [harness.limiter(refusal_ttl=0)]
    together = [harness.limiter(refusal_ttl=0, speculative_writes=False) for _ in range(2)]
    harness.run(alone[0].set_system_defaults(list(KINDS)))

    def law(drawn: tuple[int, list[Step], bool]) -> None:
        nonlocal number
        number += 1
        phase_ms, steps, is_alone = drawn
        clients = alone if is_alone else together

        async def work() -> None:
            await Play(harness.clock, clients).run(f"key-{number}", steps)

        from_start(harness, phase_ms, work())

    phases = st.integers(0, 40 * DAY_MS)
    drawn: st.SearchStrategy[Any] = st.tuples(phases, st.lists(STEPS, min_size=1, max_size=20), st.booleans())
    prove(backend, 1.0, drawn, law)
