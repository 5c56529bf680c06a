"""Settlements against a model: after every step a bucket holds what simple arithmetic says, no more and no less.

A `Story` is driven by several clients that take from one bucket, settle in any order, change the limits, reset the
bucket, let it expire or crash. An `ExactBucket` for each limit goes along: a settlement counts when it comes, and
tokens of a bucket that was made anew since do not come back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from tests.conformance.expect import true
from tests.conformance.oracle import ExactBucket, balance
from tests.conformance.room import beside, new_limiter
from tests.conformance.traffic import RESOURCE, Boom
from zae_limiter.core.errors import RateLimitExceeded
from zae_limiter.core.limit import Limit

if TYPE_CHECKING:
    from zae_limiter.core.reports import BucketState
    from zae_limiter.limiter.lease import Lease
    from zae_limiter.testing.harness import Harness

ENTITY = "key"


@dataclass(frozen=True, slots=True)
class Pause:
    """Time passes; a bucket under default limits that is full may be forgotten."""

    milliseconds: int


@dataclass(frozen=True, slots=True)
class Take:
    """A client acquires and keeps the lease open."""

    client: int
    cost: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class End:
    """An open lease ends: with an adjustment, or with an exception if that is None."""

    lease: int
    change: Mapping[str, int] | None


@dataclass(frozen=True, slots=True)
class Change:
    """A client stores other limits of the same names."""

    client: int
    limits: tuple[Limit, ...]


@dataclass(frozen=True, slots=True)
class Reset:
    """A client resets the bucket, which voids what open leases give back."""

    client: int


@dataclass(frozen=True, slots=True)
class Crash:
    """The process of an open lease dies: nothing is settled, and the estimate stays charged."""

    lease: int


Step: TypeAlias = Pause | Take | End | Change | Reset | Crash


@dataclass(slots=True)
class Open:
    """A lease whose body is still running, and the buckets that it was charged to, by limit."""

    lease: Lease
    cost: Mapping[str, int]
    at_ms: int
    pots: Mapping[str, ExactBucket]


class Story:
    """One bucket, its clients, and a model of each of its limits."""

    def __init__(self, harness: Harness, limits: tuple[Limit, ...], slack_ms: int) -> None:
        self.harness = harness
        self.slack_ms = slack_ms
        self.limits = limits
        self.open: list[Open] = []
        self.stored: dict[str, BucketState] = {}
        self.pots: dict[str, ExactBucket] = {}
        self.changes = Counter[str]()
        self.history: list[tuple[int, tuple[Limit, ...]]] = []
        """The limits that were ever stored, each with the instant of the change."""
        self.newest_ms = 0
        """The newest instant as of which anything was taken: a change does not count from before it."""
        self.lag = dict.fromkeys([limit.name for limit in limits], 0)

    async def begin(self, clients: int, **options: Any) -> Story:
        """Store the limits as defaults, so that the bucket expires, and start the clients."""
        keeper = await new_limiter(self.harness)
        await keeper.set_system_defaults(self.limits)
        self.history.append((self.now_ms, self.limits))
        self.clients = [beside(self.harness, keeper, **options) for _ in range(clients)]
        self.keeper = beside(self.harness, keeper)
        return self

    @property
    def now_ms(self) -> int:
        """The time of all clients."""
        return self.harness.clock.now_ms()

    async def drive(self, steps: Sequence[Step]) -> None:
        """Do every step, end the leases that are still open, and compare the bucket with the model after each."""
        for step in steps:
            await self._do(step)
        while self.open:
            await self._do(End(0, None))

    async def _do(self, step: Step) -> None:
        match step:
            case Pause(milliseconds):
                self.harness.clock.advance_ms(milliseconds)
            case Take(client, cost):
                await self._take(client, cost)
            case End(lease, change) if self.open:
                await self._end(self.open.pop(lease % len(self.open)), change)
            case Change(client, limits):
                if limits != self.limits:
                    self.history.append((self.now_ms, limits))
                self.limits = limits
                await self.clients[client % len(self.clients)].set_system_defaults(limits)
            case Reset(client):
                await self.clients[client % len(self.clients)].reset_bucket(ENTITY, RESOURCE)
                await self._look()
                self.newest_ms = self.now_ms
                for name, state in self.stored.items():
                    self.pots[name] = ExactBucket.full(Limit.from_bucket_state(state), self.now_ms)
            case Crash(lease) if self.open:
                self.open.pop(lease % len(self.open))
        await self._look()
        for name in self.stored:
            self._judge(name)

    async def _look(self) -> None:
        """Have the model follow a bucket that was made, changed or forgotten."""
        found = {state.limit_name: state for state in await self.keeper.get_buckets(ENTITY)}
        newest_ms = self.newest_ms
        for name, state in found.items():
            limit, known = Limit.from_bucket_state(state), self.stored.get(name)
            self.lag[name] = max(self.lag[name], _made_in(limit, self.slack_ms))
            if known is None:
                self.pots[name] = ExactBucket.full(limit, state.last_refill_ms)
                self.newest_ms = self.now_ms
            elif Limit.from_bucket_state(known) != limit:
                self.pots[name].change(limit, max(self._changed_ms(limit), newest_ms))
                self.changes[name] += 1
                self.newest_ms = self.now_ms
        self.stored = found

    def _changed_ms(self, limit: Limit) -> int:
        """Return since when a limit has been what it is, whatever else was changed meanwhile."""
        since_ms, before = 0, tuple[Limit, ...]()
        for instant_ms, limits in self.history:
            since_ms = instant_ms if limit in limits and limit not in before else since_ms
            before = limits
        return since_ms

    async def _take(self, client: int, cost: Mapping[str, int]) -> None:
        await self._look()
        lease = self.clients[client % len(self.clients)].acquire(ENTITY, RESOURCE, cost)
        try:
            await lease.__aenter__()
        except RateLimitExceeded:
            return
        await self._look()
        for name, amount in cost.items():
            if amount:
                self.newest_ms = self.now_ms
                self.pots[name].take(amount, self.now_ms)
                left = self.pots[name].level(self.now_ms) + self._tolerance(name)
                true(left >= 0, f"{amount} of {name} were granted, {-left} millitokens more than there were")
        self.open.append(Open(lease, cost, self.now_ms, dict(self.pots)))

    async def _end(self, ended: Open, change: Mapping[str, int] | None) -> None:
        await self._look()
        if change is None:
            await ended.lease.__aexit__(Boom, Boom(), None)
            change = {name: -amount for name, amount in ended.cost.items()}
        else:
            await ended.lease.adjust(change)
            await ended.lease.__aexit__(None, None, None)
        await self._look()
        for name, amount in change.items():
            if amount > 0 and name in self.stored:
                self.newest_ms = self.now_ms
                self.pots[name].take(amount, self.now_ms)
            elif amount < 0 and name in self.stored and self.pots[name] is ended.pots.get(name):
                self.pots[name].give_back(min(-amount, ended.cost.get(name, 0)), ended.at_ms, self.now_ms)

    def _judge(self, name: str) -> None:
        """Compare the stored balance with that of the model."""
        expected = self.pots[name].level(self.now_ms)
        found = balance(self.stored[name], self.now_ms)
        true(abs(found - expected) <= self._tolerance(name), f"{name} has {found} millitokens instead of {expected}")

    def _tolerance(self, name: str) -> int:
        """Return how far a balance may be off: a millitoken per changed limit, and what lost races decide too early."""
        return self.changes[name] + self.lag[name]


def _made_in(limit: Limit, milliseconds: int) -> int:
    """Return how many millitokens a limit makes in a while, rounded up."""
    if limit.calendar is not None or not milliseconds:
        return 0
    return -(-milliseconds * limit.refill_amount // limit.refill_period_seconds)


async def settles_as_the_model(
    harness: Harness, limits: tuple[Limit, ...], steps: Sequence[Step], clients: int, slack_ms: int, **options: Any
) -> None:
    """Drive a story; raise AssertionError if a balance is not that of the model, or more is granted than there is.

    ``slack_ms`` is how far in the past clients may decide that lose races: 0 if they look before they write.
    """
    story = await Story(harness, limits, slack_ms).begin(clients, **options)
    await story.drive(steps)
