"""What the prefetched buckets of one limiter share: how long tokens are kept, what was counted, which have work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...core.production import MILLI
from ...logs import SETTLEMENT_LOST, tell

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...records.level import Level
    from ...repository.backend import Backend


class Books:
    """The books of one limiter: grants and writes, corrections that were lost, millitokens that went back."""

    def __init__(self, backend: Backend, keep_ms: int) -> None:
        self._backend = backend
        self.now_ms = backend.clock.now_ms
        self.keep_ms = keep_ms
        """For how long a token may be granted."""
        self.is_closed = False
        """Whether nothing more is drawn in advance."""
        self._active: dict[Any, None] = {}
        """The buckets that hold something or have something to write."""
        self.granted = self.writes = self.returned = self.lost = 0

    def wake(self, due_ms: int) -> None:
        """Have the buckets looked after at an instant, or earlier."""
        raise NotImplementedError

    def schedule(self, bucket: Any) -> None:
        """Have a bucket looked after when something of it is due."""
        self._active[bucket] = None
        self.wake(bucket.due_ms())

    def count_lost(self, level: Level, delta: Mapping[str, int]) -> None:
        """Count and log a correction that could not be written."""
        self.lost += 1
        tokens = {name: amount // MILLI for name, amount in delta.items() if amount}
        whose = {"zae_entity_id": level.entity_id, "zae_resource": level.resource, "zae_tokens": tokens}
        message = "what was gathered of a bucket could not be written: %s"
        tell(SETTLEMENT_LOST, message, tokens, **self._backend.log_fields(), **whose)
