"""Charging, observed: decisions, and updates of a store inside the process, are timed and told to the observers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self

from ..core.errors import RateLimitExceeded, ZAELimiterError
from ..observer import Decision, StoreCall
from .charger import Charger
from .grant import find_overdrawn
from .observers import classify

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ..observer import Outcome
    from ..repository.outlook import Reserving
    from .grant import Grant, GrantFields
    from .lease_port import SettleNow, TakeNow
    from .observers import Observers
    from .options import AcquireOptions, AcquireRequest


class DecisionWatch:
    """The stop-watch of one decision, as a block around deciding. It tells of the error that ends the block.

    ``waits`` are the seconds of each pause in line, which are not part of deciding; None without ``max_wait``.
    """

    __slots__ = ("_entity_id", "_observers", "_resources", "_waits", "started")

    def __init__(
        self, observers: Observers, entity_id: str, resources: Sequence[str], waits: Sequence[float] | None = None
    ) -> None:
        self._observers = observers
        self._entity_id = entity_id
        self._resources = resources
        self._waits = waits
        self.started = observers.now()

    def tell(self, outcome: Outcome, overdrawn: tuple[str, ...] = ()) -> None:
        """Tell the observers of the decision, for each resource."""
        waited = None if self._waits is None else sum(self._waits, 0.0)
        seconds = max(0.0, self._observers.now() - self.started - (waited or 0.0))
        for resource in self._resources:
            self._observers.tell_decision(Decision(self._entity_id, resource, outcome, seconds, waited, overdrawn))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        outcome = classify(error) if isinstance(error, ZAELimiterError) else None
        if outcome is not None:
            self.tell(outcome)


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
        with DecisionWatch(self._observers, entity_id, (resource,)) as watch:
            try:
                granted = self._take_now(lease, entity_id, resource, cost, options)
            except ZAELimiterError as error:
                self._tell(watch.started, error)
                raise
        if granted is not None:
            self._tell(watch.started)
            watch.tell("granted", find_overdrawn(granted))
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
            seconds, failure = self._observers.now() - started, error
            outcome: Literal["done", "conflict", "failed"] = "failed" if error else "done"
            if isinstance(error, RateLimitExceeded):
                outcome, failure = "conflict", None
            self._observers.tell("on_store_call", StoreCall("update", seconds, outcome, failure))


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
        waits: list[float] = []
        timed = waits if request.options.max_wait_ms else None
        with DecisionWatch(self.observers, request.entity_id, request.resources, timed) as watch:
            grant = await super().take(request, waits.append)
        if grant is None:
            watch.tell("unavailable_allowed")
        else:
            watch.tell("granted", find_overdrawn(grant))
        return grant

    async def check(self, request: AcquireRequest) -> bool:
        """Check a request as any charger does. One that passes decides nothing yet."""
        with DecisionWatch(self.observers, request.entity_id, request.resources) as watch:
            is_checked = await super().check(request)
        if not is_checked:
            watch.tell("unavailable_allowed")
        return is_checked
