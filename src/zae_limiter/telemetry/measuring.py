"""Measuring: the seams of a limiter, each with a stop-watch around it.

A decision begins when a lease first asks its limiter and ends when the answer is known. Time in line (`max_wait`) is
waited on purpose, so it is measured apart: what is left is what deciding took.
"""

from __future__ import annotations

from contextvars import ContextVar
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ..core.bucket import MILLI
from ..core.errors import (
    CapacityExceeded,
    RateLimiterUnavailable,
    RateLimitExceeded,
    ValidationError,
    ZAELimiterError,
)
from ..core.values import OnUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from ..limiter.chain import Chain
    from ..limiter.grant import Grant
    from ..limiter.lease_core import LeaseCore
    from ..limiter.limiter import RateLimiter
    from .instruments import Instruments

    Attempt = Callable[[], Coroutine[Any, Any, Grant]]
    Stand = Callable[[Chain, Mapping[str, int], int, Attempt], Coroutine[Any, Any, Grant]]

_IN_LINE: ContextVar[float] = ContextVar("zae_limiter_in_line", default=0.0)
"""How many seconds the acquire that runs here has stood in line."""


def outcome_of(error: BaseException, lease: LeaseCore) -> str | None:
    """What an error means as a decision; None where nothing was decided."""
    if isinstance(error, RateLimitExceeded):
        return "never" if isinstance(error, CapacityExceeded) else "refused"
    if isinstance(error, RateLimiterUnavailable):
        blocks = lease._limiter._policy_of(lease) is OnUnavailable.BLOCK
        return "unavailable_blocked" if blocks else "unavailable_allowed"
    return "failed" if isinstance(error, ZAELimiterError) and not isinstance(error, ValidationError) else None


class Meter:
    """Measures one limiter. It does not hold it, so a limiter that nobody uses any more goes at once."""

    def __init__(self, limiter: RateLimiter, instruments: Instruments, labels: frozenset[str]) -> None:
        backend = limiter._backend
        self._to = instruments
        self._where = {
            "zae_limiter.backend": backend.store.capabilities.name,
            "zae_limiter.namespace": backend.namespace_name,
        }
        self._by_resource = "resource" in labels
        self._by_entity = "entity_id" in labels

    def take_now(self, lease: LeaseCore) -> Grant | None:
        """`RateLimiter._take_now`, measured."""
        limiter = lease._limiter
        started = perf_counter()
        try:
            grant = type(limiter)._take_now(limiter, lease)
        except ZAELimiterError as error:
            self._decided(lease, outcome_of(error, lease), perf_counter() - started)
            raise
        if grant is None:
            lease._asked_at = started
        else:
            self._decided(lease, "granted", perf_counter() - started)
        return grant

    async def take(self, lease: LeaseCore, cost: Mapping[str, int], max_wait_ms: int) -> Grant:
        """`RateLimiter._take`, measured."""
        limiter = lease._limiter
        started = perf_counter() if lease._asked_at is None else lease._asked_at
        lease._asked_at = None
        _IN_LINE.set(0.0)
        outcome: str | None = "granted"
        try:
            return await type(limiter)._take(limiter, lease, cost, max_wait_ms)
        except BaseException as error:
            outcome = outcome_of(error, lease)
            raise
        finally:
            waited = _IN_LINE.get()
            self._decided(lease, outcome, max(0.0, perf_counter() - started - waited))
            if max_wait_ms and outcome is not None:
                self._to.wait.record(waited, self._attributes(lease, {"zae_limiter.outcome": outcome}))

    async def check(self, lease: LeaseCore, cost: Mapping[str, int]) -> None:
        """`RateLimiter._check`, measured: what it lets pass is no decision yet, as nothing was taken."""
        limiter = lease._limiter
        started = perf_counter()
        try:
            await type(limiter)._check(limiter, lease, cost)
        except ZAELimiterError as error:
            self._decided(lease, outcome_of(error, lease), perf_counter() - started)
            raise

    async def settle(self, lease: LeaseCore, grants: tuple[Grant, ...], delta: Mapping[str, int]) -> None:
        """`RateLimiter._settle`, measured."""
        if grants and not lease.degraded:
            for name, amount in delta.items():
                self._corrected(lease, name, amount, sum(grant.cost.get(name, 0) for grant in grants))
        limiter = lease._limiter
        await type(limiter)._settle(limiter, lease, grants, delta)

    def _decided(self, lease: LeaseCore, outcome: str | None, seconds: float) -> None:
        if outcome is not None:
            attributes = self._attributes(lease, {"zae_limiter.outcome": outcome})
            self._to.decisions.add(1, attributes)
            self._to.duration.record(seconds, attributes)

    def _corrected(self, lease: LeaseCore, limit: str, amount: int, estimated: int) -> None:
        """A histogram takes nothing below zero, so the direction is an attribute."""
        attributes = self._attributes(lease, {"zae_limiter.limit": limit})
        direction = "under" if amount > 0 else "over" if amount < 0 else "exact"
        self._to.error.record(abs(amount) // MILLI, {**attributes, "zae_limiter.direction": direction})
        if estimated:
            self._to.ratio.record((estimated + amount) / estimated, attributes)

    def _attributes(self, lease: LeaseCore, more: dict[str, str]) -> dict[str, str]:
        attributes = {**self._where, **more}
        if self._by_resource:
            attributes["zae_limiter.resource"] = lease._resource
        if self._by_entity:
            attributes["zae_limiter.entity_id"] = lease._entity_id
        return attributes


async def stand(inner: Stand, chain: Chain, cost: Mapping[str, int], max_wait_ms: int, attempt: Attempt) -> Grant:
    """`Lines.stand`, which is ``inner``, measured: the time in it that is not spent trying."""
    tried = 0.0

    async def timed() -> Grant:
        nonlocal tried
        since = perf_counter()
        try:
            return await attempt()
        finally:
            tried += perf_counter() - since

    started = perf_counter()
    try:
        return await inner(chain, cost, max_wait_ms, timed)
    finally:
        _IN_LINE.set(max(0.0, perf_counter() - started - tried))
