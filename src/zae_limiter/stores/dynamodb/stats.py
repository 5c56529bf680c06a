"""Count calls and consumed capacity."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Mapping
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
        self._sums: defaultdict[str, Any] = defaultdict(int)
        protect(self._lock)

    def count(self, **amounts: float) -> None:
        """Add to fields of `BackendStats`."""
        with self._lock:
            for name, amount in amounts.items():
                self._sums[name] += amount

    def count_call(self, operation: str, sent: int) -> None:
        """Count a request that is sent, including repeated ones."""
        with self._lock:
            self._calls[operation] += 1
            self._sums["bytes_sent"] += sent

    def count_answer(self, operation: str, received: int, content: Mapping[str, Any]) -> None:
        """Count the bytes of an answer, and the capacity that a good one reports in its content."""
        consumed = content.get("ConsumedCapacity")
        parts = consumed if isinstance(consumed, list) else [consumed]
        units = [part.get("CapacityUnits") for part in parts if isinstance(part, dict)]
        with self._lock:
            self._sums["bytes_received"] += received
            self._sums["read_units" if operation in _READS else "write_units"] += sum(
                [float(each) for each in units if isinstance(each, (int, float))], 0.0
            )

    def count_conflict(self, request: Mapping[str, Any]) -> None:
        """Count a write whose guards did not hold. It is billed, but its answer does not say how much."""
        items = request.get("TransactItems")
        self.count(conflicts=1, write_units=1.0 if items is None else 2.0 * len(items))

    def snapshot(self) -> BackendStats:
        """Return the counters as of now."""
        with self._lock:
            return BackendStats(calls=MappingProxyType(dict(self._calls)), **self._sums)
