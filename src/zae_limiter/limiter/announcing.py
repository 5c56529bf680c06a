"""Announcing what a write has done to a limit besides taking from it: that a soft one was exceeded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..logs import OVERDRAWN, tell
from ..stores.bounded import BoundedMap

if TYPE_CHECKING:
    from ..records.algebra import Write
    from ..records.level import Level
    from ..repository.backend import Backend

_PAUSE_MS = 60_000
"""How long nothing more is logged of a limit of a resource that is exceeded."""
_MOST_LIMITS = 1_000


class Announcer:
    """Announces what became of limits by writes that were committed."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._logged: BoundedMap[tuple[str, str], int] = BoundedMap(_MOST_LIMITS)
        """By resource and limit: when it was last logged that it was exceeded."""

    def announce(self, level: Level, write: Write, now_ms: int) -> None:
        """Log the soft limits that a write to the bucket of ``level`` has overdrawn, each once a minute at most."""
        for name, slot in level.slots.items():
            if slot.ov and (write.add.get(slot.ov, 0) > 0 or write.put.get(slot.ov, 0) > 0):
                last_ms = self._logged.get((level.resource, name))
                if last_ms is None or not 0 <= now_ms - last_ms < _PAUSE_MS:
                    self._logged.put((level.resource, name), now_ms)
                    message = "the soft limit %s of %s was exceeded; this is logged once a minute"
                    whose = {"zae_resource": level.resource, "zae_limit": name}
                    tell(OVERDRAWN, message, name, level.resource, **self._backend.log_fields(), **whose)
