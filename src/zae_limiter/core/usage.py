"""Values of the public API that report usage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


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
