"""``make bench``: measures every contestant, prints the page and writes it with its plots.

``python -m bench llm growth`` measures these sections anew and keeps the others as they are.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from bench import calls, flood, growth, imports, measuring, prefetch, redis_clients
from bench.dynamodb import beside
from bench.llm import measure as llm
from bench.machine import machine, rivals
from bench.report.__main__ import RESULTS, written
from bench.report.page import page
from bench.reserving import measure as reserving
from bench.web import overhead

SECTIONS: dict[str, Callable[[], Any]] = {
    "machine": machine,
    "rivals": rivals,
    "llm": llm.measure,
    "reserving": reserving.measure,
    "redis_clients": redis_clients.measure,
    "growth": growth.measure,
    "memory": measuring.in_memory,
    "redis": measuring.on_redis,
    "dynamodb": beside.measure,
    "prefetch": prefetch.measure,
    "http": overhead.measure,
    "calls_per_decision": calls.measure,
    "import_ms": imports.measure,
    "flood": flood.measure_all,
}


def main(names: Sequence[str]) -> None:
    """Measure all sections or those that are named, write, print."""
    unknown = [name for name in names if name not in SECTIONS]
    if unknown:
        raise SystemExit(f"{__doc__}\n{', '.join(unknown)}: no such section; there are {', '.join(SECTIONS)}")
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if names else {}
    for name in names or SECTIONS:
        started = time.monotonic()
        results[name] = SECTIONS[name]()
        print(f"{name}: measured in {time.monotonic() - started:.0f} s", flush=True)
    results = {name: results[name] for name in SECTIONS if name in results}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    written(results)
    print(f"\n{page(results)}")


if __name__ == "__main__":
    main(sys.argv[1:])
