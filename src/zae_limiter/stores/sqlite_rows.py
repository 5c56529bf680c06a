"""Rows of a SQLite file: records as JSON, and queries as statements."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ..core.errors import CorruptRecordError
from ..records.algebra import TTL, Image, Key, Query, Write, applied, is_live
from .ranges import INDEXES, index_entry

if TYPE_CHECKING:
    import sqlite3


def load(db: sqlite3.Connection, key: Key, now_ms: int) -> Image | None:
    """Return the record as of an instant, or None if there is none."""
    row = db.execute("SELECT attrs FROM items WHERE pk = ? AND sk = ?", key).fetchone()
    if row is None:
        return None
    image = parse(key, row[0])
    return image if is_live(image, now_ms) else None


def parse(key: Key, attrs: str) -> Image:
    """Return the image of a row. Raise `CorruptRecordError` if it is not a record."""
    try:
        image = json.loads(attrs)
    except ValueError:
        image = None
    if not isinstance(image, dict):
        raise CorruptRecordError(
            f"The record {key.pk} {key.sk} is damaged: {attrs[:40]!r}. Delete it, or reset it if it is a bucket."
        )
    return image


def apply(db: sqlite3.Connection, write: Write, old: Image | None) -> Image | None:
    """Apply a write to a record and return the new image."""
    if write.is_check:
        return old
    new = applied(old, write)
    if new is None:
        db.execute("DELETE FROM items WHERE pk = ? AND sk = ?", write.key)
        return None
    entries = [part for name in INDEXES for part in (index_entry(name, new) or (None, None))]
    attrs = json.dumps(new, ensure_ascii=False, separators=(",", ":"))
    if old is not None and not write.remove and not any(attr.startswith("GSI") for attr in write.put):
        db.execute("UPDATE items SET attrs = ?, ttl = ? WHERE pk = ? AND sk = ?", (attrs, new.get(TTL), *write.key))
    else:
        db.execute(
            "INSERT OR REPLACE INTO items VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (*write.key, attrs, new.get(TTL), *entries),
        )
    return new


def select(query: Query, now_s: int) -> tuple[str, list[Any]]:
    """Return the statement for one page of a range and one more row, with its values."""
    partition, sort = ("pk", "sk") if query.gsi is None else (f"{query.gsi}pk".lower(), f"{query.gsi}sk".lower())
    conditions = [f"{partition} = ?", f"substr({sort}, 1, ?) = ?", f"{sort} >= ?", "(ttl IS NULL OR ttl > ?)"]
    values: list[Any] = [query.pk, len(query.prefix), query.prefix, max(query.prefix, query.start or ""), now_s]
    if query.end is not None:
        conditions.append(f"{sort} <= ?")
        values.append(query.end)
    if query.after is not None:
        conditions.append(f"({sort}, pk, sk) {'<' if query.descending else '>'} (?, ?, ?)")
        values += query.after.split("\x00")
    order = "DESC" if query.descending else "ASC"
    sql = (
        f"SELECT {sort}, pk, sk, attrs FROM items WHERE {' AND '.join(conditions)} "
        f"ORDER BY {sort} {order}, pk {order}, sk {order} LIMIT ?"
    )
    return sql, [*values, query.limit + 1]
