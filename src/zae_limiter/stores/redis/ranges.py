"""Queries: ranges of a cell's index entries, merged over cells, then the records themselves.

An index entry may outlive its record; the image shows that, and the entry is left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ...records.algebra import Image, Key, Page, Query
from ..ranges import index_entry

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from .client import Client
    from .layout import Layout

    Fetch: TypeAlias = Callable[[list[Key], float], Awaitable[list[Image | None]]]

_SEPARATOR = b"\0"


class _Range(NamedTuple):
    """A range of entries in the order of bytes: ``head`` is what all of them start with."""

    head: bytes
    low: bytes
    high: bytes


async def query(client: Client, layout: Layout, fetch: Fetch, query: Query, deadline: float) -> Page:
    """Return one page of a range. ``fetch`` reads records, until a deadline."""
    keys = [layout.index(cell) for cell in sorted(layout.cells_of(query))]
    wanted = _range_of(query)
    rows: list[tuple[Key, Image]] = []
    after = None if query.after is None else wanted.head + query.after.encode()
    more = True
    while more and len(rows) < query.limit:
        entries, more = await _entries(client, keys, query, _after(wanted, after, query), deadline)
        entries, more = entries[: query.limit - len(rows)], more or len(entries) > query.limit - len(rows)
        if entries:
            after = entries[-1]
            rows += await _records(fetch, query, wanted.head, entries, deadline)
    cursor = after[len(wanted.head) :].decode() if more and after is not None else None
    return Page(tuple(rows), cursor)


def _range_of(query: Query) -> _Range:
    index = "0" if query.gsi is None else query.gsi[-1]
    head = f"{index}\0{query.pk}\0".encode()
    prefix = query.prefix.encode()
    low = max(prefix, (query.start or "").encode())
    high = prefix + b"\xff"
    if query.end is not None:
        end = query.end.encode() + (b"" if query.gsi is None else _SEPARATOR + b"\xff")
        high = min(high, end)
    return _Range(head, b"[" + head + low, b"[" + head + high)


def _after(wanted: _Range, after: bytes | None, query: Query) -> _Range:
    if after is None:
        return wanted
    return wanted._replace(high=b"(" + after) if query.descending else wanted._replace(low=b"(" + after)


async def _entries(
    client: Client, keys: list[str], query: Query, wanted: _Range, deadline: float
) -> tuple[list[bytes], bool]:
    """Return the next entries over all cells, in order, and whether there are more.

    Every cell gives a few. What lies beyond the last one of a cell that has more may not be next, so it is left out.
    """
    count = query.limit + 1 if len(keys) == 1 else 2 * query.limit // len(keys) + 2
    if query.descending:
        verb, bounds = "ZREVRANGEBYLEX", (wanted.high, wanted.low)
    else:
        verb, bounds = "ZRANGEBYLEX", (wanted.low, wanted.high)
    commands = [(key, (verb, key, *bounds, "LIMIT", 0, count)) for key in keys]
    given = await client.commands(commands, deadline)
    found = [entry for entries in given for entry in entries]
    ends = [entries[-1] for entries in given if len(entries) == count]
    found.sort(reverse=query.descending)
    if ends and query.descending:
        found = [entry for entry in found if entry >= max(ends)]
    elif ends:
        found = [entry for entry in found if entry <= min(ends)]
    return found, bool(ends)


async def _records(
    fetch: Fetch, query: Query, head: bytes, entries: list[bytes], deadline: float
) -> list[tuple[Key, Image]]:
    """Return the records of some entries without those that are deleted or have moved in the index."""
    listed = [entry[len(head) :].decode().split("\0") for entry in entries]
    keys = [Key(query.pk, sort) if query.gsi is None else Key(*key) for sort, *key in listed]
    images = await fetch(keys, deadline)
    rows = zip(listed, keys, images, strict=True)
    return [(key, image) for (sort, *_), key, image in rows if image is not None and _fits(query, sort, image)]


def _fits(query: Query, sort: str, image: Image) -> bool:
    return query.gsi is None or index_entry(query.gsi, image) == (query.pk, sort)
