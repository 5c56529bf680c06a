"""The mirror: what was last seen of records, as text and as images.

A commit can then tell the script what it expects to find and what becomes of it. Where that is so, which is nearly
always unless several clients write the same bucket at the same time, the script has next to nothing to do and to
answer; where it is not, it evaluates the guards as ever. And of a record that has changed only the changed lines are
decoded.
"""

from __future__ import annotations

from hashlib import sha1
from typing import TYPE_CHECKING, NamedTuple

from ...core.errors import CorruptRecordError
from ...records.algebra import TTL, Image, Key, Write, applied, holds, is_live
from .values import decode

if TYPE_CHECKING:
    from collections.abc import Sequence

_EXACT = 2**53
_MAX_ENTRIES = 5_000


class Seen(NamedTuple):
    """A record: its text, its lines, which line holds which attribute, and its image."""

    text: str
    lines: list[str]
    places: dict[str, int]
    image: Image


class Mirror:
    """The records of one client; bounded."""

    def __init__(self) -> None:
        self._seen: dict[Key, Seen] = {}

    def show(self, key: Key, text: str) -> Image | None:
        """Keep what a record is now, and return its image; the empty text is no record."""
        if not text:
            self._seen.pop(key, None)
            return None
        lines = text[1:-1].split("\n") if len(text) > 1 else []
        before = self._seen.get(key)
        seen = None
        if before is not None and len(before.lines) == len(lines):
            seen = _updated(key, text, lines, before)
        self.keep(key, seen or _decoded(key, text, lines))
        return self._seen[key].image

    def keep(self, key: Key, seen: Seen) -> None:
        """Keep what a record is now."""
        if key not in self._seen and len(self._seen) >= _MAX_ENTRIES:
            self._seen.clear()
        self._seen[key] = seen

    def foresee(self, writes: Sequence[Write], now_ms: int | None) -> list[tuple[Seen, Seen]] | None:
        """What the records are if nobody else has written them, and what they become.

        None where that is not known, or where it takes more than to replace some lines. ``now_ms`` is the instant by
        which records expire, if they do not by themselves.
        """
        pairs = []
        for write in writes:
            before = self._seen.get(write.key)
            if before is None or write.delete or write.remove or write.expires_at_ms == 0 or write.is_check:
                return None
            if not holds(before.image, write.guards) or (now_ms is not None and not is_live(before.image, now_ms)):
                return None
            after = _after(before, write)
            if after is None:
                return None
            pairs.append((before, after))
        return pairs


def expectations(pairs: Sequence[tuple[Seen, Seen]]) -> list[str]:
    """What is foreseen, as the script wants it: a digest, a text and a new expiry for each record."""
    found: list[str] = []
    for before, after in pairs:
        expires = after.image.get(TTL)
        moved = expires is not None and expires != before.image.get(TTL)
        found += (
            sha1(before.text.encode(), usedforsecurity=False).hexdigest(),
            after.text,
            str(expires) if moved else "",
        )
    return found


def _after(before: Seen, write: Write) -> Seen | None:
    """The record after a write that changes nothing but some of its lines."""
    try:
        image = applied(before.image, write)
    except CorruptRecordError:
        return None
    if image is None or len(image) != len(before.image):
        return None
    lines = before.lines.copy()
    for attr in (*write.put, *write.add, *((TTL,) if write.expires_at_ms else ())):
        value = image[attr]
        if type(value) is not int or not -_EXACT <= value <= _EXACT or attr.startswith("GSI"):
            return None
        lines[before.places[attr]] = f"{attr}={value}"
    return Seen("\n" + "\n".join(lines) + "\n", lines, before.places, image)


def _decoded(key: Key, text: str, lines: list[str]) -> Seen:
    pairs = [line.partition("=") for line in lines]
    image = {attr: decode(key, attr, value) for attr, _, value in pairs}
    return Seen(text, lines, {attr: place for place, attr in enumerate(image)}, image)


def _updated(key: Key, text: str, lines: list[str], before: Seen) -> Seen | None:
    """The record with the lines that have changed; None where the attributes are others."""
    image = before.image.copy()
    for line, old in zip(lines, before.lines, strict=True):
        if line != old:
            attr, _, value = line.partition("=")
            if not old.startswith(f"{attr}="):
                return None
            image[attr] = decode(key, attr, value)
    return Seen(text, lines, before.places, image)
