"""The housekeeper: does the background work of a process, for all limiters.

It is a thread even if the program has an event loop, which may be blocked. It starts with the first chore and ends with
the last. Each chore runs in a thread of its own, so that one that hangs delays no other. None of these threads keeps
the interpreter alive. A child process starts without chores.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeAlias

from ..forks import after_fork
from ..logs import CHORE_FAILED, log_event

Chore: TypeAlias = Callable[[], float | None]
"""Something to do now. Returns the seconds after which it is due again; None for never."""

_PAUSE_SECONDS = 1.0
"""Time until a chore that has raised is tried again, in seconds."""


class Housekeeper:
    """Does chores when they are due, in parallel; each of them once at a time."""

    def __init__(self) -> None:
        self._forget()
        after_fork(self._forget)

    def _forget(self) -> None:
        """Start without chores: in a child process no thread of the parent runs."""
        self._condition = threading.Condition()
        self._due: dict[Chore, float] = {}
        self._doing: dict[Chore, threading.Thread] = {}
        self._dropped: set[Chore] = set()
        """Those that are being done for the last time."""
        self._thread: threading.Thread | None = None

    def schedule(self, chore: Chore, seconds: float) -> None:
        """Have a chore done after ``seconds``, or earlier if it is due earlier."""
        at = time.monotonic() + seconds
        with self._condition:
            known = self._due.get(chore)
            if known is not None and known <= at:  # to wake the thread costs a switch to it
                return
            self._due[chore] = at
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="zae-limiter-housekeeper", daemon=True)
                self._thread.start()
            self._condition.notify_all()

    def cancel(self, chore: Chore) -> None:
        """Drop a chore. If it is being done now, wait for its end, unless the chore itself asks."""
        with self._condition:
            self._due.pop(chore, None)
            if chore in self._doing:
                self._dropped.add(chore)
                if self._doing[chore] is not threading.current_thread():
                    self._condition.wait_for(lambda: chore not in self._doing)
            self._condition.notify_all()

    def _work(self) -> None:
        with self._condition:
            while self._due or self._doing:
                now = time.monotonic()
                waiting = [chore for chore in sorted(self._due, key=self._due.__getitem__) if chore not in self._doing]
                left = [self._due[chore] - now for chore in waiting if self._due[chore] > now]
                for chore in [chore for chore in waiting if self._due[chore] <= now]:
                    del self._due[chore]
                    worker = threading.Thread(target=self._do, args=(chore,), name="zae-limiter-chore", daemon=True)
                    self._doing[chore] = worker
                    worker.start()
                self._condition.wait(min(left, default=None))
            self._thread = None

    def _do(self, chore: Chore) -> None:
        try:
            seconds = chore()
        except Exception as error:
            message = "background work failed, and is tried again: %r"
            log_event(CHORE_FAILED, message, error, zae_error_type=type(error).__name__)
            seconds = _PAUSE_SECONDS
        with self._condition:
            self._doing.pop(chore, None)
            if chore in self._dropped:
                self._dropped.discard(chore)
                self._due.pop(chore, None)
            elif seconds is not None:
                at = time.monotonic() + seconds
                self._due[chore] = min(at, self._due.get(chore, at))
            self._condition.notify_all()


HOUSEKEEPER = Housekeeper()
