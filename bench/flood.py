"""A flood of new keys on the memory store: ``python -m bench.flood [keys]``.

Every case runs in an interpreter of its own, so that its memory is its own. Every key is used once.
"""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from zae_limiter import Limit, RateLimiter, SyncRateLimiter

KEYS = 1_000_000
DEFAULT_BUCKETS = 100_000
LIMITS = [Limit.per_minute("rpm", 60)]
BARS = {"cpu_us": 40.0, "longest_cpu_ms": 50.0, "bytes_per_live_key": 1_200.0}
"""Upper bounds for the cases, as CPU time; the last one is the case that forgets nothing."""


class Case(NamedTuple):
    """A number of distinct keys, and how many buckets are kept."""

    mode: str
    keys: int
    max_buckets: int

    @property
    def name(self) -> str:
        """The name of the figures."""
        return f"{self.mode}, {self.keys:,} keys, max_buckets={self.max_buckets:,}"


def cases(keys: int = KEYS) -> list[Case]:
    """Return the cases: the default, a small store, and one that keeps every key."""
    found = [Case(mode, keys, buckets) for mode in ("blocking", "async") for buckets in (DEFAULT_BUCKETS, 1_000)]
    kept = min(keys, 200_000)
    return [*found, Case("blocking", kept, 2 * kept)]


class Meter:
    """Measures one acquire after the other, and the pauses of the garbage collector among them."""

    def __init__(self) -> None:
        self.longest_s = self.longest_cpu_s = self.longest_collection_s = 0.0
        self._collecting = 0.0
        self._wall, self._cpu = time.perf_counter(), time.thread_time()
        gc.callbacks.append(self._note_collection)

    def _note_collection(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._collecting = time.thread_time()
        else:
            self.longest_collection_s = max(self.longest_collection_s, time.thread_time() - self._collecting)

    def note(self) -> None:
        """Note that an acquire has ended, which began when this was called before."""
        wall, cpu = time.perf_counter(), time.thread_time()
        if wall - self._wall > self.longest_s:
            self.longest_s = wall - self._wall
        if cpu - self._cpu > self.longest_cpu_s:
            self.longest_cpu_s = cpu - self._cpu
        self._wall, self._cpu = wall, cpu


def measure(case: Case) -> dict[str, float]:
    """Measure one case in this interpreter."""
    meter, before = Meter(), _resident_bytes()
    started, started_cpu = time.perf_counter(), time.thread_time()
    flood: Callable[[Case, Meter], Any] = _flood if case.mode == "blocking" else _flood_loop
    kept = flood(case, meter)
    wall, cpu = time.perf_counter() - started, time.thread_time() - started_cpu
    grown = _resident_bytes() - before
    live = min(case.keys, case.max_buckets)
    del kept
    return {
        "wall_us": round(wall / case.keys * 1e6, 1),
        "cpu_us": round(cpu / case.keys * 1e6, 1),
        "longest_ms": round(meter.longest_s * 1e3, 1),
        "longest_cpu_ms": round(meter.longest_cpu_s * 1e3, 1),
        "longest_collection_ms": round(meter.longest_collection_s * 1e3, 1),
        "rss_mb": round(grown / 1e6, 1),
        "bytes_per_live_key": round(grown / live),
    }


def _flood(case: Case, meter: Meter) -> SyncRateLimiter:
    limiter = SyncRateLimiter(f"memory://?max_buckets={case.max_buckets}")
    limiter.set_system_defaults(LIMITS)
    meter.note()
    for number in range(case.keys):
        with limiter.acquire(f"key-{number}", "api", {"rpm": 1}):
            pass
        meter.note()
    return limiter


def _flood_loop(case: Case, meter: Meter) -> RateLimiter:
    return asyncio.run(_flood_async(case, meter))


async def _flood_async(case: Case, meter: Meter) -> RateLimiter:
    limiter = RateLimiter(f"memory://?max_buckets={case.max_buckets}")
    await limiter.set_system_defaults(LIMITS)
    meter.note()
    for number in range(case.keys):
        async with limiter.acquire(f"key-{number}", "api", {"rpm": 1}):
            pass
        meter.note()
    return limiter


def _resident_bytes() -> int:
    """Return the memory of this process; 0 if the system does not report it."""
    try:
        with open("/proc/self/statm", encoding="ascii") as told:
            return int(told.read().split()[1]) * 4096
    except OSError:
        return 0


def measure_all(keys: int = KEYS) -> dict[str, dict[str, float]]:
    """Measure every case, each in a fresh interpreter."""
    return {case.name: _measure_apart(case) for case in cases(keys)}


def _measure_apart(case: Case) -> dict[str, float]:
    code = f"import json; from bench.flood import Case, measure; print(json.dumps(measure(Case{tuple(case)!r})))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(run.stdout)
    return found


def main() -> None:
    """Measure and print."""
    keys = int(sys.argv[1]) if len(sys.argv) > 1 else KEYS
    for case in cases(keys):
        figures = _measure_apart(case)
        print(f"{case.name}: {', '.join(f'{name} {value:g}' for name, value in figures.items())}", flush=True)


if __name__ == "__main__":
    main()
