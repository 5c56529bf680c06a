"""Images that know the text they are stored as, so that a record which nobody else has written is replaced at once.

A commit on such an image sends a short digest of what was seen and the end of the text that changes; the server need
not look at guards. Of a record that has changed only the changed lines are decoded.
"""

from __future__ import annotations

from hashlib import sha1
from typing import TYPE_CHECKING, Any, NamedTuple

from ...core.errors import CorruptRecordError
from ...records.algebra import TTL, Image, Key, Write, applied, holds
from .values import decode

if TYPE_CHECKING:
    from collections.abc import Sequence

_EXACT = 2**53
DIGEST_LENGTH = 16
"""Hexadecimal digits of a digest, as in ``swap.lua``."""
CONTENDED_WRITES = 16
"""How many writes after a lost swap use the full script, so a swap is lost once in so many writes at most."""


class StoredImage(dict[str, Any]):
    """An image as Redis has shown it.

    ``text`` is what is stored. ``contended`` is how many more writes must find that nobody else has written in between
    before the record is swapped again.
    """

    __slots__ = ("contended", "text")

    def __init__(self, image: Image, text: str, contended: int = 0) -> None:
        super().__init__(image)
        self.text = text
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
    edits = None if image is None else _find_edits(seen, image, write)
    if not edits:
        return None
    return _make_swap(seen, StoredImage(image or {}, ""), edits)


def _make_swap(seen: StoredImage, after: StoredImage, edits: list[tuple[int, int, str]]) -> Swap:
    """Return the replacement of ``seen`` by ``after``, whose text it completes."""
    text = seen.text
    edits.sort()
    first = end = edits[0][0]
    pieces: list[str] = []
    for start, stop, value in edits:
        pieces += text[end:start], value
        end = stop
    tail = "".join(pieces) + text[end:]
    after.text = text[:first] + tail
    data = text.encode()
    kept = first if len(data) == len(text) else len(text[:first].encode())
    expires = after.get(TTL)
    moved = "" if expires == seen.get(TTL) else str(expires)
    return Swap(sha1(data, usedforsecurity=False).hexdigest()[:DIGEST_LENGTH], kept, tail, moved, after)


def _find_edits(seen: StoredImage, image: Image, write: Write) -> list[tuple[int, int, str]] | None:
    """Return where in the text which numbers are replaced; None where anything else changes."""
    text = seen.text
    edits = []
    for attr in {*write.put, *write.add, TTL}:
        value, old = image.get(attr), seen.get(attr)
        if value is old:
            continue
        start = text.find(f"\n{attr}=")
        if start < 0 or not _is_exact(value) or (attr in write.add and not _is_exact(old)):
            return None
        start += len(attr) + 2
        edits.append((start, text.index("\n", start), str(value)))
    return edits


def _is_exact(value: object) -> bool:
    return type(value) is int and -_EXACT <= value <= _EXACT


def show(write: Write, text: str, *, committed: bool) -> StoredImage | None:
    """Return the image of the record that a commit of ``write`` has left; the empty text is no record.

    It is contended if it is not what the write was planned from, or what that becomes by the write.
    """
    if not text:
        return None
    seen = write.seen
    if type(seen) is not StoredImage:
        return StoredImage(_decode(write.key, _lines(text)), text)
    image = StoredImage(_decode_changes(write.key, text, seen), text, CONTENDED_WRITES)
    if image == _expect(seen, write, committed=committed):
        image.contended = max(0, seen.contended - 1) if committed else seen.contended
    return image


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
    lines, older = _lines(text), _lines(seen.text)
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
