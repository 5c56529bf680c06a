"""The section on how the cost of an acquire grows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bench.report import bars
from bench.report.bars import Bar
from bench.report.tables import number, table

SPREAD, PLAIN_ACQUIRES, BLOCKED_MS, LEVEL, CALLS = 2, 3, 20, 1, 1.05
STORES = {"memory": ("in memory", "cpu_us"), "redis": ("on Redis", "wall_us")}


def section(found: Mapping[str, Any]) -> str:
    """The bars, and the figures behind them."""
    slots = [
        [f"{each} of 1,000 slots in use" if each != "plain" else "no slots, two limits", *_cells(found["slots"], each)]
        for each in found["slots"]["memory"]
    ]
    depths = [[f"{each} levels, two limits", *_cells(found["depth"], each)] for each in found["depth"]["memory"]]
    head = ("acquire and end", "in memory: CPU, µs", "on Redis: time, µs", "client CPU, µs")
    return f"{bars.section(judged(found))}\n\n{table(head, [*slots, *depths])}"


def _cells(found: Mapping[str, Any], name: str) -> list[str]:
    redis = found["redis"][name]
    return [number(found["memory"][name]["cpu_us"]), number(redis["wall_us"]), number(redis["cpu_us"])]


def judged(found: Mapping[str, Any]) -> Iterator[Bar]:
    """Slots, renewals, levels and keys."""
    for store, (place, measure) in STORES.items():
        slots = {name: figures[measure] for name, figures in found["slots"][store].items() if name != "plain"}
        most, least = (choose(slots, key=slots.__getitem__) for choose in (max, min))
        yield Bar(f"a slot {place}, {most} in use, µs", slots[most], SPREAD, f"{least} in use", slots[least])
    for measure, name in (("wall_us", "time"), ("cpu_us", "client CPU")):
        slot, plain = (found["slots"]["redis"][each][measure] for each in ("0", "plain"))
        yield Bar(f"a slot on Redis, {name}, µs", slot, PLAIN_ACQUIRES, "an acquire of two limits", plain)
    for case, milliseconds in found["renewal_ms"].items():
        yield Bar(f"4,000 slots renewed, {case}: server blocked, ms", milliseconds, BLOCKED_MS)
    for store, (place, measure) in STORES.items():
        depths = {int(name): figures[measure] for name, figures in found["depth"][store].items()}
        last = max(depths)
        grown = (depths[last] - depths[1]) / (last - 1)
        yield Bar(f"one level more {place}, of {last}, µs", grown, LEVEL, "one level", depths[1])
    for keys, calls in found["keys"].items():
        yield Bar(f"store calls on Redis, {int(keys):,} keys", calls, CALLS, "decisions", 1.0)
