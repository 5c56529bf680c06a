"""Writes and records as the scripts take and keep them, which is texts of lines; and commits as compare-and-swap.

A record is a line break, then ``attr=value`` and a line break for each attribute. Values are JSON, in which a line
break cannot occur; whole numbers are plain digits.

An image of this store knows the text it is stored as. A swap sends a digest of the text that was seen, and the text
from the first number that changes on; the server need not look at guards.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import lru_cache
from hashlib import sha1
from operator import itemgetter
from typing import Any, NamedTuple

from ...core.errors import CorruptRecordError
from ...records.algebra import NEVER, TTL, Image, Key, Write, apply_write, expiry_seconds, holds
from .resp import pack_arguments

_CHECK, _CHANGE, _DELETE = "0", "1", "2"
_KEEP = "-"
_NOTHING = pack_arguments("")
_LEAST, _MOST = -(2**53), 2**53
"""Whole numbers that a script adds exactly."""
_WHOLE = re.compile(r"-?\d+", re.ASCII)
FULL_COMMITS = 16
"""How many writes after a lost swap use the full script, so a swap is lost once in so many writes at most."""

_canonical = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode


def encode(value: Any) -> str:
    """Return the text of an attribute's value: equal values have equal texts."""
    return str(value) if type(value) is int else _canonical(value)


def decode(key: Key, attr: str, value: str) -> Any:
    """Return an attribute's value. Raise `CorruptRecordError` if its text is not one."""
    if value[:1] == '"' and "\\" not in value:
        return value[1:-1]
    try:
        return int(value) if _WHOLE.fullmatch(value) else json.loads(value)
    except (ValueError, RecursionError):
        raise CorruptRecordError(
            f"The record {key.pk} {key.sk} is not a zae-limiter record: it holds {attr[:40]}={value[:40]}. "
            "Delete it; reset_bucket() deletes a bucket."
        ) from None


def add_tokens(lines: list[str], write: Write, index: int) -> None:
    """Add the tokens of a write for ``commit.lua`` to ``lines``.

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


def can_change_index(write: Write) -> bool:
    """Return whether a write may add or remove index entries: it may create or delete the record, or moves it."""
    if write.delete or any(attr.startswith("GSI") for attrs in (write.put, write.remove) for attr in attrs):
        return True
    return all(op == "absent" for _, op, _ in write.guards) and not write.is_check


class _Form(NamedTuple):
    """The text of a record in which the whole numbers of ``attrs`` are left open, and where it is stored."""

    key: Key
    naming: str
    """What makes the name of a Redis key of it, see `Layout`."""
    name: bytes
    """That name, packed."""
    attrs: frozenset[str]
    numbers: Callable[[Image], Any]
    """Returns these numbers in the order of the text."""
    start: int
    """Where the first of them stands."""
    kept: bytes
    """The same, packed."""
    tail: bytes
    """The text from there on, with ``%d`` for each number."""


class StoredImage(dict[str, Any]):
    """An image with the ``text`` it is stored as.

    ``full_commits`` is how many more commits must find that nobody else has written in between before the record is
    swapped again. ``form`` is that of the swap before: the next one mostly changes no other numbers.
    """

    __slots__ = ("form", "full_commits", "text")

    full_commits: int
    form: _Form | None
    text: bytes


def plan_swap(write: Write, naming: str, *, expire: bool) -> tuple[bytes, bytes, StoredImage] | None:
    """Return the key and the four arguments of ``swap.lua`` that amount to ``write``, packed, and the image after it.

    ``naming % key`` is the name of the record. A new expiry is among the arguments if the server is to ``expire``
    records. Return None if the full script is needed: unless the write was planned from an image of this store, its
    guards hold for that, and it changes only whole numbers.
    """
    key, guards, put, add, remove, expires_at_ms, delete, seen = write
    if type(seen) is not StoredImage or seen.full_commits or remove or delete or not holds(seen, guards):
        return None
    for value in put.values():
        if type(value) is not int or not _LEAST <= value <= _MOST:
            return None
    after = StoredImage(seen)
    after.update(put)
    changed = [*put, *add]
    try:
        for attr, amount in add.items():
            after[attr] = value = after[attr] + amount
            if not _LEAST <= value <= _MOST:
                return None
    except (KeyError, TypeError):
        return None
    if expires_at_ms:
        after[TTL] = max(after.get(TTL, 0), expiry_seconds(expires_at_ms))
        changed.append(TTL)
    elif expires_at_ms == NEVER and TTL in seen:
        return None
    form = seen.form
    if form is None or form.key != key or form.naming is not naming or not form.attrs.issuperset(changed):
        form = _find_form(key, naming, seen, {*changed, *(form.attrs if form else ())})
        if form is None:
            return None
    tail = form.tail % form.numbers(after)
    after.text, after.form, after.full_commits = seen.text[: form.start] + tail, form, 0
    digest = sha1(seen.text, usedforsecurity=False).hexdigest().encode()
    expires = pack_arguments(after[TTL]) if expire and after.get(TTL) != seen.get(TTL) else _NOTHING
    return form.name, b"$40\r\n%b\r\n%b$%d\r\n%b\r\n%b" % (digest, form.kept, len(tail), tail, expires), after


def _find_form(key: Key, naming: str, seen: StoredImage, attrs: set[str]) -> _Form | None:
    """Return the form of a record in which some attributes are left open; None unless they are whole numbers in it."""
    places = []
    for attr in attrs:
        old = seen.get(attr)
        name, digits = f"\n{attr}=".encode(), str(old).encode()
        place = seen.text.find(b"%b%b\n" % (name, digits))
        if type(old) is not int or not _LEAST <= old <= _MOST or place < 0:
            return None  # it is not there, or written with other digits
        places.append((place + len(name), attr, len(digits)))
    if not places:
        return None
    places.sort()
    start = end = places[0][0]
    tail = b""
    for place, _, length in places:
        tail += seen.text[end:place].replace(b"%", b"%%") + b"%d"
        end = place + length
    tail += seen.text[end:].replace(b"%", b"%%")
    open_attrs, numbers = _open_numbers(tuple([attr for _, attr, _ in places]))
    name, kept = pack_arguments(naming % key), pack_arguments(start)
    return _Form(key, naming, name, open_attrs, numbers, start, kept, tail)


@lru_cache(maxsize=256)
def _open_numbers(attrs: tuple[str, ...]) -> tuple[frozenset[str], Callable[[Image], Any]]:
    """Return some attributes as a set, and what gets their values; buckets under the same limits share them."""
    return frozenset(attrs), itemgetter(*attrs)


def decode_image(write: Write, text: str, *, committed: bool) -> StoredImage | None:
    """Return the image of the record after a commit of ``write``, or None if ``text`` is empty.

    The next commits are full unless it is what ``write`` was planned from, changed by it if it was committed.
    """
    if not text:
        return None
    seen = write.seen
    if type(seen) is not StoredImage:
        return _store_text(_decode(write.key, text), text, 0)
    image = _decode_changes(write.key, text, seen)
    try:
        same = image == (apply_write(seen, write) if committed else seen)
    except CorruptRecordError:
        same = False
    return _store_text(image, text, max(0, seen.full_commits - committed) if same else FULL_COMMITS)


def _store_text(image: Image, text: str, full_commits: int) -> StoredImage:
    stored = StoredImage(image)
    stored.text, stored.form, stored.full_commits = text.encode(), None, full_commits
    return stored


def _decode(key: Key, text: str) -> Image:
    lines = [line.partition("=") for line in text[1:-1].split("\n")] if len(text) > 1 else ()
    return {attr: decode(key, attr, value) for attr, _, value in lines}


def _decode_changes(key: Key, text: str, seen: StoredImage) -> Image:
    """Decode a record of which ``seen`` is an earlier state: only the lines that have changed, if it has the same."""
    lines, older = text[1:-1].split("\n"), seen.text[1:-1].decode().split("\n")
    image = seen.copy()
    if len(lines) != len(older):
        return _decode(key, text)
    for line, old in zip(lines, older, strict=True):
        if line != old:
            attr, _, value = line.partition("=")
            if not old.startswith(f"{attr}="):
                return _decode(key, text)
            image[attr] = decode(key, attr, value)
    return image
