"""Timing that survives a busy machine: CPU time, many short rounds, both sides in turn, the best of each."""

from __future__ import annotations

import time
from collections.abc import Callable


def best_of(sides: dict[str, Callable[[int], None]], calls: int = 400, rounds: int = 200) -> dict[str, float]:
    """Microseconds of CPU per call for each side."""
    for work in sides.values():
        work(calls)
    best = dict.fromkeys(sides, float("inf"))
    for _ in range(rounds):
        for name, work in sides.items():
            started = time.process_time_ns()
            work(calls)
            best[name] = min(best[name], (time.process_time_ns() - started) / calls / 1000)
    return best
