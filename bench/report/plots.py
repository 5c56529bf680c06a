"""The plots of the page, from the results."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.figures import ALARM, COLOURS, LINE, MUTED, OURS, figure, save
from bench.report.judging import TOKEN
from bench.report.prose import NEW_KEYS

THICK = 0.8
"""Of the space between two kinds of work."""


def draw(results: Mapping[str, Any], folder: Path) -> None:
    """All of them."""
    names = [each["name"] for each in results["rivals"]]
    for store in ("memory", "redis"):
        save(times(results[store]["works"], names), folder / f"bench-{store}.svg")
    save(crowds(results, names), folder / "bench-crowds.svg")


def times(works: Mapping[str, Any], names: list[str]) -> Any:
    """Microseconds per decision, by kind of work and limiter, in both modes."""
    drawn, axes = figure(1, 2, (9.5, 5.2), sharex=True)
    for axis, mode in zip(axes[0], ("blocking", "async"), strict=True):
        shown = [work for work, modes in works.items() if mode in modes and work != NEW_KEYS]
        for place, name in enumerate(names):
            bars = [works[work][mode][name]["wall_us"] for work in shown]
            spots = [row + (place + 0.5) * THICK / len(names) - THICK / 2 for row in range(len(shown))]
            axis.barh(spots, bars, THICK / len(names) * 0.9, color=COLOURS[place], label=name)
        axis.set_yticks(range(len(shown)), shown)
        axis.invert_yaxis()
        axis.set_title(mode)
        axis.set_xlabel("microseconds per decision, less is better")
        axis.grid(visible=False, axis="y")
    handles, labels = axes[0][0].get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside lower center", ncols=3)
    return drawn


def crowds(results: Mapping[str, Any], names: list[str]) -> Any:
    """Plot the admitted calls against the bound, blocking, on both stores."""
    stores = {"memory": "in memory, 8 threads", "redis": "on Redis, 4 processes"}
    demands = list(results["memory"]["contention"])
    drawn, axes = figure(len(demands), len(stores), (9.5, 4.8), sharey=True)
    for row, demand in enumerate(demands):
        for axis, (store, title) in zip(axes[row], stores.items(), strict=True):
            verdicts = results[store]["contention"][demand]["blocking"]
            _crowd(axis, [verdicts[name] for name in names], names)
            axis.set_title(f"{demand}, {title}", fontsize=10)
    drawn.supxlabel("admitted; the line is the bound, orange is over it in some window", fontsize=10)
    return drawn


def _crowd(axis: Any, verdicts: list[Mapping[str, float]], names: list[str]) -> None:
    for place, (name, verdict) in enumerate(zip(names, verdicts, strict=True)):
        usual = OURS if name == names[0] else MUTED
        axis.barh(place, verdict["admitted"], 0.7, color=ALARM if verdict["excess"] >= TOKEN else usual)
        axis.plot([verdict["bound"]] * 2, [place - 0.45, place + 0.45], color=LINE, linewidth=2)
        axis.annotate(f"{verdict['admitted']}", (0, place), (4, 0), textcoords="offset points", va="center", color="w")
    axis.set_yticks(range(len(names)), names)
    axis.set_ylim(len(names) - 0.4, -0.6)
    axis.grid(visible=False, axis="y")
