"""Announcing what a write did to a limit besides taking from it: a threshold was crossed, or a soft limit exceeded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ..core.alerts import Alert
from ..core.errors import ValidationError, ZAELimiterError
from ..core.values import AuditAction
from ..logs import ALERT, ALERT_UNRECORDED, OBSERVER_FAILED, OVERDRAWN, log_event
from ..records.algebra import Write
from ..records.audit import leave_alert
from ..records.level import BucketLimits
from ..repository.backend import Backend
from ..runtime.deadline import Deadline
from ..stores.bounded import BoundedMap
from .observers import Observers
from .planning import ShardCharge

_PAUSE_MS = 60_000
"""How long nothing more is logged of a soft limit of a resource that was exceeded."""
_MOST_LIMITS = 1_000


class Announcer:
    """Announces what became of limits by writes that were committed: records, logs and tells it."""

    def __init__(self, backend: Backend, observers: Observers, on_alert: Callable[[Alert], None] | None) -> None:
        if on_alert is not None and not callable(on_alert):
            raise ValidationError("on_alert", on_alert, "must be a function that takes an Alert")
        self._backend = backend
        self._observers = observers
        self._on_alert = on_alert
        self._failed = False
        self._logged: BoundedMap[tuple[str, str], int] = BoundedMap(_MOST_LIMITS)
        """By resource and limit: when it was last logged that it was exceeded."""

    def announce_overdraft(self, level: BucketLimits, write: Write, now_ms: int) -> None:
        """Log the soft limits that a write to the bucket of ``level`` has overdrawn."""
        attributes = level.overdrafts().items()
        names = [name for name, attr in attributes if write.add.get(attr, 0) > 0 or write.put.get(attr, 0) > 0]
        self.log_overdrafts(level, names, now_ms)

    def log_overdrafts(self, level: BucketLimits, limit_names: Iterable[str], now_ms: int) -> None:
        """Log that soft limits were exceeded, each once a minute at most."""
        for name in limit_names:
            last_ms = self._logged.get((level.resource, name))
            if last_ms is None or not 0 <= now_ms - last_ms < _PAUSE_MS:
                self._logged.put((level.resource, name), now_ms)
                message = "the soft limit %s of %s was exceeded; this is logged once a minute"
                whose = {"zae_resource": level.resource, "zae_limit": name}
                log_event(OVERDRAWN, message, name, level.resource, **self._backend.log_fields(), **whose)

    def with_events(self, part: ShardCharge) -> tuple[Write, ...]:
        """Return the writes that belong into the commit of a part: the usage that it books, and `events`."""
        return (*part.accruals, *self.events(part.shard.level, part.alerts))

    def events(self, level: BucketLimits, alerts: Sequence[Alert]) -> tuple[Write, ...]:
        """Return the audit events of thresholds for the commit that crosses them; none where that is not free."""
        free = self._backend.store.capabilities.free_atomic_commit
        return tuple([self._event(level, alert) for alert in alerts]) if free else ()

    def _event(self, level: BucketLimits, alert: Alert) -> Write:
        details = {"limit": alert.limit_name, "threshold": alert.threshold, "used": alert.used}
        details |= {"capacity": alert.limit.capacity}
        if alert.resets_at is not None:
            details["resets_at"] = alert.resets_at.isoformat()
        return self._backend.event(
            level.namespace_id, AuditAction.LIMIT_ALERT, alert.entity_id, None, alert.resource, details
        )

    async def announce_alerts(self, level: BucketLimits, alerts: Sequence[Alert], deadline: Deadline) -> None:
        """Log thresholds that a committed write has crossed, and tell the observers and ``on_alert``.

        Record them first where the commit could not. Nothing of it raises.
        """
        if not self._backend.store.capabilities.free_atomic_commit:
            await self._record(level, alerts, deadline)
        for alert in alerts:
            fields = {**self._fields(alert), "zae_threshold": alert.threshold, "zae_used": alert.used}
            message = "%s on %s has used %.4g %% of %s"
            told = (alert.entity_id, alert.resource, alert.threshold * 100, alert.limit_name)
            log_event(ALERT, message, *told, **fields)
            self._observers.notify("on_alert", alert)
            self._call_back(alert)

    async def _record(self, level: BucketLimits, alerts: Sequence[Alert], deadline: Deadline) -> None:
        """Write the audit events; if an aggregator follows the store's changes, leave them for it."""
        followed = self._backend.store.capabilities.change_stream
        for alert in alerts:
            write = self._event(level, alert)
            try:
                await self._backend.store.commit([leave_alert(write) if followed else write], timeout=deadline.left())
            except ZAELimiterError as error:
                fields = {**self._fields(alert), "zae_error_type": type(error).__name__}
                log_event(ALERT_UNRECORDED, "an alert is not in the audit log: %s", error, **fields)

    def _fields(self, alert: Alert) -> dict[str, object]:
        whose = {"zae_entity_id": alert.entity_id, "zae_resource": alert.resource, "zae_limit": alert.limit_name}
        return {**self._backend.log_fields(), **whose}

    def _call_back(self, alert: Alert) -> None:
        """Call ``on_alert``. An exception is logged, the first one."""
        if self._on_alert is None:
            return
        try:
            self._on_alert(alert)
        except Exception as error:
            if not self._failed:
                self._failed = True
                fields = {"zae_observer": "on_alert", "zae_error_type": type(error).__name__}
                message = "the callback on_alert failed, which is logged once: %r"
                log_event(OBSERVER_FAILED, message, error, **self._backend.log_fields(), **fields)
