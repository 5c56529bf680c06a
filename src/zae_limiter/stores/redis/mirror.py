"""The mirror: what was last seen of records, as text and as images.

Of a record that has changed only the changed lines are decoded. And a record that nobody else writes can be replaced as
a whole, which spares the script the guards: it only has to find what was seen last.
"""

from __future__ import annotations

from operator import is_
from typing import NamedTuple

from ...records.algebra import Image, Key, Write, applied
from ...records.keys import STATE
from .values import decode

_EXACT = 2**53
_MAX_ENTRIES = 5_000
_PROOFS = 16
"""So a swap is lost at most once in as many writes, however the clients of a bucket take turns."""


class Seen(NamedTuple):
    """A record: its text, its lines, and its image, with the attributes in the order of the lines."""

    text: str
    lines: list[str]
    image: Image

    def changed(self, image: Image) -> Seen | None:
        """The record with another image; None where more than some whole numbers have changed."""
        before, attrs = self.image, list(image)
        if attrs != list(before):
            return None
        lines = self.lines.copy()
        places = [place for place, same in enumerate(map(is_, before.values(), image.values())) if not same]
        for place in places:
            value = image[attrs[place]]
            if type(value) is not int or not -_EXACT <= value <= _EXACT:
                return None
            lines[place] = f"{attrs[place]}={value}"
        return Seen("\n" + "\n".join(lines) + "\n", lines, image)


class Mirror:
    """The buckets of one client; bounded. Other records are only decoded."""

    def __init__(self) -> None:
        self._seen: dict[Key, Seen] = {}
        self._doubts: dict[Key, int] = {}

    def of(self, key: Key) -> Seen | None:
        """What was last seen of a record, unless others write it too: then it is hardly still that."""
        return None if key in self._doubts else self._seen.get(key)

    def written(self, write: Write, text: str) -> Image | None:
        """Keep what a write has made of a record; it is trusted again when often nobody else has written in between."""
        key = write.key
        doubts = self._doubts.get(key)
        before = None if doubts is None else self._seen.get(key)
        image = self.show(key, text)
        if doubts is not None:
            if before is None or applied(before.image, write) != image:
                self.doubt(key)
            elif doubts > 1:
                self._doubts[key] = doubts - 1
            else:
                self._doubts.pop(key, None)
        return image

    def show(self, key: Key, text: str) -> Image | None:
        """Keep what a record is now, and return its image; the empty text is no record."""
        if not text:
            self._seen.pop(key, None)
            self._doubts.pop(key, None)
            return None
        lines = text[1:-1].split("\n") if len(text) > 1 else []
        before = self._seen.get(key)
        image = None
        if before is not None and len(before.lines) == len(lines):
            image = _updated(key, lines, before)
        if image is None:
            image = {attr: decode(key, attr, value) for attr, _, value in (line.partition("=") for line in lines)}
        self.keep(key, Seen(text, lines, image))
        return image

    def keep(self, key: Key, seen: Seen) -> None:
        """Keep what a record is now."""
        if key.sk != STATE:
            return
        if key not in self._seen and len(self._seen) >= _MAX_ENTRIES:
            self._seen.clear()
            self._doubts.clear()
        self._seen[key] = seen

    def doubt(self, key: Key) -> None:
        """Somebody else has written a record: for so many writes it is not taken for what was last seen of it."""
        self._doubts[key] = _PROOFS


def _updated(key: Key, lines: list[str], before: Seen) -> Image | None:
    """The image with the lines that have changed; None where the attributes are others."""
    image = before.image.copy()
    for line, old in zip(lines, before.lines, strict=True):
        if line != old:
            attr, _, value = line.partition("=")
            if not old.startswith(f"{attr}="):
                return None
            image[attr] = decode(key, attr, value)
    return image
