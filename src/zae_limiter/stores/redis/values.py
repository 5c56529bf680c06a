"""Writes and records as the script takes and keeps them: texts of lines.

A record is a line break, then ``attr=value`` and a line break for each attribute. Values are JSON, in which a line
break cannot occur; whole numbers are plain digits.
"""

from __future__ import annotations

import json
import re
from typing import Any

from ...core.errors import CorruptRecordError
from ...records.algebra import Image, Key, Write, expiry_seconds

_CHECK, _CHANGE, _DELETE = "0", "1", "2"
_KEEP = "-"

_WHOLE = re.compile(r"-?\d+", re.ASCII)
_canonical = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode


def encode(value: Any) -> str:
    """One attribute's value: equal values have equal texts."""
    return str(value) if type(value) is int else _canonical(value)


def add_tokens(lines: list[str], write: Write, index: int) -> None:
    """Write a write down for the script; ``index`` is the position of the record's index set among its keys, or 0."""
    key, guards, put, add, remove, expires_at_ms, delete = write
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


def can_change_index(write: Write) -> bool:
    """Whether index entries may come or go with a write: it may create or delete the record, or moves it."""
    _, guards, put, _, remove, _, delete = write
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


class Decoder:
    """Decodes records, and keeps the last one of each key: of most lines the next one differs in a few only."""

    def __init__(self, max_entries: int = 10_000) -> None:
        self._max_entries = max_entries
        self._last: dict[Key, tuple[list[str], Image]] = {}

    def decode(self, key: Key, record: str) -> Image | None:
        """The image of a record; None for the empty text, which is no record."""
        if not record:
            return None
        lines = record[1:-1].split("\n") if len(record) > 1 else []
        known, last = self._last.get(key) or _NOTHING
        image = _updated(key, lines, known, last) if len(known) == len(lines) else None
        if image is None:
            image = {attr: _value(key, attr, value) for attr, _, value in (line.partition("=") for line in lines)}
        self._keep(key, lines, image)
        return image

    def _keep(self, key: Key, lines: list[str], image: Image) -> None:
        if key not in self._last and len(self._last) >= self._max_entries:
            self._last.clear()
        self._last[key] = lines, image


_NOTHING: tuple[list[str], Image] = [], {}


def _updated(key: Key, lines: list[str], known: list[str], last: Image) -> Image | None:
    """The last image with the lines that have changed; None where the attributes are others."""
    image = last.copy()
    for line, old in zip(lines, known, strict=True):
        if line != old:
            attr, _, value = line.partition("=")
            if not old.startswith(f"{attr}="):
                return None
            image[attr] = _value(key, attr, value)
    return image


def _value(key: Key, attr: str, value: str) -> Any:
    if value[:1] == '"' and "\\" not in value:
        return value[1:-1]
    try:
        return int(value) if _WHOLE.fullmatch(value) else json.loads(value)
    except ValueError:
        raise CorruptRecordError(
            f"The record {key.pk} {key.sk} is no record of ours: it holds {attr[:40]}={value[:40]}. "
            "Delete it; a bucket goes with reset_bucket()."
        ) from None
