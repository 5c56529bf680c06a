"""Images that know the text they are stored as, so that a record which nobody else has written is replaced at once.

A commit on such an image sends a short digest of what was seen and the end of the text that changes; the server need
not look at guards. Of a record that has changed only the changed lines are decoded.
"""

from __future__ import annotations

import re
from hashlib import sha1
from typing import TYPE_CHECKING, Any, NamedTuple

from ...core.errors import CorruptRecordError
from ...records.algebra import TTL, Image, Key, Write, applied, holds
from .values import decode

if TYPE_CHECKING:
    from collections.abc import Sequence

_EXACT = 2**53
_FIRST_NUMBER = re.compile(r"\n[^=\n]*=-?\d")
DIGEST_LENGTH = 16
"""Hexadecimal digits of a digest, as in ``swap.lua``."""
CONTENDED_WRITES = 16
"""How many writes after a lost swap use the full script, so a swap is lost once in so many writes at most."""


class StoredImage(dict[str, Any]):
    """An image as Redis has shown it.

    What is stored is ``head``, ``kept`` bytes that seldom change, and ``tail``, from the first number on. ``contended``
    is how many more writes must find that nobody else has written in between before the record is swapped again.
    """

    __slots__ = ("contended", "head", "kept", "tail")

    def __init__(self, image: Image, head: str, kept: int, tail: str, contended: int = 0) -> None:
        super().__init__(image)
        self.head = head
        self.kept = kept
        self.tail = tail
        self.contended = contended


class Swap(NamedTuple):
    """The replacement of one record: everything behind the first ``kept`` bytes of its text becomes ``tail``."""

    digest: str
    kept: int
    tail: str
    expires: str
    """The new expiry in seconds; empty where it stays."""
    after: StoredImage


def plan_swaps(writes: Sequence[Write]) -> list[Swap] | None:
    """Return the replacements that amount to ``writes``, or None where the full script is needed.

    That is so unless every write changes some whole numbers of an image that this store has shown, and all guards hold
    for what was seen.
    """
    found = []
    for write in writes:
        swap = _plan_swap(write)
        if swap is None:
            return None
        found.append(swap)
    return found


def _plan_swap(write: Write) -> Swap | None:
    seen = write.seen
    if type(seen) is not StoredImage or seen.contended or write.remove or write.delete or not holds(seen, write.guards):
        return None
    try:
        image = applied(seen, write)
    except CorruptRecordError:
        return None
    assert image is not None  # it does not delete
    replaced = _replace_numbers(seen, image, {*write.put, *write.add, TTL})
    if replaced is None:
        return None
    tail, first = replaced
    head = seen.head
    digest = sha1((head + seen.tail).encode(), usedforsecurity=False).hexdigest()[:DIGEST_LENGTH]
    expires = image.get(TTL)
    moved = "" if expires == seen.get(TTL) else str(expires)
    kept = seen.kept + (first if tail.isascii() else len(tail[:first].encode()))
    return Swap(digest, kept, tail[first:], moved, StoredImage(image, head, seen.kept, tail))


def _replace_numbers(seen: StoredImage, image: Image, attrs: set[str]) -> tuple[str, int] | None:
    """Return the tail with the numbers of ``image``, and where it begins to differ.

    None where nothing changes, or anything else than whole numbers.
    """
    tail = seen.tail
    first = len(tail)
    for attr in attrs:
        value, old = image.get(attr), seen.get(attr)
        if value is old:
            continue
        if not (type(value) is type(old) is int and -_EXACT <= value <= _EXACT and -_EXACT <= old <= _EXACT):
            return None
        line = f"\n{attr}={old}\n"
        place = tail.find(line)
        if place < 0:
            return None  # it stands in the head, or in other digits
        tail = f"{tail[:place]}\n{attr}={value}\n{tail[place + len(line) :]}"
        first = min(first, place)
    return None if first == len(tail) else (tail, first)


def show(write: Write, text: str, *, committed: bool) -> StoredImage | None:
    """Return the image of the record that a commit of ``write`` has left; the empty text is no record.

    It is contended if it is not what the write was planned from, or what that becomes by the write.
    """
    if not text:
        return None
    seen = write.seen
    if type(seen) is not StoredImage:
        return _stored(_decode(write.key, _lines(text)), text)
    image = _stored(_decode_changes(write.key, text, seen), text)
    same = image == _expect(seen, write, committed=committed)
    image.contended = max(0, seen.contended - committed) if same else CONTENDED_WRITES
    return image


def _stored(image: Image, text: str) -> StoredImage:
    found = _FIRST_NUMBER.search(text)
    cut = found.start() if found else len(text)
    return StoredImage(image, text[:cut], len(text[:cut].encode()), text[cut:])


def _expect(seen: StoredImage, write: Write, *, committed: bool) -> Image | None:
    """Return what a record is after a commit that nobody has come before."""
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
