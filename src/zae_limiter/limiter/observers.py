"""Telling the observers of a limiter, and a store that tells them of its calls."""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, TypeAlias, TypeVar

from ..core.errors import (
    AccessDeniedError,
    CapacityExceeded,
    RateLimiterUnavailable,
    RateLimitExceeded,
    ResourceDisabled,
    ValidationError,
    ZAELimiterError,
)
from ..forks import protect
from ..logs import OBSERVER_FAILED, log_event
from ..observer import Decision, Observer, Outcome, StoreCall
from ..records.algebra import Committed, Conflict, Image, Key, Page, Query, Write
from ..repository.backend import Backend
from ..stores.port import Store

T = TypeVar("T")
Verb: TypeAlias = Literal["read", "commit", "query"]
CallOutcome: TypeAlias = Literal["done", "conflict", "failed"]

_METHODS = (
    *("on_decision", "on_settlement", "on_alert", "on_slot_lost"),
    *("on_store_call", "on_config_lookups", "on_state_change"),
)


class Observers:
    """The observers of one limiter."""

    def __init__(self, backend: Backend) -> None:
        self.all: tuple[Observer, ...] = ()
        self.of: dict[str, tuple[Observer, ...]] = dict.fromkeys(_METHODS, ())
        """Those who want to be told, by method: who has inherited it does not."""
        self.now = time.perf_counter if backend.stopwatch is time.monotonic else backend.stopwatch
        """The stop-watch of what is told, in seconds."""
        self._backend = backend
        self._failed: set[object] = set()
        self._lock = threading.RLock()  # as that of `BoundedMap`
        self._lookups = (0, 0)
        protect(self._lock)

    def replace(self, observers: Sequence[Observer]) -> None:
        """Tell these from now on. Raises `ValidationError` for something that lacks a method of `Observer`."""
        if not isinstance(observers, (tuple, list)):
            raise ValidationError("observers", observers, "must be a tuple of observers")
        for observer in observers:
            if isinstance(observer, type) or not all(callable(getattr(observer, name, None)) for name in _METHODS):
                raise ValidationError("observer", observer, "must have the methods of zae_limiter.Observer")
        self._count_lookups()
        self._failed = set()
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

    def _log_failure(self, key: object, name: str, error: Exception) -> None:
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
        """Tell of a decision about each resource, unless it is an error that is none, and of lookups since the last.

        ``waits`` are the seconds of each pause in line, which are not part of deciding; None without ``max_wait``.
        """
        found = classify(outcome) if isinstance(outcome, ZAELimiterError) else outcome
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


class ObservedStore:
    """A store whose calls are timed and told to observers."""

    def __init__(self, inner: Store, observers: Observers) -> None:
        self.capabilities = inner.capabilities
        self.clock = inner.clock
        self.stack_name: str | None = getattr(inner, "stack_name", None)
        self._inner = inner
        self._observers = observers

    async def read(self, keys: Sequence[Key], *, timeout: float | None = None) -> list[Image | None]:
        """Read from the store inside."""
        return await self._time("read", self._inner.read(keys, timeout=timeout))

    async def commit(self, writes: Sequence[Write], *, timeout: float | None = None) -> Committed | Conflict:
        """Commit to the store inside."""
        return await self._time("commit", self._inner.commit(writes, timeout=timeout))

    async def query(self, query: Query, *, timeout: float | None = None) -> Page:
        """Query the store inside."""
        return await self._time("query", self._inner.query(query, timeout=timeout))

    async def close(self) -> None:
        """Close the store inside."""
        await self._inner.close()

    async def _time(self, verb: Verb, call: Awaitable[T]) -> T:
        started = self._observers.now()
        try:
            result = await call
        except BaseException as error:
            self._tell(verb, started, "failed", error)
            raise
        self._tell(verb, started, "conflict" if isinstance(result, Conflict) else "done")
        return result

    def _tell(self, verb: Verb, started: float, outcome: CallOutcome, error: BaseException | None = None) -> None:
        self._observers.notify("on_store_call", StoreCall(verb, self._observers.now() - started, outcome, error))


def classify(error: ZAELimiterError) -> Outcome | None:
    """Return what an error means as a decision; None if nothing was decided."""
    if isinstance(error, RateLimitExceeded):
        return "never" if isinstance(error, CapacityExceeded) else "refused"
    if isinstance(error, ResourceDisabled):
        return "disabled"
    if isinstance(error, RateLimiterUnavailable) and not isinstance(error, AccessDeniedError):
        return "unavailable_blocked"
    return None if isinstance(error, ValidationError) else "failed"


def observe_store(store: Store, observers: Observers) -> Store:
    """Return a store that tells ``observers`` of its calls; the store itself where none wants to know."""
    if not observers.of["on_store_call"]:
        return store
    return ObservedStore(store, observers)
