"""Every figure of ours beside the same figure of a rival, and the sentences that follow from them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from bench.report import llm, reserving
from bench.report.http import overheads
from bench.report.judging import KEEPS, judged
from bench.report.tables import number

LEVEL = 0.02
"""Figures this close to each other are level."""
STORES = {"memory": "in memory", "redis": "on Redis"}
MEASURES = {
    "wall_us": "time, µs",
    "cpu_us": "client CPU, µs",
    "commands": "commands",
    "bytes": "bytes",
    "server_us": "server CPU, µs",
}
REFERENCE = "the reference"


class Comparison(NamedTuple):
    """One figure, less is better."""

    rival: str
    place: str
    measure: str
    case: str
    ours: float
    theirs: float

    @property
    def behind(self) -> bool:
        """Whether the rival is ahead of ours."""
        return self.theirs < self.ours * (1 - LEVEL)


def comparisons(results: Mapping[str, Any]) -> Iterator[Comparison]:
    """All of them."""
    ours, *rivals = (each["name"] for each in results["rivals"])
    yield from _llm_calls(results["llm"], ours, rivals)
    yield from (Comparison(*each) for each in reserving.figures(results["reserving"]))
    for store, place in STORES.items():
        for work, modes in results[store]["works"].items():
            for mode, figures in modes.items():
                for rival in rivals:
                    yield from _figures(rival, place, f"{work}, {mode}", figures[ours], figures[rival])
        lost = results[store]["lost"]
        for rival in rivals:
            yield Comparison(rival, place, "tokens lost to refusals", "two limits", lost[ours], lost[rival])
    yield from _beside_the_reference(results["dynamodb"])
    yield from (Comparison(*each) for each in overheads(results["http"]))
    yield from _imports(results["import_ms"])


def _llm_calls(found: Mapping[str, Any], ours: str, rivals: list[str]) -> Iterator[Comparison]:
    for store, place in STORES.items():
        for mode in llm.MODES:
            figures = {name: llm.figures_of(found, store, mode, name, ours) for name in (ours, *rivals)}
            for rival in rivals:
                case = f"an LLM call of three levels, ours settled, {mode}"
                yield from _figures(rival, place, case, figures[ours], figures[rival])


def _figures(
    rival: str, place: str, case: str, ours: Mapping[str, float], theirs: Mapping[str, float]
) -> Iterator[Comparison]:
    for name, measure in MEASURES.items():
        if name in ours:
            yield Comparison(rival, place, measure, case, ours[name], theirs[name])


def _beside_the_reference(found: Mapping[str, Any]) -> Iterator[Comparison]:
    for mode in ("blocking", "async"):
        ours, theirs = f"ours {mode}", f"reference {mode}"
        place = "on DynamoDB"
        yield from _figures(REFERENCE, place, f"steady acquire, {mode}", found["steady"][ours], found["steady"][theirs])
        units = found["write_units"]
        yield Comparison(REFERENCE, place, "write units", f"steady acquire, {mode}", units[ours], units[theirs])
        for kind, figures in found["wire"][ours].items():
            for measure in ("calls", "bytes"):
                beside = found["wire"][theirs][kind][measure]
                yield Comparison(REFERENCE, place, measure, f"{kind}, {mode}", figures[measure], beside)


def _imports(found: Mapping[str, float]) -> Iterator[Comparison]:
    (_, ours), (_, _bare), *rivals = found.items()
    for statement, milliseconds in rivals:
        yield Comparison(statement.split()[1], "at the start", "import, ms", "fresh interpreter", ours, milliseconds)


def ahead(found: Iterable[Comparison]) -> Iterator[str]:
    """A sentence for every rival, place and measure in which the rival is ahead."""
    subjects: dict[tuple[str, str, str], list[str]] = {}
    for each in found:
        if each.behind:
            told = f"{each.case}: {number(each.theirs)} to our {number(each.ours)}"
            subjects.setdefault((each.rival, each.place, each.measure), []).append(told)
    for (rival, place, measure), cases in subjects.items():
        yield f"**{rival}** is ahead {place} in {measure} ({'; '.join(cases)})."


def firmer(results: Mapping[str, Any]) -> Iterator[str]:
    """A sentence for every crowd in which a rival keeps the bound and ours does not."""
    ours, *rivals = (each["name"] for each in results["rivals"])
    for store, place in STORES.items():
        for demand, modes in results[store]["contention"].items():
            for mode, verdicts in modes.items():
                yield from _firmer(verdicts, ours, rivals, f"{place}, {demand}, {mode}")
    for store, demands in (results["reserving"] or {"contention": {}})["contention"].items():
        for demand, modes in demands.items():
            for mode, verdicts in modes.items():
                case = f"{reserving.STORES[store]}, {demand}, {mode}"
                yield from _firmer(verdicts, ours, [name for name in verdicts if name != ours], case)
    for demand, verdicts in results["dynamodb"]["contention"].items():
        for mode in ("blocking", "async"):
            pair = {"ours": verdicts[f"ours {mode}"], REFERENCE: verdicts[f"reference {mode}"]}
            yield from _firmer(pair, "ours", [REFERENCE], f"on DynamoDB, {demand}, {mode}")


def _firmer(verdicts: Mapping[str, Any], ours: str, rivals: list[str], case: str) -> Iterator[str]:
    if (words := judged(verdicts[ours])) != KEEPS:
        for rival in rivals:
            if judged(verdicts[rival]) == KEEPS:
                yield f"**{rival}** is ahead {case}: it keeps the bound, ours {words}."


def behind(results: Mapping[str, Any]) -> list[str]:
    """Where a rival is ahead, all of it."""
    return [*firmer(results), *ahead(comparisons(results))]
