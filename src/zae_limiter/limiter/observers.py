"""Reporting what a limiter does: to its observers, with the calls of the store, and as events of its limits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, Literal, ParamSpec, TypeVar

from ..core.alerts import Alert
from ..core.errors import (
    AccessDeniedError,
    CapacityExceeded,
    RateLimiterUnavailable,
    RateLimitExceeded,
    ResourceDisabled,
    ValidationError,
    ZAELimiterError,
)
from ..core.values import AuditAction
from ..forks import protect
from ..logs import ALERT, ALERT_UNRECORDED, OBSERVER_FAILED, OVERDRAWN, log_event
from ..observer import Decision, Observer, Outcome, StoreCall
from ..records.algebra import Conflict, Write
from ..records.audit import leave_alert
from ..records.level import BucketLimits
from ..repository.backend import Backend
from ..runtime.deadline import Deadline
from ..stores.bounded import BoundedMap
from ..stores.port import Store
from .grant import ShardCharge

P = ParamSpec("P")
T = TypeVar("T")

_METHODS = tuple([name for name in vars(Observer) if name.startswith("on_")])
_PAUSE_MS = 60_000
"""How long nothing more is logged of a soft limit of a resource that was exceeded."""
_MOST_LIMITS = 1_000


class Observers:
    """The observers of one limiter."""

    def __init__(self, backend: Backend) -> None:
        self.all: tuple[Observer, ...] = ()
        self.of: dict[str, tuple[Observer, ...]] = dict.fromkeys(_METHODS, ())
        """By method, the observers that override it."""
        self.now = time.perf_counter if backend.stopwatch is time.monotonic else backend.stopwatch
        """The stop-watch for all that is reported, in seconds."""
        self._backend = backend
        self._failed: set[int | str] = set()
        self._lock = threading.RLock()  # as that of `BoundedMap`
        self._lookups = (0, 0)
        protect(self._lock)

    def replace(self, observers: Sequence[Observer]) -> None:
        """Notify these from now on. Raises `ValidationError` for something that lacks a method of `Observer`."""
        if not isinstance(observers, (tuple, list)):
            raise ValidationError("observers", observers, "must be a tuple of observers")
        for observer in observers:
            if isinstance(observer, type) or not all(callable(getattr(observer, name, None)) for name in _METHODS):
                raise ValidationError("observer", observer, "must have the methods of zae_limiter.Observer")
        self._count_lookups()
        self._failed = {name for name in self._failed if isinstance(name, str)}
        for name in _METHODS:
            inherited = getattr(Observer, name)
            self.of[name] = tuple([each for each in observers if getattr(type(each), name, None) is not inherited])
        self.all = tuple(observers)

    def notify(self, method: str, *values: object) -> None:
        """Call ``method`` of every observer that has it. An exception is logged, the first one of each observer."""
        for observer in self.of[method]:
            try:
                getattr(observer, method)(*values)
            except Exception as error:
                self._log_failure(id(observer), type(observer).__name__, error)

    def call_back(self, name: str, work: Callable[[], object]) -> None:
        """Call something that a user has given under a name. An exception is logged, the first one of each name."""
        try:
            work()
        except Exception as error:
            self._log_failure(name, name, error)

    def _log_failure(self, key: int | str, name: str, error: Exception) -> None:
        if key not in self._failed:
            self._failed.add(key)
            fields = {"zae_observer": name, "zae_error_type": type(error).__name__}
            message = "observer %s failed, which is logged once: %r"
            log_event(OBSERVER_FAILED, message, name, error, **self._backend.log_fields(), **fields)

    def notify_decision(
        self,
        entity_id: str,
        resources: Sequence[str],
        outcome: Outcome | ZAELimiterError,
        started: float,
        waits: Sequence[float] | None = None,
        overdrawn: tuple[str, ...] = (),
    ) -> None:
        """Report a decision about each resource, and the config lookups since the last one.

        An error that decided nothing, such as bad input, is not reported. ``waits`` are the seconds of each pause in
        line, which do not count as deciding; None without ``max_wait``.
        """
        found = _classify(outcome) if isinstance(outcome, ZAELimiterError) else outcome
        if found is None:
            return
        waited = None if waits is None else sum(waits, 0.0)
        seconds = max(0.0, self.now() - started - (waited or 0.0))
        for resource in resources:
            self.notify("on_decision", Decision(entity_id, resource, found, seconds, waited, overdrawn))
        if self.of["on_config_lookups"] and any(lookups := self._count_lookups()):
            self.notify("on_config_lookups", *lookups)

    def _count_lookups(self) -> tuple[int, int]:
        """Return the hits and misses of the config cache since this was last called."""
        with self._lock:
            cache, (hits, misses) = self._backend.cache, self._lookups
            self._lookups = (cache.hits, cache.misses)
            return self._lookups[0] - hits, self._lookups[1] - misses

    def notify_call(
        self,
        verb: Literal["read", "commit", "query", "update"],
        started: float,
        outcome: Literal["done", "conflict", "failed"],
        error: BaseException | None = None,
    ) -> None:
        """Report a store call that has ended now."""
        self.notify("on_store_call", StoreCall(verb, self.now() - started, outcome, error))


def _classify(error: ZAELimiterError) -> Outcome | None:
    """Return what an error means as a decision; None if nothing was decided."""
    if isinstance(error, RateLimitExceeded):
        return "never" if isinstance(error, CapacityExceeded) else "refused"
    if isinstance(error, ResourceDisabled):
        return "disabled"
    if isinstance(error, RateLimiterUnavailable) and not isinstance(error, AccessDeniedError):
        return "unavailable_blocked"
    return None if isinstance(error, ValidationError) else "failed"


class ObservedStore:
    """A store whose calls are timed and reported to observers."""

    def __init__(self, inner: Store, observers: Observers) -> None:
        self.capabilities, self.clock, self.close = inner.capabilities, inner.clock, inner.close
        self.stack_name: str | None = getattr(inner, "stack_name", None)
        self.read = _observe("read", inner.read, observers)
        self.commit = _observe("commit", inner.commit, observers)
        self.query = _observe("query", inner.query, observers)


def _observe(
    verb: Literal["read", "commit", "query"], call: Callable[P, Coroutine[Any, Any, T]], observers: Observers
) -> Callable[P, Coroutine[Any, Any, T]]:
    """Return a method of a store that reports its calls to ``observers``."""

    async def observed(*given: P.args, **options: P.kwargs) -> T:
        started = observers.now()
        try:
            result = await call(*given, **options)
        except BaseException as error:
            observers.notify_call(verb, started, "failed", error)
            raise
        observers.notify_call(verb, started, "conflict" if isinstance(result, Conflict) else "done")
        return result

    return observed


class Announcer:
    """Records and reports the thresholds that committed writes have crossed, and the soft limits they have exceeded."""

    def __init__(self, backend: Backend, observers: Observers, on_alert: Callable[[Alert], None] | None) -> None:
        if on_alert is not None and not callable(on_alert):
            raise ValidationError("on_alert", on_alert, "must be a function that takes an Alert")
        self._backend = backend
        self._observers = observers
        self._on_alert = on_alert
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
        """Return the audit events for the commit that crosses thresholds; none if a larger commit costs more."""
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
        """Log thresholds that a committed write has crossed, and notify the observers and ``on_alert``. Never raises.

        Record them first if the commit could not: if an aggregator follows the store's changes, leave that to it.
        """
        able = self._backend.store.capabilities
        for alert in () if able.free_atomic_commit else alerts:
            write = self._event(level, alert)
            try:
                writes = [leave_alert(write) if able.change_stream else write]
                await self._backend.store.commit(writes, timeout=deadline.left())
            except ZAELimiterError as error:
                fields = {**self._fields(alert), "zae_error_type": type(error).__name__}
                log_event(ALERT_UNRECORDED, "an alert is not in the audit log: %s", error, **fields)
        for alert in alerts:
            fields = {**self._fields(alert), "zae_threshold": alert.threshold, "zae_used": alert.used}
            message = "%s on %s has used %.4g %% of %s"
            shown = (alert.entity_id, alert.resource, alert.threshold * 100, alert.limit_name)
            log_event(ALERT, message, *shown, **fields)
            self._observers.notify("on_alert", alert)
            if self._on_alert is not None:
                self._observers.call_back("on_alert", partial(self._on_alert, alert))

    def _fields(self, alert: Alert) -> dict[str, object]:
        whose = {"zae_entity_id": alert.entity_id, "zae_resource": alert.resource, "zae_limit": alert.limit_name}
        return {**self._backend.log_fields(), **whose}
