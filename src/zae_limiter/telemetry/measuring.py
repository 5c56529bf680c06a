"""The observer that measures: decisions, the time they took, and how far estimates were off."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import finalize

from ..observer import Observer
from .sources import join

if TYPE_CHECKING:
    from ..observer import Decision, Settlement
    from ..repository.repository import Repository
    from ..sync import SyncRepository
    from .instruments import Instruments


class Meter(Observer):
    """Measures one limiter, and lets a tally count what its cache and its store count, until it stops or goes."""

    def __init__(
        self, repository: Repository | SyncRepository, instruments: Instruments, labels: frozenset[str]
    ) -> None:
        self._to = instruments
        self._where = {
            "zae_limiter.backend": repository.capabilities.name,
            "zae_limiter.namespace": repository.namespace,
        }
        self._by_resource = "resource" in labels
        self._by_entity = "entity_id" in labels
        self._leave = finalize(self, instruments.tally.leave, *join(instruments.tally, repository))
        self._leave.atexit = False

    def stop(self) -> None:
        """Let the tally count no further; what was counted stays."""
        self._leave()
        self._to.tally.drop_leaving()

    def on_decision(self, decision: Decision) -> None:
        """Count a decision, and record the time it took and the time in line."""
        attributes = self._attributes(decision, {"zae_limiter.outcome": decision.outcome})
        self._to.decisions.add(1, attributes)
        self._to.duration.record(decision.seconds, attributes)
        if decision.waited is not None:
            self._to.wait.record(decision.waited, attributes)

    def on_settlement(self, settlement: Settlement) -> None:
        """Record how far each estimate was off. A histogram takes nothing below zero: the direction is an attribute."""
        for limit, amount in settlement.correction.items():
            attributes = self._attributes(settlement, {"zae_limiter.limit": limit})
            direction = "under" if amount > 0 else "over" if amount < 0 else "exact"
            self._to.error.record(abs(amount), {**attributes, "zae_limiter.direction": direction})
            estimated = settlement.estimated[limit]
            if estimated:
                self._to.ratio.record((estimated + amount) / estimated, attributes)

    def _attributes(self, told: Decision | Settlement, more: dict[str, str]) -> dict[str, str]:
        attributes = {**self._where, **more}
        if self._by_resource:
            attributes["zae_limiter.resource"] = told.resource
        if self._by_entity:
            attributes["zae_limiter.entity_id"] = told.entity_id
        return attributes
