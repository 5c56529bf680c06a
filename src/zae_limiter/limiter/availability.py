"""Whether the store answers: who asks it, who goes on without it, and one report per change of that.

A circuit breaker is for calls that go on without the store when it is unavailable: a store that hangs keeps one of
them at a time waiting, not all. The first one that has waited in vain opens it; while it is open the others go on at
once, and one caller per interval asks the store. The first answer closes it.
"""

from __future__ import annotations

import threading

from ..core.errors import AccessDeniedError, ConfigurationError, RateLimiterUnavailable
from ..core.values import OnUnavailable
from ..forks import protect
from ..logs import BREAKER_CLOSED, BREAKER_OPENED, STORE_AVAILABLE, STORE_UNAVAILABLE, Event, log_event
from ..repository.backend import Backend
from ..runtime.deadline import Deadline
from .charge_paths import ChargePaths
from .observers import Observers

RETRY_SECONDS = 1.0
"""How long no caller asks a store that has not answered, in seconds."""
_HANGS = 0.1
"""The share of a deadline after which a failure has kept its caller waiting. One that comes at once costs nothing."""


class StoreAvailability:
    """What one limiter knows of its store's availability.

    A ``policy`` is that of the call or of the limiter; without one that of the system config applies, else block.
    """

    def __init__(self, backend: Backend, chains: ChargePaths, observers: Observers) -> None:
        self.is_up = True
        """Whether the store answered when it was last asked."""
        self.is_open = False
        """Whether the breaker is open: the store has hung lately."""
        self.answers = 0
        """How many answers the store has given: one that answers others does not hang."""
        self._backend = backend
        self._chains = chains
        self._observers = observers
        self._lock = threading.RLock()  # as that of `BoundedMap`
        self._retry_at = 0.0
        self._waited = 0.0
        """How many seconds the store has let a caller wait in vain; 0 while the breaker is closed."""
        protect(self._lock)

    def blocks(self, policy: OnUnavailable | None) -> bool:
        """Return whether a call fails while the store is unavailable; False if it goes on without."""
        return (policy or self._chains.system_policy or OnUnavailable.BLOCK) is OnUnavailable.BLOCK

    def may_ask(self, policy: OnUnavailable | None, timeout: float) -> bool:
        """Return False if a call of ``timeout`` seconds goes on without a store that hangs.

        A call that would wait longer than any has waited may ask; and once per interval one of the others.
        """
        if not self.is_open or self.blocks(policy):
            return True
        with self._lock:
            now = self._backend.stopwatch()
            if timeout > self._waited:
                return True
            if now >= self._retry_at:
                self._retry_at = now + timeout + RETRY_SECONDS  # should this caller vanish, another one tries then
                return True
        return False

    def report_outage(
        self,
        error: RateLimiterUnavailable | ConfigurationError,
        policy: OnUnavailable | None,
        deadline: Deadline,
        answers: int,
    ) -> None:
        """Note that an acquire was not decided, which began when there were ``answers``."""
        if isinstance(error, AccessDeniedError | ConfigurationError):  # no outage: nobody goes on without the store
            self._close_breaker()
            return
        if self.is_up:
            self.is_up = False
            self._tell(STORE_UNAVAILABLE, "store unavailable: %s", error, zae_error_type=type(error).__name__)
        self.report_failure(policy, deadline, answers)

    def report_failure(self, policy: OnUnavailable | None, deadline: Deadline, answers: int) -> None:
        """Note that a call has failed. If it had to wait, others that may go on without the store no longer do."""
        if self.blocks(policy):
            return
        with self._lock:
            opens = not self.is_open
            hangs = self.answers == answers and deadline.elapsed >= deadline.seconds * _HANGS
            if opens and not hangs:
                return
            if hangs:
                self._waited = max(self._waited, deadline.seconds)
            self.is_open = True
            self._retry_at = self._backend.stopwatch() + RETRY_SECONDS
        if opens:
            self._tell(BREAKER_OPENED, "store hangs: calls that may go on without it no longer wait")

    def report_answer(self) -> None:
        """Note that the store has answered."""
        if not self.is_up:
            self.is_up = True
            self._tell(STORE_AVAILABLE, "store answers again")
        self.answers += 1
        if self.is_open:
            self._close_breaker()

    def _close_breaker(self) -> None:
        with self._lock:
            closes, self._waited, self.is_open = self.is_open, 0.0, False
        if closes:
            self._tell(BREAKER_CLOSED, "store is asked by everybody again")

    def _tell(self, event: Event, message: str, *args: object, **fields: object) -> None:
        log_event(event, message, *args, **self._backend.log_fields(), **fields)
        self._observers.notify("on_state_change", event.name)
