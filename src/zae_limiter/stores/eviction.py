"""Which bucket is forgotten first: the one that is full first, as forgetting a full bucket loses nothing.

A heap of instants. An acquire moves the instant at which its bucket is full away and tells nobody: what is noted is a
lower bound, which is looked up again when it comes first. So an acquire costs nothing here, and choosing a bucket
costs O(log n).
"""

from __future__ import annotations

from collections.abc import Callable, Container
from heapq import heapify, heappop, heappush, heapreplace

from ..records import bucket
from ..records.algebra import Image
from ..records.level import CREDITS
from ..records.lots import last_expiry

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
        """Return how many notes are kept; a bucket may have several."""
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
