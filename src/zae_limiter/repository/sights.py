"""What was last seen of each bucket. Never a reason to grant, only to choose a write or to refuse."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from ..records.charging import LAG_MS
from ..stores.bounded import MAX_CACHED_KEYS, BoundedMap

if TYPE_CHECKING:
    from ..core.give_back import Order
    from ..records.algebra import Image, Key


class Return(NamedTuple):
    """Tokens that this process has given back to a bucket that was ``made`` then, as one of so many ``shards``.

    ``order`` is that of the charge they are from. ``credited`` is the bucket's counter right after the return: an
    image that counts less has not seen it.
    """

    made: int
    shards: int
    limit_name: str
    order: Order
    milli: int
    credited: int


_MOST_RETURNS = 32
_CALM_WRITES = 16
"""After how many writes in a row between which nobody else wrote a limit no longer counts as hot."""
_NONE: frozenset[str] = frozenset()


class Sight:
    """The last image of one bucket (None: not known), when it was seen, and what was learned with it.

    ``refused`` says that a request was refused with this image; ``hot`` holds the limits that others are writing too,
    ``calm`` counts writes that have shown nothing of that; ``lost`` is how many races for it were lost since the last
    that was won; ``returns`` is what this process has given back lately.

    Shared between threads without a lock: a writer stores the image before the instant and a reader takes them
    the other way round, so an image is never taken for newer than it is.
    """

    __slots__ = ("calm", "hot", "image", "lost", "refused", "returning", "returns", "seen_ms")

    def __init__(self) -> None:
        self.image: Image | None = None
        self.seen_ms = 0
        self.refused = False
        self.hot = _NONE
        self.calm = 0
        self.lost = 0
        self.returns: deque[Return] | None = None
        self.returning: set[Any] | None = None
        """The settlements of this process that are on their way to the bucket."""

    def show(self, image: Image | None, now_ms: int) -> None:
        """Keep a newer image. The instant never goes back, should the clock do so."""
        self.refused = False
        self.image = image
        if now_ms > self.seen_ms:
            self.seen_ms = now_ms

    def heat(self, names: frozenset[str]) -> None:
        """Take ``names`` for the limits that others are writing, as a lost race has shown."""
        self.hot = names
        self.calm = 0

    def cool(self, *, undisturbed: bool) -> None:
        """Count a write; once enough in a row were undisturbed by others, no limit is hot any more.

        A write that was disturbed starts the count again, but not as a lost race does: see `hot_at`.
        """
        self.calm = self.calm + 1 if undisturbed else min(self.calm, 1)
        if self.calm >= _CALM_WRITES:
            self.hot = _NONE

    def hot_at(self, now_ms: int) -> frozenset[str]:
        """Return the limits that others are taken to write now: after a calm write only as long as that is recent."""
        return _NONE if self.calm and now_ms - self.seen_ms > LAG_MS else self.hot

    def keep_return(self, given: Return) -> None:
        """Remember a return; the oldest ones are forgotten."""
        if self.returns is None:
            self.returns = deque(maxlen=_MOST_RETURNS)
        self.returns.append(given)

    def returned_since(self, order: Order, made: int, shards: int, limit_name: str, credited: int) -> int:
        """Sum up what this process has given back of charges after the one of ``order``.

        Only what a bucket has seen counts: one of so many ``shards`` whose counter of credits is ``credited``.
        """
        if self.returns is None:
            return 0
        bucket = (made, shards, limit_name)
        known = tuple(self.returns)  # in one step, as others may add to it meanwhile
        return sum(
            each.milli for each in known if each.order > order and each.credited <= credited and each[:3] == bucket
        )

    def blank(self) -> None:
        """Forget what was seen."""
        self.refused = False
        self.image = None
        self.seen_ms = 0


class Sights:
    """One sight per bucket; bounded. Whoever holds one that is forgotten goes on with it."""

    def __init__(self, max_entries: int = MAX_CACHED_KEYS) -> None:
        self._known: BoundedMap[str, Sight] = BoundedMap(max_entries)

    def of(self, key: Key) -> Sight:
        """The sight of a bucket, a blank one if it is new."""
        return self._known.get_or_make(key.pk, Sight)

    def forget(self, key: Key) -> None:
        """Blank what is known of a bucket, also for those who hold its sight."""
        sight = self._known.get(key.pk)
        if sight is not None:
            sight.blank()

    def __len__(self) -> int:
        """How many buckets are known."""
        return len(self._known)
