"""Images with the text they are stored as, from which a commit can be planned as a compare-and-swap.

A swap sends a short digest of the text that was seen and the numbers that follow; the server need not look at guards.
Of a record that has changed only the changed lines are decoded.
"""

from __future__ import annotations

import re
from hashlib import sha1
from typing import Any

from ...core.errors import CorruptRecordError
from ...records.algebra import NEVER, TTL, Image, Key, Write, applied, expiry_seconds, holds
from .values import decode

_EXACT = 2**53
_FIRST_NUMBER = re.compile(r"\n[^=\n]*=-?\d")
DIGEST_LENGTH = 16
"""Hexadecimal digits of a digest, as in ``swap.lua``."""
CONTENDED_WRITES = 16
"""How many writes after a lost swap use the full script, so a swap is lost once in so many writes at most."""


class StoredImage(dict[str, Any]):
    """An image with the text it is stored as.

    The text is ``head``, of ``kept`` bytes, which seldom changes, and ``tail``, from the first number on. ``contended``
    is how many more commits must find that nobody else has written in between before the record is swapped again.
    """

    __slots__ = ("contended", "head", "kept", "tail")

    contended: int
    head: str
    kept: int
    tail: str


def add_swap(command: list[str], write: Write, *, expire: bool) -> StoredImage | None:
    """Add the arguments of ``swap.lua`` that amount to ``write`` to a command, and return the image after it.

    A new expiry is among them if the server is to ``expire`` records. Return None if the full script is needed: unless
    the write was planned from an image of this store, its guards hold for that, and it changes only whole numbers.
    """
    seen = write.seen
    if type(seen) is not StoredImage or seen.contended or not holds(seen, write.guards):
        return None
    changes = _changed_numbers(seen, write)
    tail = changes and _replace_numbers(seen, changes)
    if not (changes and tail):
        return None
    after = StoredImage(seen)
    after.update(changes)
    after.head, after.kept, after.tail, after.contended = seen.head, seen.kept, tail, 0
    digest = sha1((seen.head + seen.tail).encode(), usedforsecurity=False).hexdigest()[:DIGEST_LENGTH]
    ttl = after.get(TTL)
    command += digest, str(seen.kept), tail, str(ttl) if expire and ttl != seen.get(TTL) else ""
    return after


def _changed_numbers(seen: StoredImage, write: Write) -> dict[str, Any] | None:
    """Return the attributes that ``write`` sets, as `applied` does, or None if it does anything else."""
    changes = dict(write.put)
    try:
        for attr, amount in write.add.items():
            changes[attr] = (changes if attr in changes else seen)[attr] + amount
    except (KeyError, TypeError):
        return None
    expires_at_ms = write.expires_at_ms
    if expires_at_ms:
        changes[TTL] = max(changes.get(TTL, seen.get(TTL, 0)), expiry_seconds(expires_at_ms))
    return None if write.remove or write.delete or (expires_at_ms == NEVER and TTL in seen) else changes


def _replace_numbers(seen: StoredImage, changes: dict[str, Any]) -> str | None:
    """Return the tail with the new numbers, or None if nothing or not only whole numbers change."""
    tail = seen.tail
    for attr, value in changes.items():
        old = seen.get(attr)
        if value is old:
            continue
        if not (type(value) is type(old) is int and -_EXACT <= value <= _EXACT and -_EXACT <= old <= _EXACT):
            return None
        replaced = tail.replace(f"\n{attr}={old}\n", f"\n{attr}={value}\n", 1)
        if replaced == tail and value != old:
            return None  # it is in the head, or written with other digits
        tail = replaced
    return None if tail == seen.tail else tail


def show(write: Write, text: str, *, committed: bool) -> StoredImage | None:
    """Return the image of the record after a commit of ``write``, or None if ``text`` is empty.

    It is contended unless it is the image that the write was planned from, changed by the write if it was committed.
    """
    if not text:
        return None
    seen = write.seen
    if type(seen) is not StoredImage:
        return _store_text(_decode(write.key, _lines(text)), text)
    image = _store_text(_decode_changes(write.key, text, seen), text)
    same = image == _expect(seen, write, committed=committed)
    image.contended = max(0, seen.contended - committed) if same else CONTENDED_WRITES
    return image


def _store_text(image: Image, text: str) -> StoredImage:
    """Return ``image`` as one that is stored as ``text``."""
    found = _FIRST_NUMBER.search(text)
    cut = found.start() if found else len(text)
    stored = StoredImage(image)
    stored.head, stored.tail, stored.contended = text[:cut], text[cut:], 0
    stored.kept = len(stored.head.encode())
    return stored


def _expect(seen: StoredImage, write: Write, *, committed: bool) -> Image | None:
    """Return the image after a commit if nobody else has written since ``seen``, or None if the write is impossible."""
    if not committed:
        return seen
    try:
        return applied(seen, write)
    except CorruptRecordError:
        return None


def _decode_changes(key: Key, text: str, seen: StoredImage) -> Image:
    """Decode a record of which ``seen`` is an earlier state."""
    lines, older = _lines(text), _lines(seen.head + seen.tail)
    image = seen.copy()
    if len(lines) == len(older):
        for line, old in zip(lines, older, strict=True):
            if line != old:
                attr, _, value = line.partition("=")
                if not old.startswith(f"{attr}="):
                    return _decode(key, lines)
                image[attr] = decode(key, attr, value)
        return image
    return _decode(key, lines)


def _decode(key: Key, lines: list[str]) -> Image:
    return {attr: decode(key, attr, value) for attr, _, value in (line.partition("=") for line in lines)}


def _lines(text: str) -> list[str]:
    """Return the lines of a record's text, one per attribute."""
    return text[1:-1].split("\n") if len(text) > 1 else []
