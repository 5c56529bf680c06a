"""Read past damaged records, for work that must go on with the others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from ..core.errors import CorruptRecordError
from ..records.algebra import Image, Key

Read: TypeAlias = Callable[[Sequence[Key]], Awaitable[list[Image | None]]]
"""Returns the images of keys, as `Store.read` does."""


async def read_each(read: Read, keys: Sequence[Key]) -> dict[Key, Image | CorruptRecordError | None]:
    """Return the record of every key, None where there is none, and the error for one that cannot be read.

    It is one call unless a record is damaged, then one more for each key.
    """
    found: dict[Key, Image | CorruptRecordError | None] = {}
    try:
        found.update(zip(keys, await read(keys), strict=True))
    except CorruptRecordError:
        for key in keys:
            try:
                (found[key],) = await read([key])
            except CorruptRecordError as error:
                found[key] = error
    return found
