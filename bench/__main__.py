"""``make bench``: measures everything beside everybody, prints the page and writes it with its plots."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from bench import calls, flood, imports, measuring, prefetch
from bench.dynamodb import beside
from bench.machine import machine, rivals
from bench.report.__main__ import RESULTS, written
from bench.report.page import page
from bench.web import overhead

SECTIONS: dict[str, Callable[[], Any]] = {
    "machine": machine,
    "rivals": rivals,
    "memory": measuring.in_memory,
    "redis": measuring.on_redis,
    "dynamodb": beside.measure,
    "prefetch": prefetch.measure,
    "http": overhead.measure,
    "calls_per_decision": calls.measure,
    "import_ms": imports.measure,
    "flood": flood.measure_all,
}


def main() -> None:
    """Measure, write, print."""
    results = {}
    for name, section in SECTIONS.items():
        started = time.monotonic()
        results[name] = section()
        print(f"{name}: measured in {time.monotonic() - started:.0f} s", flush=True)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    written(results)
    print(f"\n{page(results)}")


if __name__ == "__main__":
    main()
