"""The parts of the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bench.report.comparing import MEASURES, REFERENCE
from bench.report.judging import judged
from bench.report.tables import number, ratio, table


def versions(results: Mapping[str, Any]) -> str:
    """Where it was measured, and what."""
    machine = ", ".join(f"{name} {value}" for name, value in results["machine"].items())
    rows = [[each["name"], each["version"], each["algorithm"], each["several"]] for each in results["rivals"]]
    rows.append([REFERENCE, results["dynamodb"]["reference"], "token bucket", "one acquire"])
    others = ", ".join(f"{name} {value}" for name, value in results["http"]["versions"].items())
    listed = table(["limiter", "version", "algorithm", "two limits at once"], rows)
    return f"Measured on: {machine}.\n\n{listed}\n\nBehind HTTP: {others}."


def ratios(found: Mapping[str, Any], names: Sequence[str], measure: str) -> str:
    """Return the factor by which each rival is slower, by workload."""
    ours, *rivals = names
    rows = [
        [
            f"{work}, {mode}",
            number(figures[ours][measure]),
            *(ratio(figures[each][measure], figures[ours][measure]) for each in rivals),
        ]
        for work, modes in found["works"].items()
        for mode, figures in modes.items()
    ]
    return table(["work", f"ours, {MEASURES[measure]}", *rivals], rows)


def works(found: Mapping[str, Any]) -> Iterator[str]:
    """A table for each kind of work."""
    for work, modes in found["works"].items():
        measures = [name for name in MEASURES if name in next(iter(modes["async"].values()))]
        rows = [
            [mode, name, *(number(figures[each]) for each in measures), _admitted(figures)]
            for mode, sides in modes.items()
            for name, figures in sides.items()
        ]
        head = ["mode", "limiter", *(MEASURES[each] for each in measures), "admitted"]
        yield f"**{work}**\n\n{table(head, rows)}"


def _admitted(figures: Mapping[str, float]) -> str:
    told = f"{figures['admitted']:,} of {figures['decisions']:,}"
    return told if figures["admitted"] == figures["expected"] else f"{told}, due {figures['expected']:,}"


def crowds(contention: Mapping[str, Any]) -> str:
    """Return the section on grants under demand above the limit."""
    rows = [
        [demand, mode, name, *_counted(verdict)]
        for demand, modes in contention.items()
        for mode, verdicts in modes.items()
        for name, verdict in verdicts.items()
    ]
    return table(["demand", "mode", "limiter", "admitted", "refused", "bound", "verdict"], rows)


def _counted(verdict: Mapping[str, Any]) -> list[str]:
    figures = [f"{verdict[name]:,.0f}" for name in ("admitted", "refused", "bound")]
    return [*figures, judged(dict(verdict))]


def losses(results: Mapping[str, Any]) -> str:
    """Return the section on the cost of refusals."""
    names = [each["name"] for each in results["rivals"]]
    rows = [[name, *(number(results[store]["lost"][name]) for store in ("memory", "redis"))] for name in names]
    return table(["limiter", "in memory", "on Redis"], rows)


def dynamodb(found: Mapping[str, Any]) -> str:
    """Three tables: a steady acquire, the wire, the crowd."""
    head = ["side", "time, µs", "client CPU, µs", "write units"]
    steady = [
        [side, number(figures["wall_us"]), number(figures["cpu_us"]), number(found["write_units"][side])]
        for side, figures in found["steady"].items()
    ]
    wire = [
        [kind, side, number(figures["calls"]), number(figures["reads"]), number(figures["bytes"])]
        for kind in next(iter(found["wire"].values()))
        for side, kinds in found["wire"].items()
        for figures in (kinds[kind],)
    ]
    crowd = [
        [demand, side, *_counted(verdict)]
        for demand, verdicts in found["contention"].items()
        for side, verdict in verdicts.items()
    ]
    tables = [
        table(head, steady),
        table(["decision", "side", "calls", "of which reads", "bytes"], wire),
        table(["demand", "side", "admitted", "refused", "bound", "verdict"], crowd),
    ]
    return "\n\n".join(tables)


def counted(found: Mapping[str, float]) -> str:
    """Store calls of ours."""
    return table(["decision", "store calls"], [[name, number(calls)] for name, calls in found.items()])


def imports(found: Mapping[str, float]) -> str:
    """Fresh interpreters."""
    return table(["statement", "ms"], [[f"`{name}`", number(milliseconds)] for name, milliseconds in found.items()])


def floods(found: Mapping[str, Mapping[str, float]]) -> str:
    """New keys on the memory store, each used once."""
    head = ["case", "us per key", "CPU us per key", "longest, ms", "longest, CPU ms", "longest collection, ms"]
    shown = (
        "wall_us",
        "cpu_us",
        "longest_ms",
        "longest_cpu_ms",
        "longest_collection_ms",
        "rss_mb",
        "bytes_per_live_key",
    )
    rows = [[name, *(number(figures[each]) for each in shown)] for name, figures in found.items()]
    return table([*head, "RSS, MB", "bytes per live key"], rows)
