"""A circuit breaker: a store that hangs keeps one caller at a time waiting, not all of them.

It is for calls that go on without the store when it is unavailable. The first one that has waited in vain opens it;
while it is open the others go on at once, and one caller per interval asks the store. The first answer closes it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from ..forks import protect

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..runtime.deadline import Deadline

RETRY_SECONDS = 1.0
"""How long nobody asks a store that has not answered."""
_HANGS = 0.1
"""The share of a deadline after which a failure has kept its caller waiting. One that comes at once costs nothing."""


class Breaker:
    """Decides who asks a store that has not answered."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._retry_at = 0.0
        self._waited = 0.0
        """How many seconds the store had for its answer and did not give one; 0 where the breaker is closed."""
        self.is_open = False
        """Whether the store has not answered lately."""
        self.answers = 0
        """How many answers the store has given: one that answers others does not hang."""
        protect(self._lock)

    def skips(self, seconds: float) -> bool:
        """Return whether a caller that would wait for so many seconds is to go on without asking.

        Who would wait longer than anybody has waited asks; and once per interval one of the others.
        """
        with self._lock:
            if seconds > self._waited:
                return False
            now = self._now()
            if now < self._retry_at:
                return True
            self._retry_at = now + seconds + RETRY_SECONDS  # should this caller vanish, another one tries then
            return False

    def report_failure(self, deadline: Deadline, answers: int) -> bool:
        """Note a call that failed, begun when there were ``answers``; return whether the breaker opens by it."""
        with self._lock:
            opens = not self._waited
            hangs = self.answers == answers and deadline.elapsed >= deadline.seconds * _HANGS
            if opens and not hangs:
                return False
            self._waited = max(self._waited, deadline.seconds) if hangs else self._waited
            self.is_open = True
            self._retry_at = self._now() + RETRY_SECONDS
            return opens

    def report_answer(self) -> bool:
        """Note an answer; return whether the breaker closes by it."""
        self.answers += 1
        if not self._waited:
            return False
        with self._lock:
            closes, self._waited, self.is_open = self.is_open, 0.0, False
            return closes
