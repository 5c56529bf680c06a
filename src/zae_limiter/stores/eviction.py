"""Forgetting buckets of the memory store: which goes first, and what it had used.

The one that is full first goes first, as forgetting a full bucket loses nothing. An acquire moves the instant at which
its bucket is full away and tells nobody: what is noted in a heap is a lower bound, which is looked up again when it
comes first. So an acquire costs nothing here, and choosing a bucket costs O(log n).

Taking the usage of a forgotten bucket into the usage records costs more than the bucket did, and in a flood of keys
nobody ever asks. So the last state of such a bucket is kept, and only taken in when a query or a read concerns it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Container
from functools import lru_cache
from heapq import heapify, heappop, heappush, heapreplace
from typing import TypeAlias

from ..core.errors import CorruptRecordError
from ..records import bucket, ledger
from ..records.algebra import Image, Write
from ..records.keys import owner_of_bucket, owner_of_entity
from ..records.level import CHANGES, CREDITS, HOUR_END
from ..records.lots import last_expiry
from ..records.usage import WINDOWS, window_of
from .table import Packer, key_of

MOST_LOOKS = 1_000
"""How many buckets are looked at in one go, which takes a few milliseconds."""
_NEVER = 2**62


class EvictionQueue:
    """Buckets by the instant from which each of them is full, or an earlier one."""

    def __init__(self, look: Callable[[str], Image | None]) -> None:
        """Start empty. ``look`` returns what a bucket is now, or None where it is gone."""
        self._look = look
        self._notes: list[tuple[int, str]] = []
        self.returned: set[str] = set()
        """Buckets that are noted since tokens came back to them."""

    def __len__(self) -> int:
        return len(self._notes)

    def note(self, name: str, full_ms: int, buckets: int) -> None:
        """Add a bucket, one of so many, that is new or that is full earlier than it was."""
        heappush(self._notes, (full_ms, name))
        if len(self._notes) > 2 * buckets + MOST_LOOKS:  # most are of buckets that are gone, or not the earliest
            earliest = {name: full_ms for full_ms, name in sorted(self._notes, reverse=True)}
            self._notes = [(full_ms, name) for name, full_ms in earliest.items() if self._look(name) is not None]
            self.returned.intersection_update([name for _, name in self._notes])
            heapify(self._notes)

    def note_return(self, name: str, buckets: int) -> None:
        """Note that tokens came back to a bucket: it may be full at any time, so it is looked at first."""
        if name not in self.returned:
            self.returned.add(name)
            self.note(name, 0, buckets)

    def choose(self, count: int, kept: Container[object], now_ms: int = 0) -> dict[str, tuple[int, Image]]:
        """Take out the ``count`` buckets outside of ``kept`` that are full first, with that instant and what they are.

        Those stay that have credits at ``now_ms``: nobody would give them again.
        Returns fewer if it has looked at `MOST_LOOKS` before it knows: the next call goes on from there.
        """
        notes = self._notes
        chosen: dict[str, tuple[int, Image]] = {}
        aside = []
        for _ in range(MOST_LOOKS):
            if not notes or len(chosen) == count:
                break
            noted_ms, name = notes[0]
            self.returned.discard(name)
            image = self._look(name)
            full_ms = noted_ms if image is None else full_at(image)
            if full_ms > noted_ms:
                heapreplace(notes, (full_ms, name))
                continue
            heappop(notes)
            if image is not None and (name in kept or (CREDITS in image and last_expiry(image) > now_ms)):
                aside.append((full_ms, name))
            elif image is not None:
                chosen[name] = full_ms, image
        for note in aside:
            heappush(notes, note)
        return chosen


def full_at(image: Image) -> int:
    """Return when nothing is lost by forgetting a bucket; one that cannot be read goes last, so that it is noticed."""
    try:
        return bucket.full_at(image)
    except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError):
        return _NEVER


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
    try:
        return ledger.is_open(bucket.inspect(key_of(name), image))
    except CorruptRecordError:
        return False


@lru_cache(maxsize=64)
def _end_of_hour(end_ms: int) -> str:
    return window_of("hourly", end_ms - 1).end
