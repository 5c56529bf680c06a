"""Print a JSON line per batch, which CloudWatch also reads as metrics, and one per failure."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from typing import Any

NAMESPACE = "ZaeLimiter/Aggregator"


@dataclass(frozen=True, slots=True)
class BatchReport:
    """The result of one batch."""

    records: int = 0
    counted: int = 0
    """Changes added to snapshots, once per window."""
    repeated: int = 0
    """Changes that a snapshot counted already."""
    damaged: int = 0
    """Records that make no sense, and never will."""
    alerts: int = 0
    """Alerts that were copied to the audit log."""
    archived: int = 0
    splits: int = 0
    refills: int = 0
    failures: int = 0


def print_report(report: BatchReport, table: str, started: float) -> None:
    """Print the report of a batch, in the embedded metric format."""
    figures = {**asdict(report), "duration_ms": round((time.perf_counter() - started) * 1000, 1)}
    metrics = [{"Name": name, "Unit": "Milliseconds" if name == "duration_ms" else "Count"} for name in figures]
    directive = {"Namespace": NAMESPACE, "Dimensions": [["table"]], "Metrics": metrics}
    head = {"Timestamp": int(time.time() * 1000), "CloudWatchMetrics": [directive]}
    _print(level="INFO", message="batch", table=table, **figures, _aws=head)


def print_failure(what: str, error: Exception, **where: Any) -> None:
    """Print a failure."""
    _print(level="ERROR", message=what, error=type(error).__name__, reason=str(error), **where)


def _print(**fields: Any) -> None:
    print(json.dumps(fields, ensure_ascii=False), flush=True)
