"""Ranges over indexed records, shared by the stores that answer queries themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..records.algebra import Image, Key, Page, Query

if TYPE_CHECKING:
    from collections.abc import Sequence

INDEXES = ("GSI1", "GSI2", "GSI3", "GSI4")

_SEPARATOR = "\x00"


def index_entry(index: str, image: Image) -> tuple[str, str] | None:
    """Return the index keys of a record, or None if the index does not hold it."""
    pk = image.get(f"{index}PK")
    return None if pk is None else (pk, image.get(f"{index}SK", ""))


def page_of(rows: Sequence[tuple[Key, Image]], query: Query) -> Page:
    """Return the page that a query asks for, from all records of its partition."""
    found = []
    for key, image in rows:
        sort = _sort_key(key, image, query.gsi)
        if within(sort, query):
            found.append((cursor_of(sort, key), key, image))
    found.sort(key=lambda row: row[0], reverse=query.descending)
    if query.after is not None:
        after = query.after
        found = [row for row in found if (row[0] < after if query.descending else row[0] > after)]
    page = found[: query.limit]
    more = len(found) > len(page)
    return Page(tuple((key, image) for _, key, image in page), page[-1][0] if more and page else None)


def within(sort: str, query: Query) -> bool:
    """Return whether a sort key lies in the range."""
    return (
        sort.startswith(query.prefix)
        and (query.start is None or sort >= query.start)
        and (query.end is None or sort <= query.end)
    )


def cursor_of(sort: str, key: Key) -> str:
    """Return the cursor of a record in a range, unique also if records share their index keys."""
    return _SEPARATOR.join((sort, *key))


def _sort_key(key: Key, image: Image, index: str | None) -> str:
    if index is None:
        return key.sk
    entry = index_entry(index, image)
    return entry[1] if entry else ""
