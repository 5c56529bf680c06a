"""A hot key: with prefetch and without, beside the memory store and rivals on Redis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bench.report.tables import number, ratio, table

MEMORY = "zae-limiter, in memory"
PREFETCHING = "zae-limiter, prefetch"
ON_REDIS, ON_DYNAMODB = ", on Redis", ", on DynamoDB"
BAR = 2.0
"""Upper bound for an acquire with prefetch, as a multiple of the memory store's figure."""
MEASURES = {"median_us": "median", "p99_us": "p99"}
COUNTS = {"calls_per_1000": "calls per 1,000", "write_units_per_1000": "write units per 1,000"}


def section(found: Mapping[str, Any]) -> str:
    """Whether the bar is kept, and the table."""
    head = ["mode", "limiter", "median, µs", "x memory", "p99, µs", "x memory", *COUNTS.values()]
    rows = [[mode, name, *_row(sides, name)] for mode, sides in found.items() for name in sides]
    return f"{judged(found)}\n\n{table(head, rows)}"


def _row(sides: Mapping[str, Any], name: str) -> list[str]:
    figures, memory = sides[name], sides[MEMORY]
    times = [(number(figures[each]), ratio(figures[each], memory[each])) for each in MEASURES]
    calls, units = (number(figures[each]) for each in COUNTS)
    return [*(cell for pair in times for cell in pair), calls, units if name.endswith(ON_DYNAMODB) else ""]


def judged(found: Mapping[str, Any]) -> str:
    """Say by how much prefetch exceeds the memory store, and where it does so by more than the bar."""
    largest = {measure: max(each[-1] for each in _ratios(found, measure)) for measure in MEASURES}
    told = " and ".join(f"{largest[measure]:.2f} times its {name}" for measure, name in MEASURES.items())
    beyond = [
        f"{name}, {mode}: {MEASURES[measure]} {times:.2f}"
        for measure in MEASURES
        for name, mode, times in _ratios(found, measure)
        if times > BAR
    ]
    kept = f"Beyond {BAR:g} times: {'; '.join(beyond)}." if beyond else f"It is within {BAR:g} times everywhere."
    return f"Beside the memory store, an acquire with prefetch takes at most {told}. {kept}"


def _ratios(found: Mapping[str, Any], measure: str) -> Iterator[tuple[str, str, float]]:
    """Side, mode, and how many times the memory store's figure it has; of those with prefetch."""
    for mode, sides in found.items():
        for name, figures in sides.items():
            if name.startswith(PREFETCHING):
                yield name, mode, figures[measure] / sides[MEMORY][measure]
