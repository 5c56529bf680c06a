"""Values of the public API that report usage: over windows, and a survey of the loads of all buckets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from .production import MILLI
from .validation import ValidationError, whole

ORDERS = ("used", "left", "rate")
MOST_RECORDS = 1_000_000
"""No survey looks at more."""


@dataclass(frozen=True, slots=True)
class InFlight:
    """What was in flight under a concurrency limit.

    Attributes:
        peak: The most at once; of several snapshots that of the highest.
        average: How many there were on average, over the whole of each window.
        slot_seconds: For how many seconds slots were held, added up.
    """

    peak: int
    average: float
    slot_seconds: int


@dataclass(frozen=True, slots=True)
class UsageSnapshot:
    """The consumption of an entity on a resource in one window.

    Attributes:
        entity_id: The entity.
        resource: The resource.
        window_start: The start of the window, as RFC 3339.
        window_end: Its end.
        window_type: ``hourly``, ``daily`` or ``monthly``.
        counters: The consumed tokens by limit. Concurrency limits are not here: nothing of them is consumed.
        total_events: The number of grants and settlements.
        overdrawn: The part of the consumed tokens, and the slots, that were beyond a soft or bypassed limit, by limit.
        in_flight: What was in flight, by concurrency limit.
    """

    entity_id: str
    resource: str
    window_start: str
    window_end: str
    window_type: str
    counters: Mapping[str, int]
    total_events: int
    overdrawn: Mapping[str, int] = field(default_factory=dict)
    in_flight: Mapping[str, InFlight] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UsageSummary:
    """The sum of several snapshots.

    Attributes:
        snapshot_count: How many there are.
        total: The consumed tokens by limit.
        average: The average per snapshot by limit.
        min_window_start: The start of the first window, as RFC 3339.
        max_window_start: The start of the last one.
        overdrawn: The part of the total, and the slots, that were beyond a soft or bypassed limit, by limit.
        in_flight: What was in flight in the windows in which anything was, by concurrency limit.
    """

    snapshot_count: int
    total: Mapping[str, int]
    average: Mapping[str, float]
    min_window_start: str | None
    max_window_start: str | None
    overdrawn: Mapping[str, int] = field(default_factory=dict)
    in_flight: Mapping[str, InFlight] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Load:
    """One limit of one bucket at the instant of a survey, in whole tokens, rounded down.

    Attributes:
        entity_id: The entity.
        resource: The resource.
        limit_name: The name of the limit.
        capacity: Its capacity.
        available: The tokens that are left; negative means debt.
        utilization_pct: The used share of the capacity in percent.
        full_in_seconds: When it will be full again.
        total_consumed_milli: The millitokens ever consumed.
        consumed_per_second: Net consumption since the previous survey; None without one. Of a concurrency limit it is
            how many slots were held on average, as far as their holders have told by then.
        in_flight: How many slots of a concurrency limit are taken; None for other limits.
    """

    entity_id: str
    resource: str
    limit_name: str
    capacity: int
    available: int
    utilization_pct: float
    full_in_seconds: float
    total_consumed_milli: int
    consumed_per_second: float | None = None
    in_flight: int | None = None


@dataclass(frozen=True, slots=True)
class Survey:
    """The loads of all buckets that were read.

    Attributes:
        taken_at_ms: The instant of the survey.
        records: How many records were read.
        complete: Whether these are all.
        loads: The loads.
    """

    taken_at_ms: int
    records: int
    complete: bool
    loads: tuple[Load, ...]

    def busiest(self, most: int = 20, by: str = "used", since: Survey | None = None) -> list[Load]:
        """Return the first ``most`` loads, with their rates since an earlier survey.

        Args:
            most: How many loads to return.
            by: ``"used"`` (largest share of the capacity first), ``"left"`` (fewest tokens first) or ``"rate"`` (most
                tokens a second first).
            since: The earlier survey; None for no rates.
        """
        most = whole("most", most, 1, MOST_RECORDS, "loads")
        if by not in ORDERS:
            raise ValidationError("by", by, f"must be one of {', '.join(ORDERS)}")

        def rank(load: Load) -> tuple[float, float, tuple[str, str, str]]:
            rate, used = -(load.consumed_per_second or 0.0), -load.utilization_pct
            measures = {"used": (used, rate), "left": (load.available, rate), "rate": (rate, used)}
            return *measures[by], _identity(load)

        return sorted(self._with_rates(since), key=rank)[:most]

    def _with_rates(self, since: Survey | None) -> list[Load]:
        seconds = 0.0 if since is None else (self.taken_at_ms - since.taken_at_ms) / MILLI
        if since is None or seconds <= 0:
            return list(self.loads)
        before = {_identity(load): load.total_consumed_milli for load in since.loads}
        rated = []
        for load in self.loads:
            start = before.get(_identity(load), 0 if since.complete else None)
            spent = None if start is None else (load.total_consumed_milli - start) / MILLI / seconds
            rated.append(replace(load, consumed_per_second=spent))
        return rated


def used_pct(capacity: int, left: int) -> float:
    """Return the used share of a capacity in percent; above 100 means debt."""
    return round(100 * (capacity - left) / capacity, 2) if capacity else 0.0


def _identity(load: Load) -> tuple[str, str, str]:
    return load.entity_id, load.resource, load.limit_name
