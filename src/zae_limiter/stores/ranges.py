"""Ranges over indexed records, shared by the stores that answer queries themselves."""

from __future__ import annotations

from collections.abc import Sequence

from ..records.algebra import Image, Key, Page, Query

INDEXES = ("GSI1", "GSI2", "GSI3", "GSI4")


def index_entry(index: str, image: Image) -> tuple[str, str] | None:
    """Return the index keys of a record, or None if the index does not hold it."""
    pk = image.get(f"{index}PK")
    return None if pk is None else (pk, image.get(f"{index}SK", ""))


def within(sort: str, query: Query) -> bool:
    """Return whether a sort key lies in the range."""
    return (
        sort.startswith(query.prefix)
        and (query.start is None or sort >= query.start)
        and (query.end is None or sort <= query.end)
    )


def cursor_of(sort: str, key: Key) -> str:
    """Return the cursor of a record in a range, unique also if records share their index keys."""
    return "\x00".join((sort, *key))


def first_page(rows: Sequence[tuple[str, Key, Image]], limit: int) -> Page:
    """Return the first ``limit`` of all rows, which are cursor, key and image, as a page."""
    page = rows[:limit]
    more = len(rows) > len(page)
    return Page(tuple((key, image) for _, key, image in page), page[-1][0] if more and page else None)


def page_of(records: Sequence[tuple[Key, Image]], query: Query) -> Page:
    """Return the page that a query asks for, from all records of its partition."""
    rows = []
    for key, image in records:
        sort = key.sk if query.gsi is None else (index_entry(query.gsi, image) or ("", ""))[1]
        if within(sort, query):
            rows.append((cursor_of(sort, key), key, image))
    rows.sort(key=lambda row: row[0], reverse=query.descending)
    after = query.after
    if after is not None:
        rows = [row for row in rows if (row[0] < after if query.descending else row[0] > after)]
    return first_page(rows, query.limit)
