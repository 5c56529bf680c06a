"""Give-backs against a replay of the history: a bucket never holds more than if the tokens had not been taken.

A `Story` is driven by several clients that take from one bucket, settle in any order, change the limits, reset the
bucket or let it expire. Every effect that the store shows is written down. When tokens come back, the history is
replayed as if nobody had ever taken more than was kept by now: what the bucket holds must not be more than what the
replay finds. So no return counts for more than it should, and neither do several of them together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from ...core.errors import RateLimitExceeded
from ...core.limit import Limit
from .expect import true
from .oracle import balance, made
from .room import beside, new_limiter
from .traffic import RESOURCE, Boom

if TYPE_CHECKING:
    from ...core.reports import BucketState
    from ...limiter.lease import Lease
    from ..harness import Harness

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
    """An open lease ends: with an adjustment, or with an exception where that is None."""

    lease: int
    change: Mapping[str, int] | None


@dataclass(frozen=True, slots=True)
class Change:
    """A client stores other limits of the same names."""

    client: int
    limits: tuple[Limit, ...]


@dataclass(frozen=True, slots=True)
class Reset:
    """A client deletes the bucket."""

    client: int


Step: TypeAlias = Pause | Take | End | Change | Reset


@dataclass(frozen=True, slots=True)
class Effect:
    """An event that the store has shown of one limit: tokens taken, other limits, a new bucket."""

    kind: str
    at_ms: int
    milli: int = 0
    limit: Limit | None = None


class Replay:
    """One limit of a bucket, said as simply as it can be: refill, clip, take."""

    def __init__(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            getattr(self, effect.kind)(effect)

    def make(self, effect: Effect) -> None:
        """Start with a full bucket."""
        assert effect.limit is not None
        self.limit = effect.limit
        self.milli = effect.limit.capacity * 1000
        self.as_of_ms = effect.at_ms

    def level(self, now_ms: int) -> int:
        """Return the balance at an instant."""
        since = made(self.limit, now_ms) - made(self.limit, self.as_of_ms)
        return min(self.limit.capacity * 1000, self.milli + since)

    def take(self, effect: Effect) -> None:
        """Take tokens as of an instant; what was beyond the ceiling then is lost."""
        self.milli = self.level(effect.at_ms) - effect.milli
        self.as_of_ms = effect.at_ms

    def owe(self, effect: Effect) -> None:
        """Take what a new bucket was found to owe."""
        self.milli -= effect.milli

    def change(self, effect: Effect) -> None:
        """Go on under another limit: a raise keeps the tokens, a cut clamps them."""
        assert effect.limit is not None
        held = self.level(effect.at_ms)
        self.limit = effect.limit
        self.milli = min(held, effect.limit.capacity * 1000)
        self.as_of_ms = effect.at_ms


@dataclass(slots=True)
class Open:
    """A lease whose body is still running, and where its charge stands in the history of each limit."""

    lease: Lease
    cost: Mapping[str, int]
    at_ms: int
    places: dict[str, int]


class Story:
    """One bucket, its clients, and the history of each of its limits."""

    def __init__(self, harness: Harness, limits: tuple[Limit, ...], slack_ms: int) -> None:
        self.harness = harness
        self.slack_ms = slack_ms
        self.limits = limits
        self.history: dict[str, list[Effect]] = {}
        self.open: list[Open] = []
        self.stored: dict[str, BucketState] = {}

    async def begin(self, clients: int, **options: Any) -> Story:
        """Store the limits as defaults, so that the bucket expires, and start the clients."""
        keeper = await new_limiter(self.harness)
        await keeper.set_system_defaults(self.limits)
        self.clients = [beside(self.harness, keeper, **options) for _ in range(clients)]
        self.keeper = beside(self.harness, keeper)
        return self

    @property
    def now_ms(self) -> int:
        """The time of all clients."""
        return self.harness.clock.now_ms()

    async def drive(self, steps: Sequence[Step]) -> None:
        """Do every step, end the leases that are still open, and judge every give-back on the way."""
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
                self.limits = limits
                await self.clients[client % len(self.clients)].set_system_defaults(limits)
            case Reset(client):
                await self.clients[client % len(self.clients)].reset_bucket(ENTITY, RESOURCE)
        await self._look()

    async def _look(self) -> None:
        """Write down whether the bucket is there, and under which limits."""
        found = {state.limit_name: state for state in await self.keeper.get_buckets(ENTITY)}
        for name, state in found.items():
            limit = _limit(state)
            history = self.history.setdefault(name, [])
            known = self.stored.get(name)
            if known is None:
                history.append(Effect("make", state.last_refill_ms, limit=limit))
            elif _limit(known) != limit:
                history.append(Effect("change", self.now_ms, limit=limit))
        self.stored = found

    async def _take(self, client: int, cost: Mapping[str, int]) -> None:
        await self._look()
        lease = self.clients[client % len(self.clients)].acquire(ENTITY, RESOURCE, cost)
        try:
            await lease.__aenter__()
        except RateLimitExceeded:
            return
        await self._look()
        places = {}
        for name, amount in cost.items():
            if amount:
                places[name] = len(self.history[name])
                self.history[name].append(Effect("take", self.now_ms, amount * 1000))
        self.open.append(Open(lease, cost, self.now_ms, places))

    async def _end(self, ended: Open, change: Mapping[str, int] | None) -> None:
        await self._look()
        before = self.stored
        if change is None:
            await ended.lease.__aexit__(Boom, Boom(), None)
            change = {name: -amount for name, amount in ended.cost.items()}
        else:
            await ended.lease.adjust(change)
            await ended.lease.__aexit__(None, None, None)
        await self._look()
        for name, amount in change.items():
            if amount < 0 and name in ended.places:
                self._keep_less(ended, name, min(-amount, ended.cost[name]) * 1000)
                if name in before and name in self.stored:
                    self._judge(name)
            elif amount > 0 and name in before and name in self.stored:
                self._owe(ended, name, amount * 1000, before[name])

    def _owe(self, ended: Open, name: str, milli: int, before: BucketState) -> None:
        """Write a debt down: as of the charge, or as it was found where the bucket was made since."""
        history, place = self.history[name], ended.places.get(name, 0)
        if any(effect.kind == "make" for effect in history[place + 1 :]):
            history.append(Effect("owe", self.now_ms, before.tokens_milli - self.stored[name].tokens_milli))
        else:
            history.append(Effect("take", ended.at_ms, milli))

    def _keep_less(self, ended: Open, name: str, back_milli: int) -> None:
        """Write down that a part of a charge was not kept."""
        history, place = self.history[name], ended.places[name]
        history[place] = replace(history[place], milli=history[place].milli - back_milli)

    def _judge(self, name: str) -> None:
        """Compare what there is with a replay of what was kept."""
        history = self.history[name]
        best = Replay(history).level(self.now_ms)
        found = balance(self.stored[name], self.now_ms)
        changes = sum(effect.kind == "change" for effect in history)
        lag = 0 if self.slack_ms == 0 else max(_made_in(effect.limit, self.slack_ms) for effect in history)
        true(
            found <= best + changes + lag, f"{name} has {found} after a give-back, a replay of what was kept has {best}"
        )


def _made_in(limit: Limit | None, milliseconds: int) -> int:
    """Return how many millitokens a limit makes in a while, rounded up."""
    return 0 if limit is None else -(-milliseconds * limit.refill_amount // limit.refill_period_seconds)


def _limit(state: BucketState) -> Limit:
    """Return the limit that a stored bucket is kept under."""
    capacity, amount, period = state.capacity_milli, state.refill_amount_milli, state.refill_period_ms
    return Limit(state.limit_name, capacity // 1000, amount // 1000, period // 1000)


async def gives_back_no_more_than_a_replay(
    harness: Harness, limits: tuple[Limit, ...], steps: Sequence[Step], clients: int, slack_ms: int, **options: Any
) -> None:
    """Drive a story; raise AssertionError where a give-back is worth more than had the tokens never been taken.

    ``slack_ms`` is how far in the past clients may decide that lose races: 0 where they look before they write.
    """
    story = await Story(harness, limits, slack_ms).begin(clients, **options)
    await story.drive(steps)
