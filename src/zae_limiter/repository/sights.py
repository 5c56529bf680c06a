"""What was last seen of each bucket. Never a reason to grant, only to choose a write or to refuse."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

from ..forks import protect

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


class Sight:
    """The last image of one bucket (None: not known), when it was seen, and what was learned with it.

    ``refused`` says that a request was refused with this image; ``hot`` holds the limits that
    others were writing at that moment; ``lost`` how many races for it were lost since the last that was won;
    ``returns`` is what this process has given back lately.

    Shared between threads without a lock: a writer stores the image before the instant and a reader takes them
    the other way round, so an image is never taken for newer than it is.
    """

    __slots__ = ("hot", "image", "lost", "refused", "returns", "seen_ms")

    def __init__(self) -> None:
        self.image: Image | None = None
        self.seen_ms = 0
        self.refused = False
        self.hot: frozenset[str] = frozenset()
        self.lost = 0
        self.returns: tuple[Return, ...] = ()

    def show(self, image: Image | None, now_ms: int) -> None:
        """Keep a newer image. The instant never goes back, should the clock do so."""
        self.refused = False
        self.image = image
        if now_ms > self.seen_ms:
            self.seen_ms = now_ms

    def keep_return(self, given: Return) -> None:
        """Remember a return; the oldest ones are forgotten."""
        self.returns = (*self.returns[1 - _MOST_RETURNS :], given)

    def returned_since(self, order: Order, made: int, shards: int, limit_name: str, credited: int) -> int:
        """Sum up what this process has given back of charges after the one of ``order``.

        Only what a bucket has seen counts: one of so many ``shards`` whose counter of credits is ``credited``.
        """
        bucket = (made, shards, limit_name)
        return sum(
            each.milli
            for each in self.returns
            if each.order > order and each.credited <= credited and each[:3] == bucket
        )

    def blank(self) -> None:
        """Forget what was seen."""
        self.refused = False
        self.image = None
        self.seen_ms = 0


class Sights:
    """One sight per bucket; bounded, the oldest go first."""

    def __init__(self, max_entries: int = 50_000) -> None:
        self._max_entries = max_entries
        self._lock = threading.Lock()
        self._known: OrderedDict[Key, Sight] = OrderedDict()
        protect(self)

    def of(self, key: Key) -> Sight:
        """The sight of a bucket, a blank one if it is new."""
        sight = self._known.get(key)
        if sight is None:
            with self._lock:
                while len(self._known) >= self._max_entries:
                    self._known.popitem(last=False)
                sight = self._known.setdefault(key, Sight())
        return sight

    def forget(self, key: Key) -> None:
        """Blank what is known of a bucket, also for those who hold its sight."""
        sight = self._known.get(key)
        if sight is not None:
            sight.blank()

    def __len__(self) -> int:
        """How many buckets are known."""
        return len(self._known)
