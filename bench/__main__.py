"""``make bench``: prints the table and writes it to bench/results.json."""

from __future__ import annotations

import json
import os
import platform
from importlib.metadata import version
from pathlib import Path

from bench import calls, imports, memory_pair


def main() -> None:
    """Measure, print, write."""
    machine = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "limits": version("limits"),
        "zae-limiter": version("zae-limiter"),
    }
    print("measured on", ", ".join(f"{name} {value}" for name, value in machine.items()))

    pair = memory_pair.measure()
    print("\nTwo limits for one key in memory (CPU per lease; limits: two hits, fixed window)")
    for name, microseconds in pair.items():
        print(f"  {name:22s} {microseconds:8.2f} us   {microseconds / pair['limits']:5.2f} x limits")

    imported = imports.measure()
    print("\nImport, fresh interpreter")
    for statement, milliseconds in imported.items():
        print(f"  {statement:42s} {milliseconds:8.1f} ms")

    counted = calls.measure()
    print("\nStore calls per decision (SQLite, counted)")
    for name, number in counted.items():
        print(f"  {name:50s} {number:6.2f}")

    results = {"machine": machine, "memory_us": pair, "import_ms": imported, "calls_per_decision": counted}
    path = Path(__file__).with_name("results.json")
    path.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    print(f"\nwritten to {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")


if __name__ == "__main__":
    main()
