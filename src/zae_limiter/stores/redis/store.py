"""The Redis store: guarded writes as one script call, over connections that are async or blocking."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ...clock import Clock
from ...core.errors import CorruptRecordError, InfrastructureError
from ...core.values import BackendCapabilities
from ...records import bucket
from ...records.algebra import Committed, Conflict, Image, Key, Page, Query, Write, holds, is_live
from ...records.keys import STATE
from ...records.usage import USAGE_RETENTION_DAYS
from ..server_clock import ServerClock
from . import index
from .answers import read_eviction_policy, read_time_ms
from .client import Client
from .images import can_change_index, decode_image, encode, plan_swap, tokens_of
from .index import CLUSTER_CELLS, Layout
from .links import MEMORY, Nodes, check_login
from .resp import COMMIT, SWAP, pack_arguments
from .settings import Settings
from .topology import open_topology
from .wires import AsyncWire, BlockingWire

if TYPE_CHECKING:
    pass

_TELL = "T"
_PACKED_TELL = pack_arguments(_TELL)
_TELL_SECONDS = 1.0
"""For so long after it was learned the server's time is not asked for again."""

SINGLE = BackendCapabilities(
    name="redis",
    instant=False,
    free_atomic_commit=True,
    own_clock=True,
    several_processes=True,
    several_hosts=True,
    usage_retention_days=USAGE_RETENTION_DAYS,
    never_cancels=True,
)

CLUSTER = replace(SINGLE, name="redis-cluster", free_atomic_commit=False, wide_commits=False)


class RedisStore:
    """Records in Redis or Valkey. Usable from any number of threads and event loops at once.

    ``clock`` stands in for the server's own clock, by which all clients decide otherwise; records then expire by it and
    not by themselves.
    """

    def __init__(
        self,
        client: Client,
        layout: Layout,
        server_clock: ServerClock,
        clock: Clock | None = None,
        usage_retention_days: int = USAGE_RETENTION_DAYS,
    ) -> None:
        able = SINGLE if layout.cells == 1 else CLUSTER
        self.capabilities = replace(able, usage_retention_days=usage_retention_days, timeout=client.timeout)
        self.client = client
        self.stats, self.close = client.stats, client.close
        self.layout = layout
        self.clock: Clock = clock or server_clock
        self._server_clock = server_clock
        self._own_time = clock is None
        self._tell_at = 0.0 if self._own_time else math.inf
        """When the server is asked for its time again, by the monotonic clock."""
        self._sweeper = index.Sweeper(client, layout, self.clock, self.now)
        self._open_for_threads: Callable[[], RedisStore] | None = None

    def for_threads(self) -> RedisStore:
        """Return a store of the same records for any thread, with the same counters; this one if it is such a store."""
        if self._open_for_threads is None:
            return self
        store = self._open_for_threads()
        store.client.counts = self.client.counts
        store.client.nodes.opener.policies = self.client.nodes.opener.policies
        return store

    def now(self) -> str:
        """Return the instant by which records expire, as the scripts take it: empty for the server's own time."""
        return "" if self._own_time else str(self.clock.now_ms())

    async def read(self, keys: Sequence[Key], *, timeout: float | None = None) -> list[Image | None]:
        """Return the current images, in the order of the keys."""
        deadline = self.client.deadline(timeout)
        found: dict[Key, Image | None] = {}
        for cell, writes in self._by_cell([Write(key) for key in dict.fromkeys(keys)]).items():
            _, images = await self._run(cell, writes, deadline)
            found.update(_by_key(writes, images))
        return [found[key] for key in keys]

    async def commit(self, writes: Sequence[Write], *, timeout: float | None = None) -> Committed | Conflict:
        """Apply all writes if all guards hold, else none.

        Records that nobody has written since they were last seen are swapped. If that fails although all guards hold
        for what is there now, the full script decides.
        """
        now = time.monotonic()
        deadline = now + (self.client.timeout if timeout is None else timeout)
        cell = 0
        if self.layout.cells > 1 or not writes:
            groups = self._by_cell(writes)
            if len(groups) != 1:
                return await self._commit_groups(writes, groups, deadline)
            (cell,) = groups
        keys, arguments, after = [], [], []
        for write in writes:
            swap = plan_swap(write, self.layout.records[cell], expire=self._own_time)
            if swap is None or not (self._own_time or is_live(write.seen, self.clock.now_ms())):
                return await self._commit_fully(cell, writes, deadline)
            name, changes, image = swap
            keys.append(name)
            arguments.append(changes)
            after.append(image)
        count, asked_ms = len(writes), None
        if self._tell_at <= now:
            asked_ms = self._server_clock.host.now_ms()
            arguments.append(_PACKED_TELL)
        command = b"".join([SWAP.head(count, 3 * count + (asked_ms is not None)), *keys, *arguments])
        answer = await self.client.run(self.layout.indexes[cell], command, deadline, SWAP)
        if answer != b"=":
            current = self._parse_swap(answer, cell, writes, asked_ms)
            if current is not None:
                self.client.counts.conflicts += 1
                writes = [write._replace(seen=image) for write, image in zip(writes, current, strict=True)]
                if not all(holds(write.seen, write.guards) for write in writes):
                    return Conflict({write.key: write.seen for write in writes})
                return await self._commit_fully(cell, writes, deadline)
        if self._sweeper.due <= now:
            await self._sweeper.follow(cell, (), deadline)
        return Committed(tuple(after), undisturbed=True)

    async def _commit_groups(
        self, writes: Sequence[Write], groups: dict[int, list[Write]], deadline: float
    ) -> Committed | Conflict:
        """Commit to several cells: first where guards decide, then what is only deleted.

        Raise `InfrastructureError` if several cells have guards: no commit spans them.
        """
        deciding = [group for group in groups.values() if not all(write.blind for write in group)]
        if len(deciding) > 1:
            names = " and ".join(group[0].key.pk for group in deciding)
            raise InfrastructureError(
                f"A Redis Cluster cannot change {names} at once: they are in different slots; nothing was changed."
            )
        found: dict[Key, Image | None] = {}
        for group in sorted(groups.values(), key=lambda group: group not in deciding):
            outcome = await self.commit(group, timeout=deadline - time.monotonic())
            if isinstance(outcome, Conflict):
                return Conflict(found | outcome.images)
            found.update(_by_key(group, outcome.images))
        return Committed(tuple([found[write.key] for write in writes]))

    def _parse_swap(
        self, answer: object, cell: int, writes: Sequence[Write], asked_ms: int | None
    ) -> list[Image | None] | None:
        """Return None if the answer says that the records were replaced, else what is there.

        ``asked_ms`` is when the server was asked for its time, if it was.
        """
        keys = [self.layout.records[cell] % write.key for write in writes]
        outcome, *records = _decode(answer, keys).split("\0")
        if asked_ms is not None:
            self._learn(outcome[1:], asked_ms)
        if outcome[:1] == "=":
            return None
        if len(records) != len(writes) or any(record and record[0] != "\n" for record in records):
            raise _foreign(keys)
        current = [decode_image(write, record, committed=False) for write, record in zip(writes, records, strict=True)]
        return [image if self._own_time or is_live(image, self.clock.now_ms()) else None for image in current]

    async def _commit_fully(self, cell: int, writes: Sequence[Write], deadline: float) -> Committed | Conflict:
        committed, images = await self._run(cell, writes, deadline)
        if not committed:
            self.client.counts.conflicts += 1
            return Conflict(_by_key(writes, images))
        await self._sweeper.follow(cell, writes, deadline)
        return Committed(tuple(images))

    async def query(self, query: Query, *, timeout: float | None = None) -> Page:
        """Return one page of a range."""
        return await index.find(self.client, self.layout, self.read, query, self.client.deadline(timeout))

    async def find_eviction_policy(self, timeout: float | None = None) -> str | None:
        """Return the ``maxmemory-policy`` of the servers, several if they differ; None if no server says."""
        answers = await self.client.ask_masters(MEMORY, self.client.deadline(timeout))
        return ", ".join(sorted({policy for told in answers if (policy := read_eviction_policy(told))})) or None

    def _by_cell(self, writes: Sequence[Write]) -> dict[int, list[Write]]:
        groups: dict[int, list[Write]] = {}
        for write in writes:
            groups.setdefault(self.layout.cell(write.key), []).append(write)
        return groups

    async def _run(self, cell: int, writes: Sequence[Write], deadline: float) -> tuple[bool, list[Image | None]]:
        """Run the full script in one cell. Return whether all guards held, and the images then."""
        layout = self.layout
        keys = [layout.records[cell] % write.key for write in writes]
        position = len(keys) + 1
        tokens: list[str] = []
        for write in writes:
            use = 1 if can_change_index(write) else -1 if write.expires_at_ms else 0
            if use and len(keys) < position:
                keys += layout.indexes[cell], layout.expiries[cell]
            tokens += tokens_of(write, use * position)
        sent_ms = self._server_clock.host.now_ms()
        asks = self._tell_at <= time.monotonic()
        data = pack_arguments(*keys, encode(tokens), _TELL if asks else self.now())
        command = COMMIT.head(len(keys), 2) + data
        answer = await self.client.run(layout.indexes[cell], command, deadline, COMMIT)
        outcome, *records = _decode(answer, keys).split("\0")
        if len(records) != len(writes):
            raise _foreign(keys)
        if asks:
            outcome, _, clock = outcome.partition(" ")
            self._learn(clock, sent_ms)
        if outcome == "-2":
            raise _foreign(keys[: len(writes)])
        committed = outcome == "1"
        images: list[Image | None] = [
            decode_image(write, record, committed=committed) for write, record in zip(writes, records, strict=True)
        ]
        if outcome == "-1":
            raise _not_a_number(writes, images)
        return committed, images

    def _learn(self, time_text: str, sent_ms: int) -> None:
        """Learn the server's time from the seconds and microseconds of an answer."""
        now_ms = read_time_ms(time_text)
        self._server_clock.learn(now_ms, now_ms + 1, sent_ms, self._server_clock.host.now_ms())
        self._tell_at = time.monotonic() + _TELL_SECONDS


def _by_key(writes: Sequence[Write], images: Sequence[Image | None]) -> dict[Key, Image | None]:
    return {write.key: image for write, image in zip(writes, images, strict=True)}


def _decode(answer: object, keys: Sequence[str]) -> str:
    try:
        if isinstance(answer, bytes):
            return answer.decode()
    except UnicodeDecodeError:
        pass
    raise _foreign(keys)


def _foreign(keys: Sequence[str]) -> CorruptRecordError:
    where = " or ".join(map(repr, keys))
    return CorruptRecordError(
        f"What Redis holds at {where} is not a zae-limiter record. Delete it (reset_bucket() deletes a bucket), "
        "or give this limiter a ?prefix= of its own."
    )


def _not_a_number(writes: Sequence[Write], images: Sequence[Image | None]) -> CorruptRecordError:
    for write, image in zip(writes, images, strict=True):
        if write.key.sk == STATE and image is not None:
            try:
                bucket.inspect(write.key, image)
            except CorruptRecordError as error:
                return error
    where = ", ".join(f"{write.key.pk} {write.key.sk}" for write in writes if write.add)
    return CorruptRecordError(f"An attribute of {where} is not a whole number below 2^53; nothing was changed.")


def open_redis(
    settings: Settings, *, blocking: bool, host_clock: Clock | None = None, clock: Clock | None = None
) -> RedisStore:
    """Return a store for the deployment that a URL names. Connects at the first call.

    Raise `ConfigurationError` if a TLS file cannot be used.
    """
    check_login(settings.login)
    settings = settings._replace(connect_timeout=min(settings.connect_timeout, settings.timeout))
    wire = BlockingWire() if blocking else AsyncWire()
    layout = Layout(settings.prefix, CLUSTER_CELLS if settings.kind == "cluster" else 1)
    backend = (SINGLE if layout.cells == 1 else CLUSTER).name
    limits: dict[str, Any] = {"connect_timeout": settings.connect_timeout, "limit": settings.max_connections}
    nodes = Nodes(wire, settings.login, **limits, backend=backend)
    client = Client(nodes, open_topology(settings, nodes, wire), settings.timeout)
    server_clock = ServerClock("Redis", host_clock, backend)
    store = RedisStore(client, layout, server_clock, clock, settings.usage_retention_days)
    if not blocking:
        store._open_for_threads = partial(open_redis, settings, blocking=True, host_clock=host_clock, clock=clock)
    return store
