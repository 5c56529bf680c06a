"""Charging, observed: decisions, and updates of a store inside the process, are timed and told to the observers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..core.errors import RateLimitExceeded, ZAELimiterError
from ..observer import Outcome, StoreCall
from ..repository.last_seen import Reserving
from .charger import Charger
from .grant import Grant, GrantFields, find_overdrawn
from .lease_port import SettleNow, TakeNow
from .observers import Observers
from .options import AcquireOptions, AcquireRequest


class ObservedUpdates:
    """What takes and settles without waiting, observed: ``take_now`` and ``settle_now`` of a `Charges`.

    One that can settle updates a store inside the process, which counts as a call of that.
    """

    def __init__(self, observers: Observers, take_now: TakeNow, settle_now: SettleNow | None) -> None:
        self._observers = observers
        self._take_now = take_now
        self._settle_now = settle_now

    def take(
        self, lease: Reserving, entity_id: str, resource: str, cost: dict[str, int], options: AcquireOptions
    ) -> GrantFields | None:
        """Take from one resource. Return None, with nothing taken, if that has to wait for something."""
        started = self._observers.now()
        try:
            granted = self._take_now(lease, entity_id, resource, cost, options)
        except ZAELimiterError as error:
            self._tell(started, error)
            self._observers.notify_decision(entity_id, (resource,), error, started)
            raise
        if granted is not None:
            self._tell(started)
            overdrawn = find_overdrawn(granted)
            self._observers.notify_decision(entity_id, (resource,), "granted", started, None, overdrawn)
        return granted

    def settle(self, entity_id: str, resource: str, granted: GrantFields, delta: Mapping[str, int]) -> bool:
        """Settle one grant. Return False, with nothing done, if that has to wait for something."""
        started = self._observers.now()
        is_settled = self._settle_now is not None and self._settle_now(entity_id, resource, granted, delta)
        if is_settled and any(delta.values()):
            self._tell(started)
        return is_settled

    def _tell(self, started: float, error: ZAELimiterError | None = None) -> None:
        """Tell of an update of the store."""
        if self._settle_now is not None and self._observers.of["on_store_call"]:
            seconds = self._observers.now() - started
            if isinstance(error, RateLimitExceeded):
                call = StoreCall("update", seconds, "conflict", None)
            else:
                call = StoreCall("update", seconds, "failed" if error else "done", error)
            self._observers.notify("on_store_call", call)


@dataclass(eq=False)
class ObservedCharger(Charger):
    """A charger whose decisions are told."""

    is_observed: bool = True

    def __post_init__(self) -> None:
        if self.take_now is not None:
            updates = ObservedUpdates(self.observers, self.take_now, self.settle_now)
            self.take_now, self.settle_now = updates.take, updates.settle

    async def take(self, request: AcquireRequest, note_wait: Callable[[float], None] | None = None) -> Grant | None:
        """Take tokens as any charger does."""
        started, waits = self.observers.now(), list[float]()
        waited = waits if request.options.max_wait_ms else None
        try:
            grant = await super().take(request, waits.append)
        except ZAELimiterError as error:
            self.observers.notify_decision(request.entity_id, request.resources, error, started, waited)
            raise
        outcome: Outcome = "unavailable_allowed" if grant is None else "granted"
        overdrawn = () if grant is None else find_overdrawn(grant)
        self.observers.notify_decision(request.entity_id, request.resources, outcome, started, waited, overdrawn)
        return grant

    async def check(self, request: AcquireRequest) -> bool:
        """Check a request as any charger does. One that passes decides nothing yet."""
        started = self.observers.now()
        try:
            is_checked = await super().check(request)
        except ZAELimiterError as error:
            self.observers.notify_decision(request.entity_id, request.resources, error, started)
            raise
        if not is_checked:
            self.observers.notify_decision(request.entity_id, request.resources, "unavailable_allowed", started)
        return is_checked
