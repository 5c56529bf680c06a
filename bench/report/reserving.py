"""Limiters that reserve an estimate and settle it, as ours does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bench.report.judging import KEEPS, judged
from bench.report.sections import crowds
from bench.report.tables import number, ratio, table

STORES = {"memory": "in memory", "sqlite": "on SQLite", "redis": "on Redis"}
MEASURES = {"wall_us": "time, µs", "cpu_us": "client CPU, µs"}
KEPT = {
    "lost": "`rpm` taken by refused calls",
    "cancelled": "`tpm` kept by cancelled calls",
    "crashed": "`tpm` kept by a killed process",
    "delayed_s": "longest wait of another process after a kill, s",
}
MISSING = "Not measured: no Python 3.12 or newer was found, which they need."


def section(found: Mapping[str, Any] | None) -> str:
    """Versions, time and CPU, exactness, crowds."""
    if found is None:
        return MISSING
    versions = ", ".join(f"{name} {version}" for name, version in found["rivals"].items())
    rows = [
        [STORES[store], mode, depth, name, *_times(limiters, name)]
        for store, modes in found["works"].items()
        for mode, depths in modes.items()
        for depth, limiters in depths.items()
        for name in limiters
    ]
    parts = [
        f"Python {found['python']}, redis-py {found['redis-py']}; {versions}.",
        table(["store", "mode", "call, settled", "limiter", "time, µs", "client CPU, µs", "x ours"], rows),
        table(["store", "limiter", *KEPT.values()], list(_kept(found))),
        *(f"**Crowds {STORES[store]}**\n\n{crowds(each)}" for store, each in found["contention"].items()),
    ]
    return "\n\n".join(parts)


def _times(limiters: Mapping[str, Any], name: str) -> list[str]:
    ours, *_ = limiters.values()
    figures = limiters[name]
    return [number(figures["wall_us"]), number(figures["cpu_us"]), ratio(figures["cpu_us"], ours["cpu_us"])]


def _kept(found: Mapping[str, Any]) -> Iterator[list[str]]:
    for store, figures in found["exactness"].items():
        for name in figures["cancelled"]:
            cells = [number(figures[each][name]) if name in figures[each] else "" for each in KEPT]
            yield [STORES[store], name, *cells]


def figures(found: Mapping[str, Any] | None) -> Iterator[tuple[str, str, str, str, float, float]]:
    """Rival, place, measure, case, ours and theirs."""
    for store, modes in (found or {"works": {}})["works"].items():
        for mode, depths in modes.items():
            for depth, (ours, *_), limiters in ((depth, list(each.values()), each) for depth, each in depths.items()):
                for name, theirs in list(limiters.items())[1:]:
                    for measure, title in MEASURES.items():
                        case = f"an LLM call of {depth}, settled, {mode}"
                        yield name, STORES[store], title, case, ours[measure], theirs[measure]
    for store, each in (found or {"exactness": {}})["exactness"].items():
        for kind, title in KEPT.items():
            for name, theirs in list(each[kind].items())[1:]:
                yield name, STORES[store], title, "LLM calls", next(iter(each[kind].values())), theirs


def kept(found: Mapping[str, Any], name: str, beside: str) -> tuple[int, int]:
    """In how many crowds a limiter granted what was due, and of how many, where the other one took part too."""
    runs = [
        judged(dict(verdicts[name]))
        for demands in found["contention"].values()
        for modes in demands.values()
        for verdicts in modes.values()
        if {name, beside} <= verdicts.keys()
    ]
    return runs.count(KEEPS), len(runs)
