"""The housekeeper: the one thread of a process that does background work, for all limiters.

It is a thread also beside an event loop: a loop that is blocked for a while must not keep others from being served. It
is started with the first chore, ends when there is none left, and does not keep the interpreter alive. A child process
starts without chores.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeAlias

from ..forks import after_fork
from ..logs import CHORE_FAILED, tell

Chore: TypeAlias = Callable[[], float | None]
"""Something to do now. Returns the seconds after which it is due again; None for never."""

_PAUSE_SECONDS = 1.0
"""After so long a chore is tried again that has raised."""


class Housekeeper:
    """Does chores when they are due, one after the other."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._due: dict[Chore, float] = {}
        self._current: Chore | None = None
        self._dropped = False
        """Whether the current one is not to be done again."""
        self._thread: threading.Thread | None = None
        after_fork(self._forget)

    def schedule(self, chore: Chore, seconds: float) -> None:
        """Have a chore done after so many seconds, or earlier if it is due earlier."""
        at = time.monotonic() + seconds
        with self._condition:
            self._due[chore] = min(at, self._due.get(chore, at))
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="zae-limiter-housekeeper", daemon=True)
                self._thread.start()
            self._condition.notify_all()

    def cancel(self, chore: Chore) -> None:
        """Drop a chore. If it is being done right now, wait for its end, unless it is the chore itself that asks."""
        with self._condition:
            self._due.pop(chore, None)
            if self._current == chore:
                self._dropped = True
                if threading.current_thread() is not self._thread:
                    self._condition.wait_for(lambda: self._current != chore)
            self._condition.notify_all()

    def _work(self) -> None:
        while (chore := self._next()) is not None:
            try:
                seconds = chore()
            except Exception as error:  # nobody else would hear of it, and the other chores go on
                message = "background work failed, and is tried again: %r"
                tell(CHORE_FAILED, message, error, zae_error_type=type(error).__name__)
                seconds = _PAUSE_SECONDS
            with self._condition:
                self._current = None
                if self._dropped:
                    self._due.pop(chore, None)
                elif seconds is not None:
                    at = time.monotonic() + seconds
                    self._due[chore] = min(at, self._due.get(chore, at))
                self._condition.notify_all()

    def _next(self) -> Chore | None:
        """Wait for the next chore that is due and return it; None, and the thread ends, if there are none."""
        with self._condition:
            while self._due:
                chore = min(self._due, key=self._due.__getitem__)
                left = self._due[chore] - time.monotonic()
                if left <= 0:
                    del self._due[chore]
                    self._current, self._dropped = chore, False
                    return chore
                self._condition.wait(left)
            self._thread = None
            return None

    def _forget(self) -> None:
        """Start anew in a child process, where no thread of the parent runs."""
        self._condition = threading.Condition()
        self._due, self._current, self._thread = {}, None, None


HOUSEKEEPER = Housekeeper()
