"""The observer that measures a limiter: decisions, the time they took, and how far estimates were off.

What the config cache counts anyway, and what stores count that count their calls, goes into a tally.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial
from typing import TYPE_CHECKING, TypeVar
from weakref import finalize, ref

from ..core.alerts import Alert
from ..core.errors import ValidationError
from ..limiter.limiter import RateLimiter
from ..observer import Decision, Observer, Settlement, SlotLost
from ..repository.repository import Repository
from ..stores.port import Metered
from ..sync import SyncRateLimiter, SyncRepository
from .tally import Attributes, Counts, Series

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider

    from .instruments import Instruments

L = TypeVar("L", RateLimiter, SyncRateLimiter)

LABELS = ("resource", "entity_id")


def instrument(limiter: L, *, meter_provider: MeterProvider | None = None, labels: Collection[str] = ()) -> L:
    """Measure a limiter from now on, and return it. Doing it again changes the options and counts nothing twice.

    ``meter_provider`` is where the instruments are created, unless told otherwise the application's, which may be set
    up later. ``labels`` adds attributes to the metrics of decisions and estimates. Each value of a label is a time
    series of its own for every outcome, kept in memory by the SDK and, mostly, paid for where they are stored:

    - ``"resource"``: one series per resource name. Fine for a few models or routes; not where names come from clients.
    - ``"entity_id"``: one series per entity. Never for API keys or addresses; for a handful of known tenants it can be.
    """
    _check_limiter(limiter)
    if not isinstance(labels, (list, tuple, set, frozenset)):
        raise ValidationError("labels", labels, f"must be a list of names out of {', '.join(LABELS)}")
    for label in labels:
        if label not in LABELS:
            raise ValidationError("labels", label, f"is no label; there are {' and '.join(LABELS)}")
    try:
        from .instruments import find_instruments
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("opentelemetry"):
            raise
        raise ImportError('instrument() needs OpenTelemetry: pip install "zae-limiter[otel]"') from None
    instruments = find_instruments(meter_provider)
    uninstrument(limiter)
    limiter.observers = (*limiter.observers, Meter(limiter, instruments, frozenset(labels)))
    return limiter


def uninstrument(limiter: RateLimiter | SyncRateLimiter) -> None:
    """Measure a limiter no more; it is then as it was before. What was counted stays counted."""
    _check_limiter(limiter)
    meters = [observer for observer in limiter.observers if isinstance(observer, Meter)]
    if meters:
        limiter.observers = tuple([observer for observer in limiter.observers if observer not in meters])
    for meter in meters:
        meter.stop()


def _check_limiter(limiter: object) -> None:
    if not isinstance(limiter, (RateLimiter, SyncRateLimiter)):
        raise ValidationError("limiter", limiter, "must be a RateLimiter or a SyncRateLimiter")


class Meter(Observer):
    """Measures one limiter, and lets a tally count what its cache and its store count, until it stops or goes."""

    def __init__(
        self, limiter: RateLimiter | SyncRateLimiter, instruments: Instruments, labels: frozenset[str]
    ) -> None:
        self._to, self._labels, self._limiter = instruments, labels, ref(limiter)
        repository = limiter.repository
        backend = ("backend", repository.capabilities.name)
        where = (backend, ("namespace", repository.namespace_name))
        self._where = {f"zae_limiter.{name}": value for name, value in where}
        attributes = (*self._where.items(),)
        instruments.held.join(limiter, partial(_read_slots, attributes, labels))
        instruments.prefetched.join(repository, partial(_read_prefetched, attributes))
        tally, store = instruments.tally, repository.store
        joined = [tally.join(repository, partial(_read_repository, repository, where))]
        if isinstance(store, Metered):
            joined.append(tally.join(store, partial(_read_store, store, (backend,))))
        self._leave = finalize(self, tally.leave, *joined)
        self._leave.atexit = False

    def stop(self) -> None:
        """Let the tally count no further; what was counted stays."""
        self._leave()
        if (limiter := self._limiter()) is not None:
            self._to.held.leave(limiter)
        self._to.tally.drop_leaving()

    def on_decision(self, decision: Decision) -> None:
        """Count a decision and the limits that it overdrew, and record the time it took and the time in line."""
        attributes = self._attributes(decision, {"zae_limiter.outcome": decision.outcome})
        self._to.decisions.add(1, attributes)
        self._to.duration.record(decision.seconds, attributes)
        if decision.waited is not None:
            self._to.wait.record(decision.waited, attributes)
        for limit in decision.overdrawn:
            self._to.overdrawn.add(1, self._attributes(decision, {"zae_limiter.limit": limit}))

    def on_settlement(self, settlement: Settlement) -> None:
        """Record how far each estimate was off. A histogram takes nothing below zero: the direction is an attribute."""
        for limit, amount in settlement.correction.items():
            attributes = self._attributes(settlement, {"zae_limiter.limit": limit})
            direction = "under" if amount > 0 else "over" if amount < 0 else "exact"
            self._to.error.record(abs(amount), {**attributes, "zae_limiter.direction": direction})
            estimated = settlement.estimated[limit]
            if estimated:
                self._to.ratio.record((estimated + amount) / estimated, attributes)

    def on_alert(self, alert: Alert) -> None:
        crossed = {"zae_limiter.limit": alert.limit_name, "zae_limiter.threshold": str(alert.threshold)}
        self._to.alerts.add(1, self._attributes(alert, crossed))

    def on_slot_lost(self, slot: SlotLost) -> None:
        self._to.lost.add(1, self._attributes(slot, {"zae_limiter.limit": slot.limit_name}))

    def _attributes(self, told: Decision | Settlement | Alert | SlotLost, more: dict[str, str]) -> dict[str, str]:
        labels = {f"zae_limiter.{label}": getattr(told, label) for label in self._labels}
        return {**self._where, **more, **labels}


def _read_slots(
    where: Attributes, labels: frozenset[str], limiter: RateLimiter | SyncRateLimiter
) -> Iterator[tuple[Attributes, int]]:
    for owner, count in limiter.held_slots.items():
        named = [(f"zae_limiter.{label}", getattr(owner, label)) for label in sorted(labels)]
        yield (*where, ("zae_limiter.limit", owner.limit_name), *named), count


def _read_prefetched(where: Attributes, repository: Repository | SyncRepository) -> Iterator[tuple[Attributes, int]]:
    yield where, repository.get_backend_stats().prefetch.held


def _read_repository(repository: Repository | SyncRepository, where: Attributes) -> Counts:
    stats, prefetched = repository.get_cache_stats(), repository.get_backend_stats().prefetch
    return {
        Series("config.cache", (*where, ("result", "hit"))): stats.hits,
        Series("config.cache", (*where, ("result", "miss"))): stats.misses,
        Series("prefetch.grants", where): prefetched.granted,
        Series("prefetch.returned", where): prefetched.returned,
        Series("prefetch.spared", where): prefetched.spared_writes,
        Series("prefetch.lost", where): prefetched.lost,
    }


def _read_store(store: Metered, where: Attributes) -> Counts:
    stats = store.stats()
    return {
        **{Series("backend.calls", (*where, ("operation", name))): count for name, count in stats.calls.items()},
        Series("backend.conflicts", where): stats.conflicts,
        Series("backend.retries", where): stats.retries,
        Series("backend.throttled", where): stats.throttled,
        Series("backend.bytes", (*where, ("direction", "sent"))): stats.bytes_sent,
        Series("backend.bytes", (*where, ("direction", "received"))): stats.bytes_received,
        Series("backend.units", (*where, ("operation", "read"))): stats.read_units,
        Series("backend.units", (*where, ("operation", "write"))): stats.write_units,
    }
