"""Writes and records as the script takes and keeps them: texts of lines.

A record is a line break, then ``attr=value`` and a line break for each attribute. Values are JSON, in which a line
break cannot occur; whole numbers are plain digits.
"""

from __future__ import annotations

import json
import re
from typing import Any

from ...core.errors import CorruptRecordError
from ...records.algebra import Key, Write, expiry_seconds

_CHECK, _CHANGE, _DELETE = "0", "1", "2"
_KEEP = "-"

_WHOLE = re.compile(r"-?\d+", re.ASCII)
_canonical = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode


def encode(value: Any) -> str:
    """Return the text of an attribute's value: equal values have equal texts."""
    return str(value) if type(value) is int else _canonical(value)


def add_tokens(lines: list[str], write: Write, index: int) -> None:
    """Add the tokens of a write for the script to ``lines``.

    ``index`` is the position of the record's index set among the keys, or 0; it is negative if entries change only
    when the record begins to expire.
    """
    key, guards, put, add, remove, expires_at_ms, delete, _ = write
    lines += (
        _DELETE if delete else _CHECK if write.is_check else _CHANGE,
        str(index),
        _KEEP if expires_at_ms is None else str(expiry_seconds(expires_at_ms)),
        f"{len(guards)}\n{len(put)}\n{len(add)}\n{len(remove)}",
    )
    for attr, op, value in guards:
        if op == "between":
            lines += (attr, op, encode(value[0]), encode(value[1]))
        elif op in ("absent", "present"):
            lines += (attr, op)
        else:
            lines += (attr, op, encode(value))
    for attr, value in put.items():
        lines += (attr, encode(value))
    for attr, amount in add.items():
        lines += (attr, str(amount))
    lines += remove
    if index:
        lines += key


def index_use(write: Write) -> int:
    """Return 1 if a write may add or remove index entries, -1 if it may only make the record expire, else 0."""
    return 1 if can_change_index(write) else -1 if write.expires_at_ms else 0


def can_change_index(write: Write) -> bool:
    """Return whether a write may add or remove index entries: it may create or delete the record, or moves it."""
    _, guards, put, _, remove, _, delete, _ = write
    if delete:
        return True
    for attrs in (put, remove):
        for attr in attrs:
            if attr.startswith("GSI"):
                return True
    for guard in guards:
        if guard[1] != "absent":
            return False
    return not write.is_check


def decode(key: Key, attr: str, value: str) -> Any:
    """Return an attribute's value. Raise `CorruptRecordError` if its text is not one."""
    if value[:1] == '"' and "\\" not in value:
        return value[1:-1]
    try:
        return int(value) if _WHOLE.fullmatch(value) else json.loads(value)
    except ValueError:
        raise CorruptRecordError(
            f"The record {key.pk} {key.sk} is not a zae-limiter record: it holds {attr[:40]}={value[:40]}. "
            "Delete it; reset_bucket() deletes a bucket."
        ) from None
