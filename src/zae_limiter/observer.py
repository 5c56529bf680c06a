"""Observers: what a limiter tells about its work, to whoever wants to count, time, trace or log it.

`zae_limiter.telemetry` is one, for OpenTelemetry. An observer of your own has the methods of `Observer` that it needs:

>>> from collections import Counter
>>> from zae_limiter import Decision, Limit, Observer, RateLimitExceeded, SyncRateLimiter
>>> class Outcomes(Observer):
...     def __init__(self) -> None:
...         self.counts: Counter[str] = Counter()
...
...     def on_decision(self, decision: Decision) -> None:
...         self.counts[decision.outcome] += 1
>>> outcomes = Outcomes()
>>> limiter = SyncRateLimiter("memory://", observer=outcomes)
>>> limiter.set_system_defaults([Limit.per_hour("rph", 2)])
>>> for _ in range(3):
...     try:
...         with limiter.acquire("key-1", "gpt-4", {"rph": 1}):
...             pass
...     except RateLimitExceeded:
...         pass
>>> outcomes.counts
Counter({'granted': 2, 'refused': 1})
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, Protocol, TypeAlias

from .core.alerts import Alert

Outcome: TypeAlias = Literal[
    "granted", "refused", "never", "disabled", "unavailable_allowed", "unavailable_blocked", "failed"
]
State: TypeAlias = Literal["store.unavailable", "store.available", "breaker.opened", "breaker.closed"]


class Decision(NamedTuple):
    """An acquire or a ``lease.consume`` that was decided. Bad input and a cancelled caller are no decision.

    ``outcome`` is ``granted``; ``refused`` (not yet); ``never`` (the cost is above the capacity); ``disabled``;
    ``unavailable_allowed`` and ``unavailable_blocked`` (the store did not answer, and what the policy made of it); or
    ``failed`` (another error, such as access denied or a missing namespace).
    """

    entity_id: str
    resource: str
    outcome: Outcome
    seconds: float
    """How long deciding took, without the time in line."""
    waited: float | None
    """How many seconds it stood in line for tokens; None without ``max_wait``."""
    overdrawn: tuple[str, ...] = ()
    """The soft limits, and those of a bypassed level, of which it took more than there was."""


class Settlement(NamedTuple):
    """A lease that is corrected: tokens by limit. It is told before the correction is written."""

    entity_id: str
    resource: str
    estimated: Mapping[str, int]
    """What was taken, of each limit that is corrected."""
    correction: Mapping[str, int]
    """What is added to it; below zero is given back."""


class SlotLost(NamedTuple):
    """A slot of a concurrency limit that a lease has lost: not renewed in time, or taken away."""

    entity_id: str
    resource: str
    limit_name: str


class StoreCall(NamedTuple):
    """A call of the store that is over."""

    verb: Literal["read", "commit", "query", "update"]
    """The method of `Store`; ``update`` is an acquire inside a store that lives in this process."""
    seconds: float
    outcome: Literal["done", "conflict", "failed"]
    """``conflict``: nothing was written, as somebody else was faster or tokens are missing."""
    error: BaseException | None
    """What the store raised, if the call has failed."""


class Observer(Protocol):
    """Is told what a limiter does: ``RateLimiter(..., observer=...)``. Inherit, and override what you want to know.

    The methods are called at once, by the thread or the event loop of the caller, from several threads where these
    share a limiter. So they have to be quick, and must not use the limiter. An exception of theirs disturbs no caller:
    the first one of each observer is logged. A limiter without an observer calls nothing.
    """

    def on_decision(self, decision: Decision) -> None:
        """Hear that an acquire was decided."""
        return

    def on_settlement(self, settlement: Settlement) -> None:
        """Hear that a lease was settled, adjusted or released from, by how much."""
        return

    def on_alert(self, alert: Alert) -> None:
        """Hear that a write of this process has crossed a threshold of a limit (``Limit.alerts``)."""
        return

    def on_slot_lost(self, slot: SlotLost) -> None:
        """Hear that a lease of this limiter has lost a slot while its call went on. Also from a thread of its own."""
        return

    def on_store_call(self, call: StoreCall) -> None:
        """Hear that a call of the store is over, which the limiter has made for an acquire or any other operation."""
        return

    def on_config_lookups(self, hits: int, misses: int) -> None:
        """Hear how often the config cache was looked into since the last decision, by all who share the repository."""
        return

    def on_state_change(self, state: State) -> None:
        """Hear that the store does not answer (``store.unavailable``), or does again (``store.available``).

        ``breaker.opened``: it hangs, and calls that may go on without it no longer wait; ``breaker.closed``: they do.
        """
        return
