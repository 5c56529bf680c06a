"""Timing that survives a busy machine: many short rounds, all sides in turn, the best of each."""

from __future__ import annotations

import time
from collections.abc import Callable


def best_of(
    sides: dict[str, Callable[[int], None]],
    calls: int = 400,
    rounds: int = 200,
    timer: Callable[[], int] = time.process_time_ns,
) -> dict[str, float]:
    """Microseconds per call for each side; of CPU, if not told otherwise."""
    for work in sides.values():
        work(calls)
    best = dict.fromkeys(sides, float("inf"))
    for _ in range(rounds):
        for name, work in sides.items():
            started = timer()
            work(calls)
            best[name] = min(best[name], (timer() - started) / calls / 1000)
    return best
