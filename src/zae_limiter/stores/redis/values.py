"""Writes and images as the script takes and gives them: JSON texts, whole numbers as plain digits."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ...core.errors import CorruptRecordError
from ...records.algebra import Image, Key, Write, expiry_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

CHECK, CHANGE, DELETE = 0, 1, 2

INDEX = 6
"""Where an encoded write says whether it may change the index."""

dumps = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode
_canonical = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False, sort_keys=True).encode


def encode(value: Any) -> str:
    """One attribute's value: equal values have equal texts."""
    return str(value) if type(value) is int else _canonical(value)


def encode_write(write: Write, index: int) -> list[Any]:
    """A write for the script; ``index`` is the position of the record's index set among its keys, or 0."""
    (pk, sk), guards, put, add, remove, expires_at_ms, delete = write
    kind = DELETE if delete else CHECK if write.is_check else CHANGE
    return [
        [_guard(*guard) for guard in guards],
        [text for attr, value in put.items() for text in (attr, encode(value))],
        [text for attr, amount in add.items() for text in (attr, str(amount))],
        remove,
        "" if expires_at_ms is None else str(expiry_seconds(expires_at_ms)),
        kind,
        index,
        pk if index else "",
        sk if index else "",
    ]


def _guard(attr: str, op: str, value: Any) -> list[str]:
    if op == "between":
        return [attr, op, encode(value[0]), encode(value[1])]
    return [attr, op] if value is None else [attr, op, encode(value)]


def can_change_index(write: Write) -> bool:
    """Whether index entries may come or go with a write: it may create or delete the record, or moves it."""
    if write.delete:
        return True
    if any(attr.startswith("GSI") for attr in (*write.put, *write.remove)):
        return True
    return not write.is_check and all(guard[1] == "absent" for guard in write.guards)


def decode(key: Key, flat: Sequence[str] | None) -> Image | None:
    """The image of a record, from the fields and values that Redis gave."""
    if flat is None:
        return None
    image: Image = {}
    try:
        fields = iter(flat)
        for attr in fields:
            text = next(fields)
            if text[:1] == '"' and "\\" not in text:
                image[attr] = text[1:-1]
            elif attr:
                image[attr] = json.loads(text)
    except (ValueError, StopIteration):
        raise CorruptRecordError(
            f"The record {key.pk} {key.sk} is no record of ours: {attr} cannot be read. "
            "Delete it; a bucket goes with reset_bucket()."
        ) from None
    return image
