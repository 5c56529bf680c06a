"""Whether the store answers: who asks it, who goes on without it, and one report per change of that."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.errors import RateLimiterUnavailable
from ..core.values import OnUnavailable
from ..logs import BREAKER_CLOSED, BREAKER_OPENED, STORE_AVAILABLE, STORE_UNAVAILABLE, Event, tell
from .breaker import Breaker

if TYPE_CHECKING:
    from ..repository.backend import Backend
    from ..runtime.deadline import Deadline
    from .chains import Chains
    from .observers import Observers


class Availability:
    """What one limiter knows of its store's availability.

    A ``policy`` is that of the call or of the limiter; without one that of the system config applies, else block.
    """

    def __init__(self, backend: Backend, chains: Chains, observers: Observers) -> None:
        self.breaker = Breaker(backend.stopwatch)
        self.is_up = True
        """Whether the store answered when it was last asked."""
        self._backend = backend
        self._chains = chains
        self._observers = observers

    def blocks(self, policy: OnUnavailable | None) -> bool:
        """Return whether a call fails while the store is unavailable; False where it goes on without."""
        return (policy or self._chains.system_policy or OnUnavailable.BLOCK) is OnUnavailable.BLOCK

    def check(self, policy: OnUnavailable | None, timeout: float) -> None:
        """Raise `RateLimiterUnavailable` where a call of ``timeout`` seconds is to go on without a store that hangs."""
        if self.breaker.is_open and not self.blocks(policy) and self.breaker.skips(timeout):
            raise RateLimiterUnavailable("The store has not answered lately; it was not asked.")

    def report_outage(
        self, error: RateLimiterUnavailable, policy: OnUnavailable | None, deadline: Deadline, answers: int
    ) -> None:
        """Note that an acquire was not decided; ``answers`` of the breaker there were when it began."""
        if self.is_up:
            self.is_up = False
            self._tell(STORE_UNAVAILABLE, "store unavailable: %s", error)
        self.report_failure(policy, deadline, answers)

    def report_failure(self, policy: OnUnavailable | None, deadline: Deadline, answers: int) -> None:
        """Note that a call has failed. If it had to wait, others that may go on without the store no longer do."""
        if not self.blocks(policy) and self.breaker.report_failure(deadline, answers):
            self._tell(BREAKER_OPENED, "store hangs: calls that may go on without it no longer wait")

    def report_answer(self) -> None:
        """Note that the store has answered."""
        if not self.is_up:
            self.is_up = True
            self._tell(STORE_AVAILABLE, "store answers again")
        if self.breaker.report_answer():
            self._tell(BREAKER_CLOSED, "store is asked by everybody again")

    def _tell(self, event: Event, message: str, error: Exception | None = None) -> None:
        args, kind = ((), {}) if error is None else ((error,), {"zae_error_type": type(error).__name__})
        tell(event, message, *args, **self._backend.log_fields(), **kind)
        self._observers.tell("on_state_change", event.name)
