"""Traffic: what several clients do to a family of entities, told as values and then done."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tests.conformance.oracle import LAG_MS, Entry, Ledger, balance, balances
from tests.conformance.room import beside, new_limiter
from zae_limiter.core.errors import RateLimitExceeded
from zae_limiter.records.algebra import Conflict
from zae_limiter.stores.port import UpdatesInPlace
from zae_limiter.testing.clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from typing import Self

    from zae_limiter.core.limit import Limit
    from zae_limiter.core.values import BackendCapabilities
    from zae_limiter.limiter.lease import Lease
    from zae_limiter.limiter.limiter import RateLimiter
    from zae_limiter.records.algebra import Committed, Image, Key, Page, Query, Write
    from zae_limiter.stores.port import Store
    from zae_limiter.testing.harness import Harness

RESOURCE = "gpt-4"


class Boom(Exception):
    """The error that a failing body raises."""


class Host:
    """A client of the store on a machine of its own: its clock may be off, and it counts lost races."""

    def __init__(self, inner: Store, skew_ms: int = 0) -> None:
        self.inner = inner
        self.clock = ManualClock(inner.clock.now_ms() + skew_ms)
        self.skew_ms = skew_ms
        self.lost_races = 0
        self._latest: dict[str, int] = {}

    def instant_ms(self, entities: Iterable[str]) -> int:
        """Return the instant as of which it decides: now, but never before its last look at the buckets."""
        looks = (self._latest.get(f"BUCKET#{each}#{RESOURCE}#0", 0) for each in entities)
        return max(self.clock.now_ms(), *looks)

    def _look(self, partition_keys: Iterable[str]) -> None:
        for pk in partition_keys:
            name = pk.partition("/")[2]
            self._latest[name] = max(self.clock.now_ms(), self._latest.get(name, 0))

    @property
    def capabilities(self) -> BackendCapabilities:
        """Those of the store."""
        return self.inner.capabilities

    async def read(self, keys: Sequence[Key], *, timeout: float | None = None) -> list[Image | None]:
        """Read from the store."""
        images = await self.inner.read(keys, timeout=timeout)
        self._look(key.pk for key, image in zip(keys, images, strict=True) if image is not None)
        return images

    async def commit(self, writes: Sequence[Write], *, timeout: float | None = None) -> Committed | Conflict:
        """Commit to the store."""
        self._look(write.key.pk for write in writes)
        outcome = await self.inner.commit(writes, timeout=timeout)
        self.lost_races += isinstance(outcome, Conflict)
        return outcome

    async def query(self, query: Query, *, timeout: float | None = None) -> Page:
        """Query the store."""
        return await self.inner.query(query, timeout=timeout)

    async def close(self) -> None:
        """Close the store."""
        await self.inner.close()


class EmbeddedHost(Host):
    """A host inside the process of a store that lends out its records."""

    inner: Any

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """That of the store."""
        lock: AbstractContextManager[Any] = self.inner.lock
        return lock

    @property
    def images(self) -> Self:
        """Those of the store; whoever gets one has looked at it."""
        return self

    def get(self, pk: str) -> Image | None:
        """Return an image of the store."""
        self._look([pk])
        image: Image | None = self.inner.images.get(pk)
        return image

    def __setitem__(self, pk: str, image: Image) -> None:
        self.inner.images[pk] = image

    def is_inside(self) -> bool:
        """Ask the store."""
        inside: bool = self.inner.is_inside()
        return inside

    def has_records(self, pk: str) -> bool:
        """Ask the store."""
        found: bool = self.inner.has_records(pk)
        return found

    def find_bucket(self, key: Key, now_ms: int) -> Image | None:
        """Find a bucket in the store."""
        image: Image | None = self.inner.find_bucket(key, now_ms)
        return image

    def insert_bucket(self, key: Key, image: Image, now_ms: int, full_ms: int) -> None:
        """Add a bucket to the store."""
        self.inner.insert_bucket(key, image, now_ms, full_ms)

    @property
    def returned(self) -> Container[str]:
        """Ask the store."""
        returned: Container[str] = self.inner.returned
        return returned

    def note_return(self, key: Key) -> None:
        """Note a return in the store."""
        self.inner.note_return(key)


def host(store: Store, skew_ms: int = 0) -> Host:
    """Return the store as seen from a host."""
    return (EmbeddedHost if isinstance(store, UpdatesInPlace) else Host)(store, skew_ms)


@dataclass(frozen=True, slots=True)
class Move:
    """After ``wait_ms`` a client asks; its lease ends after ``hold`` more moves.

    ``outcome`` is what the body says at its end: amounts to adjust by, or None for an exception.
    """

    wait_ms: int
    cost: Mapping[str, int]
    outcome: Mapping[str, int] | None = field(default_factory=dict)
    hold: int = 0
    client: int = 0
    child: int = 0


@dataclass(slots=True)
class Open:
    """A lease whose body is still running."""

    lease: Lease
    move: Move
    client: int
    ends: int


class Family:
    """A parent and its children under limits of their own, and the clients that take for them."""

    def __init__(
        self, harness: Harness, limits: Sequence[Limit], parent_limits: Sequence[Limit] = (), children: int = 1
    ) -> None:
        self.harness = harness
        self.limits = tuple(limits)
        self.parent_limits = tuple(parent_limits)
        self.children = [f"child-{number}" for number in range(children)]
        self.hosts: list[Host] = []
        self.limiters: list[RateLimiter] = []
        self.refusals: list[RateLimitExceeded] = []
        self.ledgers = {("parent", limit.name): Ledger(limit) for limit in self.parent_limits}
        self.ledgers |= {(child, limit.name): Ledger(limit) for child in self.children for limit in self.limits}
        self._open: list[Open] = []

    async def settle_in(self, skews_ms: Sequence[int] = (0,), *, by_default: bool = False, **options: Any) -> Family:
        """Store the entities and their limits, and start a client for each skew.

        ``by_default`` stores the children's limits as defaults, so that their buckets expire.
        """
        keeper = await new_limiter(self.harness)
        if self.parent_limits:
            await keeper.create_entity("parent")
            await keeper.set_limits("parent", self.parent_limits)
        if by_default:
            await keeper.set_system_defaults(self.limits)
        for child in self.children:
            if self.parent_limits:
                await keeper.create_entity(child, parent_id="parent", cascade=True)
            if not by_default:
                await keeper.set_limits(child, self.limits)
        self._namespace = keeper.repository.namespace
        for skew_ms in skews_ms:
            self.new_client(skew_ms, **options)
        self.keeper = beside(self.harness, keeper)
        return self

    @property
    def everybody(self) -> list[str]:
        """The ids of all entities."""
        return ["parent", *self.children] if self.parent_limits else self.children

    async def drive(self, moves: Sequence[Move]) -> None:
        """Do as the moves say, and keep the books."""
        for number, move in enumerate(moves):
            self.advance(move.wait_ms)
            await self._end_those(number)
            await self._ask(number, move)
        await self._end_those(None)
        await self.flush()

    async def flush(self) -> None:
        """Have every client give back what it holds and write what it has gathered; nothing without prefetch."""
        for limiter in self.limiters:
            await limiter.flush()

    async def balances(self, entities: Sequence[str], now_ms: int) -> dict[tuple[str, str, str], int]:
        """Return what is left of every limit, when nobody holds anything."""
        await self.flush()
        return await balances(self.keeper, entities, now_ms)

    def check(self) -> None:
        """Check law 1 for every limit of every entity."""
        for ledger in self.ledgers.values():
            ledger.check()

    @property
    def now_ms(self) -> int:
        """The true time."""
        return self.harness.clock.now_ms()

    def new_client(self, skew_ms: int = 0, **options: Any) -> RateLimiter:
        """Return one more client of the same data."""
        self.hosts.append(host(self.harness.store(), skew_ms))
        repository = self.harness.repository(self.hosts[-1], namespace=self._namespace)
        self.limiters.append(self.harness.limiter(repository, **options))
        return self.limiters[-1]

    def advance(self, wait_ms: int) -> None:
        """Let time pass, for everybody."""
        self.harness.clock.advance_ms(wait_ms)
        for each in self.hosts:
            each.clock.set_ms(self.harness.clock.now_ms() + each.skew_ms)

    async def _ask(self, number: int, move: Move) -> None:
        client = move.client % len(self.limiters)
        child = self.children[move.child % len(self.children)]
        lease = self.limiters[client].acquire(child, RESOURCE, move.cost)
        try:
            await lease.__aenter__()
        except RateLimitExceeded as refusal:
            self.refusals.append(refusal)
            return
        self._book_granted(child, move.cost, client)
        self._open.append(Open(lease, move, client, number + 1 + move.hold))

    async def _end_those(self, number: int | None) -> None:
        """End the leases that are due by a move, or all."""
        ending = [each for each in self._open if number is None or each.ends <= number]
        self._open = [each for each in self._open if each not in ending]
        for each in ending:
            change = each.move.outcome
            if change == {}:
                await each.lease.__aexit__(None, None, None)
                continue
            await self.flush()
            before = await self._levels()
            if change is None:
                await each.lease.__aexit__(Boom, Boom(), None)
                change = {name: -amount for name, amount in each.move.cost.items()}
            else:
                await each.lease.adjust(change)
                await each.lease.__aexit__(None, None, None)
            await self.flush()
            self._book_settled(each, change, before, await self._levels())

    async def _levels(self) -> dict[tuple[str, str], int]:
        """Return the balances by entity and limit as the client sees them whose clock is the farthest behind.

        A return to a bucket that is full by the other clocks may still raise the level for that one.
        """
        now_ms = min(each.clock.now_ms() for each in self.hosts) - LAG_MS
        every = [await self.keeper.get_buckets(who) for who in self.everybody]
        return {(state.entity_id, state.limit_name): balance(state, now_ms) for states in every for state in states}

    def _book_granted(self, child: str, cost: Mapping[str, int], client: int) -> None:
        host_ = self.hosts[client]
        at_ms = host_.instant_ms((child, "parent"))
        lag_ms = LAG_MS if host_.lost_races else 0
        entry = Entry(at_ms, 0, True, lag_ms + int(self.harness.prefetch * 1000))
        for (who, name), ledger in self.ledgers.items():
            if who in (child, "parent") and cost.get(name):
                ledger.entries.append(replace(entry, milli=cost[name] * 1000))

    def _book_settled(
        self,
        ended: Open,
        change: Mapping[str, int],
        before: Mapping[tuple[str, str], int],
        after: Mapping[tuple[str, str], int],
    ) -> None:
        """Book debt in full, and a give-back as far as it raised the balance, but never for more than was given."""
        child = self.children[ended.move.child % len(self.children)]
        at_ms = self.hosts[ended.client].clock.now_ms()
        for (who, name), ledger in self.ledgers.items():
            if who in (child, "parent") and change.get(name):
                came_back = after.get((who, name), 0) - before.get((who, name), 0)
                milli = max(change[name] * 1000, -max(0, came_back)) if change[name] < 0 else change[name] * 1000
                ledger.entries.append(Entry(at_ms, milli, granted=False))
