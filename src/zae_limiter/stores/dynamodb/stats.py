"""Counting what the data plane does, so that calls and cost per decision can be read off."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from ...core.values import BackendStats
from ...forks import protect

_READS = frozenset(("GetItem", "BatchGetItem", "Query", "Scan", "TransactGetItems"))


class Stats:
    """Counters shared by all threads and loops of a client."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: Counter[str] = Counter()
        self._sums: Counter[str] = Counter()
        self._units = {"read": 0.0, "write": 0.0}
        protect(self._lock)

    def called(self, operation: str, sent: int) -> None:
        """A request leaves, a repeated one too."""
        with self._lock:
            self._calls[operation] += 1
            self._sums["bytes_sent"] += sent

    def received(self, size: int) -> None:
        """An answer of any kind arrived."""
        with self._lock:
            self._sums["bytes_received"] += size

    def charged(self, operation: str, content: Mapping[str, Any]) -> None:
        """Add what a good answer says that it cost."""
        units = sum(map(_capacity, _listed(content.get("ConsumedCapacity"))))
        with self._lock:
            self._units["read" if operation in _READS else "write"] += units

    def refused(self, request: Mapping[str, Any]) -> None:
        """A write whose guards did not hold: it is billed as one that was made, but its answer does not say so."""
        items = request.get("TransactItems")
        with self._lock:
            self._sums["conflicts"] += 1
            self._units["write"] += 1.0 if items is None else 2.0 * len(items)

    def noted(self, what: str) -> None:
        """One more of ``retries`` or ``throttled``."""
        with self._lock:
            self._sums[what] += 1

    def snapshot(self) -> BackendStats:
        """The counters as of now."""
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


def _listed(consumed: Any) -> Iterable[Any]:
    return consumed if isinstance(consumed, list) else () if consumed is None else (consumed,)


def _capacity(consumed: Any) -> float:
    units = consumed.get("CapacityUnits") if isinstance(consumed, dict) else None
    return float(units) if isinstance(units, (int, float)) else 0.0
