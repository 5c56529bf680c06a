"""The usage of buckets that the memory store has forgotten, until somebody asks for it.

Taking it into the usage records costs more than the bucket did, and in a flood of keys nobody ever asks. So the last
state of such a bucket is kept as it was, and only taken in when a query or a read concerns it.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import lru_cache
from typing import TypeAlias

from ..core.errors import CorruptRecordError
from ..records import bucket, ledger
from ..records.algebra import Image, Write
from ..records.keys import owner_of_bucket, owner_of_entity
from ..records.level import CHANGES, HOUR_END
from ..records.usage import WINDOWS, window_of
from .packing import Packer
from .table import key_of

State: TypeAlias = tuple[str, bytes]
"""The name of a bucket, and what it was at last, packed."""


class Unbooked:
    """Last states of forgotten buckets, by entity, oldest first."""

    def __init__(self, usage_days: int, packer: Packer) -> None:
        self._usage_days = usage_days
        self._packer = packer
        self._states: OrderedDict[str, State | list[State]] = OrderedDict()
        """A list only where an entity has several: the garbage collector looks at lists, but not at such tuples."""
        self.windows = 0
        """How many usage records it makes, at most."""

    def add(self, name: str, image: Image, packed: bytes | None) -> None:
        """Keep the last state of a bucket, if there is usage in it that the usage records do not have.

        ``packed`` is the same state as bytes, where it is at hand.
        """
        if HOUR_END not in image or (image.get(CHANGES) == 0 and not _is_open(name, image)):
            return
        packed = packed or self._packer.pack(image)
        if packed is not None:
            owner, state = owner_of_bucket(name), (name, packed)
            before = self._states.setdefault(owner, state)
            if isinstance(before, list):
                before.append(state)
            elif before is not state:
                self._states[owner] = [before, state]
            self.windows += len(WINDOWS)

    def oldest_end(self) -> str:
        """Return the end of the hour in which the entity that came first has used something."""
        (_, packed), *_ = _as_list(next(iter(self._states.values())))
        return _end_of_hour(self._packer.unpack(packed)[HOUR_END])

    def drop_oldest(self) -> int:
        """Forget what the entity that came first has used; returns how many usage records it would have made."""
        _, held = self._states.popitem(last=False)
        dropped = len(_as_list(held)) * len(WINDOWS)
        self.windows -= dropped
        return dropped

    def book(self, entity: str) -> list[Write]:
        """Return the writes that take in what an entity has used, and forget it here."""
        states = _as_list(self._states.pop(owner_of_entity(entity), []))
        self.windows -= len(states) * len(WINDOWS)
        writes: list[Write] = []
        for name, packed in states:
            image = self._packer.unpack(packed)
            if _is_open(name, image):
                writes += ledger.book(key_of(name), image, self._usage_days).accruals
        return writes

    def entities(self) -> list[str]:
        """Return whose usage is kept here."""
        return list(self._states)


def _as_list(held: State | list[State]) -> list[State]:
    return held if isinstance(held, list) else [held]


def _is_open(name: str, image: Image) -> bool:
    """Return whether a bucket has usage that is in no usage record; False for one that cannot be read."""
    try:
        return ledger.is_open(bucket.inspect(key_of(name), image))
    except CorruptRecordError:
        return False


@lru_cache(maxsize=64)
def _end_of_hour(end_ms: int) -> str:
    return window_of("hourly", end_ms - 1).end
