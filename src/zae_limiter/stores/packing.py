"""Packing: a record as bytes, which take a third of the memory of a dictionary.

The garbage collector does not look into bytes, nor at a dictionary from strings to bytes, so that a million packed
records cost it nothing. The names of the attributes are kept once for all records that have the same.
"""

from __future__ import annotations

import marshal

from ..records.algebra import Image

_VERSION = 2
"""The last version of the format in which equal values are written equally."""


_MOST_NAMES = 1_000
"""How many different sets of attribute names are kept: as many as there are combinations of limits."""


class Packer:
    """Packs and unpacks records of one process. The bytes mean nothing outside of it."""

    def __init__(self) -> None:
        self._names: list[tuple[str, ...]] = []
        self._places: dict[tuple[str, ...], int] = {}

    def pack(self, image: Image) -> bytes | None:
        """Return the record as bytes; None where it holds something that cannot be packed."""
        names = tuple(image)
        place: int | tuple[str, ...] | None = self._places.get(names)
        if place is None:
            place = self._add(names)
        try:
            return marshal.dumps((*image.values(), place), _VERSION)
        except ValueError:
            return None

    def unpack(self, packed: bytes) -> Image:
        """Return the image of a packed record."""
        values = marshal.loads(packed)
        place = values[-1]
        return dict(zip(self._names[place] if type(place) is int else place, values, strict=False))

    def _add(self, names: tuple[str, ...]) -> int | tuple[str, ...]:
        """Keep the names for other records that have the same; without room each record keeps its own."""
        if len(self._names) >= _MOST_NAMES:
            return names
        place = self._places[names] = len(self._names)
        self._names.append(names)
        return place
