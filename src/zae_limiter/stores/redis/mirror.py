"""The mirror: what was last seen of records, as text and as images.

Of a record that has changed only the changed lines are decoded. And a record that nobody else writes can be replaced as
a whole, which spares the script the guards: it only has to find what was seen last.
"""

from __future__ import annotations

from operator import is_
from typing import NamedTuple

from ...records.algebra import Image, Key, Write, applied
from ...records.keys import STATE
from ..bounded import MAX_CACHED_KEYS, BoundedMap
from .values import decode

_EXACT = 2**53
_PROOFS = 16
"""So a swap is lost at most once in as many writes, however the clients of a bucket take turns."""


class Seen(NamedTuple):
    """A record: its text, and its image, with the attributes in the order of the lines."""

    text: str
    image: Image

    @property
    def lines(self) -> list[str]:
        """The lines of the text. They are not kept: they take four times as much memory."""
        return _lines(self.text)

    def changed(self, image: Image) -> Seen | None:
        """The record with another image; None where more than some whole numbers have changed."""
        before, attrs = self.image, list(image)
        if attrs != list(before):
            return None
        lines = self.lines
        places = [place for place, same in enumerate(map(is_, before.values(), image.values())) if not same]
        for place in places:
            value = image[attrs[place]]
            if type(value) is not int or not -_EXACT <= value <= _EXACT:
                return None
            lines[place] = f"{attrs[place]}={value}"
        return Seen("\n" + "\n".join(lines) + "\n", image)


class Mirror:
    """The buckets of one client; bounded. Other records are only decoded."""

    def __init__(self, max_entries: int = MAX_CACHED_KEYS) -> None:
        self._seen: BoundedMap[str, Seen] = BoundedMap(max_entries)
        self._doubts: BoundedMap[str, int] = BoundedMap(max_entries)

    def remember_at_most(self, buckets: int) -> None:
        """Forget what is more than so many buckets."""
        self._seen.resize(buckets)
        self._doubts.resize(buckets)

    def of(self, key: Key) -> Seen | None:
        """What was last seen of a record, unless others write it too: then it is hardly still that."""
        return None if self._doubts.get(key.pk) else self._seen.get(key.pk)

    def written(self, write: Write, text: str) -> Image | None:
        """Keep what a write has made of a record; it is trusted again when often nobody else has written in between."""
        key = write.key
        doubts = self._doubts.get(key.pk)
        before = None if doubts is None else self._seen.get(key.pk)
        image = self.show(key, text)
        if doubts is not None:
            if before is None or applied(before.image, write) != image:
                self.doubt(key)
            elif doubts > 1:
                self._doubts.put(key.pk, doubts - 1)
            else:
                self._doubts.drop(key.pk)
        return image

    def show(self, key: Key, text: str) -> Image | None:
        """Keep what a record is now, and return its image; the empty text is no record."""
        if not text:
            if key.sk == STATE:
                self._seen.drop(key.pk)
                self._doubts.drop(key.pk)
            return None
        lines = _lines(text)
        before = self._seen.get(key.pk) if key.sk == STATE else None
        image = None if before is None else _updated(key, lines, before)
        if image is None:
            image = {attr: decode(key, attr, value) for attr, _, value in (line.partition("=") for line in lines)}
        self.keep(key, Seen(text, image))
        return image

    def keep(self, key: Key, seen: Seen) -> None:
        """Keep what a record is now."""
        if key.sk == STATE:
            self._seen.put(key.pk, seen)

    def doubt(self, key: Key) -> None:
        """Somebody else has written a record: for so many writes it is not taken for what was last seen of it."""
        self._doubts.put(key.pk, _PROOFS)


def _updated(key: Key, lines: list[str], before: Seen) -> Image | None:
    """The image with the lines that have changed; None where the attributes are others."""
    older = before.lines
    if len(older) != len(lines):
        return None
    image = before.image.copy()
    for line, old in zip(lines, older, strict=True):
        if line != old:
            attr, _, value = line.partition("=")
            if not old.startswith(f"{attr}="):
                return None
            image[attr] = decode(key, attr, value)
    return image


def _lines(text: str) -> list[str]:
    """The lines of a record's text, one per attribute."""
    return text[1:-1].split("\n") if len(text) > 1 else []
