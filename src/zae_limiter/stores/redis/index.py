"""Where records live: the names of all keys, the cells that they are spread over, and the index of each cell.

Every key carries the number of its cell as a hash tag, so that a Redis Cluster keeps a cell in one slot. A cell holds
records with their index and their expiries; a commit inside one cell is atomic. A single server has one cell.

Redis drops an expired record by itself, but not what the index says of it. So an entry may outlive its record, and is
left out of queries then. Every so often a commit is followed by a look at the expiries that are due: after as many new
records as it then takes away half, so that the index cannot grow under a flood of new keys, and at least every few
seconds.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeAlias
from zlib import crc32

from ...core.errors import CorruptRecordError, InfrastructureError
from ...records.algebra import Image, Key, Page, Query, Write
from ...records.keys import owner, owners
from ..ranges import index_entry
from .answers import read_entries
from .images import can_change_index
from .resp import SWEEP, pack_arguments

if TYPE_CHECKING:
    from ...clock import Clock
    from .client import Client

CLUSTER_CELLS = 64
"""As many as spread well over a dozen nodes; part of the stored format."""


class Layout:
    """The key names of one prefix, in lists by cell.

    ``records[cell] % key`` is the name of the string that holds a record: no part of a key contains a control
    character. ``indexes`` and ``expiries`` are the sorted sets of index entries, and of records that will expire.
    """

    def __init__(self, prefix: str, cells: int) -> None:
        starts = [f"{prefix}:{{{cell}}}:" for cell in range(cells)]
        self.prefix = prefix
        self.cells = cells
        self.records = [f"{start}%s\t%s" for start in starts]
        self.indexes = [f"{start}index" for start in starts]
        self.expiries = [f"{start}expiries" for start in starts]

    def cell(self, key: Key) -> int:
        """Return the cell of a record."""
        return 0 if self.cells == 1 else self._cell_of(owner(key))

    def cells_of(self, query: Query) -> Iterable[int]:
        """Return the cells in which a query can find anything."""
        whose = owners(query)
        if self.cells == 1 or whose is None:
            return range(self.cells)
        return {self._cell_of(name) for name in whose}

    def _cell_of(self, name: str) -> int:
        return crc32(name.encode()) % self.cells


Read: TypeAlias = Callable[..., Awaitable[list[Image | None]]]

BATCH = 200
_EVERY_NEW = BATCH // 2
_EVERY_SECONDS = 10.0


async def find(client: Client, layout: Layout, read: Read, query: Query, deadline: float) -> Page:
    """Return one page of a range. ``read`` reads records."""
    keys = [layout.indexes[cell] for cell in sorted(layout.cells_of(query))]
    head, low, high = _range_of(query)
    rows: list[tuple[Key, Image]] = []
    after = None if query.after is None else head + query.after.encode()
    more = True
    while more and len(rows) < query.limit:
        if after is not None and query.descending:
            high = b"(" + after
        elif after is not None:
            low = b"(" + after
        entries, more = await _entries(client, keys, query, (low, high), deadline)
        entries, more = entries[: query.limit - len(rows)], more or len(entries) > query.limit - len(rows)
        if entries:
            after = entries[-1]
            rows += await _records(read, query, head, entries, deadline)
    cursor = after[len(head) :].decode() if more and after is not None else None
    return Page(tuple(rows), cursor)


def _range_of(query: Query) -> tuple[bytes, bytes, bytes]:
    head = f"{'0' if query.gsi is None else query.gsi[-1]}\0{query.pk}\0".encode()
    prefix = query.prefix.encode()
    low = max(prefix, (query.start or "").encode())
    high = prefix + b"\xff"
    if query.end is not None:
        high = min(high, query.end.encode() + (b"" if query.gsi is None else b"\0\xff"))
    return head, b"[" + head + low, b"[" + head + high


async def _entries(
    client: Client, keys: list[str], query: Query, bounds: tuple[bytes, bytes], deadline: float
) -> tuple[list[bytes], bool]:
    """Return the next entries over all cells, in order, and whether there are more.

    Every cell gives a few. What lies beyond the last one of a cell that has more may not be next, so it is left out.
    """
    count = query.limit + 1 if len(keys) == 1 else 2 * query.limit // len(keys) + 2
    verb, ends = ("ZREVRANGEBYLEX", bounds[::-1]) if query.descending else ("ZRANGEBYLEX", bounds)
    commands = [(key, (verb, key, *ends, "LIMIT", 0, count)) for key in keys]
    given = [read_entries(told) for told in await client.commands(commands, deadline)]
    found = sorted([entry for entries in given for entry in entries], reverse=query.descending)
    last = [entries[-1] for entries in given if len(entries) == count]
    if last and query.descending:
        found = [entry for entry in found if entry >= max(last)]
    elif last:
        found = [entry for entry in found if entry <= min(last)]
    return found, bool(last)


async def _records(
    read: Read, query: Query, head: bytes, entries: list[bytes], deadline: float
) -> list[tuple[Key, Image]]:
    """Return the records of some entries without those that are deleted or have moved in the index."""
    listed = [_read_entry(query, entry[len(head) :]) for entry in entries]
    keys = [Key(query.pk, sort) if query.gsi is None else Key(*key) for sort, *key in listed]
    rows = zip(listed, keys, await read(keys, timeout=deadline - time.monotonic()), strict=True)
    return [
        (key, image)
        for (sort, *_), key, image in rows
        if image is not None and (query.gsi is None or index_entry(query.gsi, image) == (query.pk, sort))
    ]


def _read_entry(query: Query, entry: bytes) -> list[str]:
    """Return the parts of an entry: its sort key, and in an index the record's key. Raise `CorruptRecordError`."""
    try:
        parts = entry.decode().split("\0")
    except UnicodeDecodeError:
        parts = []
    if len(parts) == (1 if query.gsi is None else 3):
        return parts
    raise CorruptRecordError(
        f"The index of {query.pk} holds {entry!r:.60}, which is not a zae-limiter entry. Remove it from its sorted "
        "set, or give this limiter a ?prefix= of its own."
    )


class Sweeper:
    """Keeps the index of one client's cells short."""

    def __init__(self, client: Client, layout: Layout, clock: Clock, now: Callable[[], str]) -> None:
        self._client = client
        self._layout = layout
        self._clock = clock
        self._now = now
        self._new = [0] * layout.cells
        self._next = 0
        self.due = time.monotonic() + _EVERY_SECONDS
        """When a cell is swept at the latest, by the monotonic clock."""

    async def follow(self, cell: int, writes: Sequence[Write], deadline: float) -> None:
        """After a commit of ``writes`` to ``cell``: sweep a cell if it is time for that."""
        self._new[cell] += sum(write.expires_at_ms is not None and can_change_index(write) for write in writes)
        if self._new[cell] >= _EVERY_NEW:
            self._new[cell] = 0
            await self.sweep(cell, deadline)
        elif time.monotonic() >= self.due:
            self.due = time.monotonic() + _EVERY_SECONDS
            self._next = (self._next + 1) % self._layout.cells
            await self.sweep(self._next, deadline)

    async def sweep(self, cell: int, deadline: float) -> int:
        """Take the next batch of expired records out of a cell's index and return how many there were.

        A failure is ignored: the commit before it has been made.
        """
        client, layout, expiries = self._client, self._layout, self._layout.expiries[cell]
        due = ("ZRANGEBYSCORE", expiries, "-inf", self._clock.now_ms() // 1000, "LIMIT", 0, BATCH)
        try:
            members = read_entries(await client.call(expiries, due, deadline))
            listed = {member: key for member in members if (key := _parse_member(member)) is not None}
            if len(listed) < len(members):
                await client.call(expiries, ("ZREM", expiries, *(m for m in members if m not in listed)), deadline)
            if not listed:
                return 0
            keys = (layout.indexes[cell], expiries, *(layout.records[cell] % key for key in listed.values()))
            command = SWEEP.head(len(keys), 1 + len(listed)) + pack_arguments(*keys, self._now(), *listed)
            swept = await client.run(expiries, command, deadline, SWEEP)
            return swept if isinstance(swept, int) else 0
        except InfrastructureError:
            return 0


def _parse_member(member: bytes) -> Key | None:
    try:
        pk, sk, entries = json.loads(member)
    except (ValueError, TypeError):
        return None
    ours = isinstance(pk, str) and isinstance(sk, str) and isinstance(entries, list) and len(entries) > 0
    return Key(pk, sk) if ours else None
