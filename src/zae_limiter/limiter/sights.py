"""What was last seen of each bucket. Never a reason to grant, only to choose a write or to refuse."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..records.algebra import Image, Key


class Sight(NamedTuple):
    """An image, when it was seen, and what was learned with it.

    ``refused`` holds, per limit, the smallest cost that the store refused with this image; ``hot`` the limits
    that others were writing at that moment.
    """

    image: Image | None
    seen_ms: int
    refused: Mapping[str, int] | None = None
    hot: frozenset[str] = frozenset()


class Sights:
    """Sights by bucket key; bounded, the oldest keys go first."""

    def __init__(self, max_entries: int = 50_000) -> None:
        self._max_entries = max_entries
        self._lock = threading.Lock()
        self.known: dict[Key, Sight] = {}

    def remember(self, key: Key, sight: Sight) -> None:
        """Keep the newest sight of a bucket."""
        known = self.known
        if key in known or len(known) < self._max_entries:
            known[key] = sight
            return
        with self._lock:
            while len(known) >= self._max_entries:
                known.pop(next(iter(known)), None)
            known[key] = sight

    def forget(self, key: Key) -> None:
        """Drop what is known of a bucket."""
        self.known.pop(key, None)
