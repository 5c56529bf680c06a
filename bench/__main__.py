"""``make bench``: prints one section per concern and writes all of them to bench/results.json."""

from __future__ import annotations

import json
import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench import calls, dynamodb, imports, memory_pair, redis_pair
from bench.web import overhead

RESULTS = Path(__file__).with_name("results.json")


def machine() -> dict[str, Any]:
    """Where it was measured, and against what."""
    found = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "limits": version("limits"),
        "zae-limiter": version("zae-limiter"),
    }
    print("measured on", ", ".join(f"{name} {value}" for name, value in found.items()))
    return found


def memory() -> dict[str, float]:
    """Beside `limits`."""
    pair = memory_pair.measure()
    print("\nTwo limits for one key in memory (CPU per lease; limits: two hits, fixed window)")
    for name, microseconds in pair.items():
        print(f"  {name:22s} {microseconds:8.2f} us   {microseconds / pair['limits']:5.2f} x limits")
    return pair


def importing() -> dict[str, float]:
    """Fresh interpreters."""
    imported = imports.measure()
    print("\nImport, fresh interpreter")
    for statement, milliseconds in imported.items():
        print(f"  {statement:42s} {milliseconds:8.1f} ms")
    return imported


def counted() -> dict[str, float]:
    """At the store port."""
    found = calls.measure()
    print("\nStore calls per decision (SQLite, counted)")
    for name, number in found.items():
        print(f"  {name:50s} {number:6.2f}")
    return found


def beside_the_reference() -> dict[str, Any]:
    """On the same DynamoDB engine."""
    found = dynamodb.measure()
    print("\nDynamoDB, beside the reference on the same engine")
    for line in dynamodb.report(found):
        print(f"  {line}")
    return found


def on_redis() -> dict[str, Any]:
    """On one server."""
    found = redis_pair.measure()
    print("\nRedis, two limits for one key (limits: two hits, fixed window)")
    for line in redis_pair.report(found):
        print(f"  {line}")
    return found


def over_http() -> dict[str, Any]:
    """Behind real servers."""
    found = overhead.measure()
    print("\nHTTP, one limit by address in memory, beside the same app without it")
    for line in overhead.report(found):
        print(f"  {line}")
    return found


SECTIONS = {
    "machine": machine,
    "memory_us": memory,
    "import_ms": importing,
    "calls_per_decision": counted,
    "http": over_http,
    "redis": on_redis,
    "dynamodb": beside_the_reference,
}


def main() -> None:
    """Measure, print, write."""
    results = {name: section() for name, section in SECTIONS.items()}
    RESULTS.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    print(f"\nwritten to {RESULTS.relative_to(Path.cwd()) if RESULTS.is_relative_to(Path.cwd()) else RESULTS}")


if __name__ == "__main__":
    main()
