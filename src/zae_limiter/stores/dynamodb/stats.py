"""Count calls and consumed capacity."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ...forks import protect

if TYPE_CHECKING:
    from ...core.reports import BackendStats

_READS = frozenset(("GetItem", "BatchGetItem", "Query", "Scan", "TransactGetItems"))


class Stats:
    """Counters shared by all threads and loops of a client."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: Counter[str] = Counter()
        self._sums: Counter[str] = Counter()
        self._units = {"read": 0.0, "write": 0.0}
        protect(self._lock)

    def count_call(self, operation: str, sent: int) -> None:
        """Count a request that is sent, including repeated ones."""
        with self._lock:
            self._calls[operation] += 1
            self._sums["bytes_sent"] += sent

    def count_received(self, size: int) -> None:
        """Count the bytes of an answer."""
        with self._lock:
            self._sums["bytes_received"] += size

    def count_capacity(self, operation: str, content: Mapping[str, Any]) -> None:
        """Add the capacity that a successful answer reports."""
        units = sum(map(_capacity, _as_list(content.get("ConsumedCapacity"))))
        with self._lock:
            self._units["read" if operation in _READS else "write"] += units

    def count_conflict(self, request: Mapping[str, Any]) -> None:
        """Count a write whose guards did not hold. It is billed, but its answer does not say how much."""
        items = request.get("TransactItems")
        with self._lock:
            self._sums["conflicts"] += 1
            self._units["write"] += 1.0 if items is None else 2.0 * len(items)

    def count(self, what: str) -> None:
        """Count one of ``retries`` or ``throttled``."""
        with self._lock:
            self._sums[what] += 1

    def snapshot(self) -> BackendStats:
        """Return the counters as of now."""
        from ...core.reports import BackendStats

        with self._lock:
            return BackendStats(
                calls=MappingProxyType(dict(self._calls)),
                retries=self._sums["retries"],
                conflicts=self._sums["conflicts"],
                throttled=self._sums["throttled"],
                read_units=self._units["read"],
                write_units=self._units["write"],
                bytes_sent=self._sums["bytes_sent"],
                bytes_received=self._sums["bytes_received"],
            )


def _as_list(consumed: Any) -> Iterable[Any]:
    return consumed if isinstance(consumed, list) else () if consumed is None else (consumed,)


def _capacity(consumed: Any) -> float:
    units = consumed.get("CapacityUnits") if isinstance(consumed, dict) else None
    return float(units) if isinstance(units, (int, float)) else 0.0
