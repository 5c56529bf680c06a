"""A clock that moves only when told to."""

from __future__ import annotations

import threading

DEFAULT_START_MS = 1_800_000_000_000


class ManualClock:
    """Time for tests. Waiting on it does not sleep: it moves the clock.

    >>> clock = ManualClock(1_000)
    >>> clock.advance(2.5)
    >>> clock.now_ms()
    3500
    """

    def __init__(self, start_ms: int = DEFAULT_START_MS) -> None:
        self._now_ms = start_ms
        self._lock = threading.Lock()

    def now_ms(self) -> int:
        """Return the present instant."""
        return self._now_ms

    def advance(self, seconds: float) -> None:
        """Move by seconds; a negative number steps back."""
        self.advance_ms(round(seconds * 1000))

    def advance_ms(self, milliseconds: int) -> None:
        """Move by milliseconds."""
        with self._lock:
            self._now_ms += milliseconds

    def set_ms(self, instant_ms: int) -> None:
        """Jump to an instant."""
        with self._lock:
            self._now_ms = instant_ms

    async def pause(self, seconds: float) -> None:
        """Move by ``seconds``, rounded up to milliseconds. A waiting limiter calls this instead of sleeping."""
        self.advance_ms(-int(-seconds * 1000 // 1))
