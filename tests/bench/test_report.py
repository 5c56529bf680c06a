"""The benchmark report: the page is what the results say, and a rival that is ahead is named."""

from __future__ import annotations

import copy
import doctest
import json
import re
from types import ModuleType
from typing import Any

import pytest
from bench.dynamodb import billing
from bench.hammering import Grant, Log
from bench.oracle import Bound, verdict, worst_excess
from bench.report import judging, tables
from bench.report.__main__ import PAGE, PLOTS, README, RESULTS
from bench.report.comparing import behind, comparisons
from bench.report.judging import KEEPS, judged
from bench.report.llm import SETTLED
from bench.report.page import page
from bench.report.readme import with_figures

from bench import oracle

SECOND = 1_000_000_000
RESULTS_NOW: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))
OURS, RIVAL = (each["name"] for each in RESULTS_NOW["rivals"][:2])


@pytest.fixture
def results() -> dict[str, Any]:
    """What was measured, to be changed at will."""
    return copy.deepcopy(RESULTS_NOW)


def test_the_page_is_what_the_results_render_to() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(RESULTS_NOW), "run `python -m bench.report`"


def test_the_figures_of_the_readme_are_those_of_the_results() -> None:
    text = README.read_text(encoding="utf-8")
    assert text == with_figures(text, RESULTS_NOW), "run `python -m bench.report`"


def test_the_figures_of_the_readme_follow_the_results(results: dict[str, Any]) -> None:
    text = README.read_text(encoding="utf-8")
    results["redis"]["works"]["two limits"]["async"][OURS]["wall_us"] = 7_777.0
    results["http"]["asgi"]["sockets"]["slowapi, headers"]["overhead_us"] = 8_888.0
    results["dynamodb"]["write_units"]["reference async"] = 9_999
    results["calls_per_decision"]["steady acquire"] = 6_666.0
    for verdicts in results["memory"]["contention"]["saturated"].values():
        verdicts[OURS]["excess"] = 50.0
    changed = with_figures(text, results)
    for told in ("7,777 µs|ours 7,777", "8,888 µs", "9999 write units", "steady acquire: 6666", "crowds, ours in 5"):
        assert any(each in changed for each in told.split("|")), told
        assert not any(each in text for each in told.split("|")), told


@pytest.mark.parametrize("mark", ["<!-- figures: ", "<!-- end of alternatives -->"], ids=["opening", "end"])
def test_a_readme_that_has_lost_a_mark_is_an_error(mark: str, results: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="marked 0 times"):
        with_figures(README.read_text(encoding="utf-8").replace(mark, "<!-- "), results)


def test_the_readme_compares_with_seven_others_and_every_figure_links_to_its_proof() -> None:
    text = README.read_text(encoding="utf-8")
    rows = text.partition("<!-- alternatives")[2].partition("<!-- end of")[0].strip().splitlines()[4:]
    others = ("token-throttle", "LLMRateLimiter", "limits", "slowapi", "LiteLLM", "Pyrate", "0.17")
    assert all(name in row.split(" | ")[0] for name, row in zip(others, rows, strict=True))
    headings = {_anchor(line) for line in page(RESULTS_NOW).splitlines() if line.startswith("#")}
    links = re.findall(r"docs/benchmarks\.md#([\w-]+)", text)
    assert len(links) > 5
    assert set(links) <= headings
    for row in rows:
        assert "docs/benchmarks.md#" in row or "not measured" in row, row


def _anchor(heading: str) -> str:
    """The name that a heading has in a link."""
    return re.sub(r"[^\w-]", "", heading.lstrip("# ").lower().replace(" ", "-"))


def test_the_page_opens_with_its_table_then_the_method_then_where_a_rival_is_ahead(results: dict[str, Any]) -> None:
    text = page(results)
    places = [text.index(part) for part in (f"| {OURS}", "## Method", "## Where a rival is ahead", "## In memory")]
    assert places == sorted(places)
    assert "##" not in text[2 : places[0]]


def test_every_plot_of_the_page_and_of_the_laws_is_there_and_small() -> None:
    named = {line.split("(")[1].rstrip(")") for line in page(RESULTS_NOW).splitlines() if line.startswith("![")}
    laws = {"plots/bucket-over-time.svg", "plots/contention.svg"}
    for name in named | laws:
        text = (PLOTS.parent / name).read_text(encoding="utf-8")
        assert text.startswith("<?xml"), name
        assert len(text) < 60_000, name
        assert "<dc:date>" not in text, name


def test_every_rival_is_compared_in_every_kind_of_work_on_both_stores(results: dict[str, Any]) -> None:
    found = {(each.rival, each.place, each.case) for each in comparisons(results)}
    for rival in results["rivals"][1:]:
        for store, place in (("memory", "in memory"), ("redis", "on Redis")):
            for work, modes in results[store]["works"].items():
                for mode in modes:
                    assert (rival["name"], place, f"{work}, {mode}") in found


def test_a_rival_that_needs_less_is_named_with_both_figures(results: dict[str, Any]) -> None:
    figures = results["memory"]["works"]["one limit"]["blocking"]
    figures[OURS]["wall_us"], figures[RIVAL]["wall_us"] = 30.0, 20.0
    (sentence,) = [each for each in behind(results) if f"**{RIVAL}** is ahead in memory in time, µs" in each]
    assert "one limit, blocking: 20.0 to our 30.0" in sentence
    assert f"- {sentence}" in page(results).splitlines()


@pytest.mark.parametrize("theirs", [29.9, 30.0, 31.0], ids=["level", "the same", "more"])
def test_a_rival_that_does_not_need_less_is_not_named(results: dict[str, Any], theirs: float) -> None:
    figures = results["memory"]["works"]["one limit"]["blocking"]
    figures[OURS]["wall_us"], figures[RIVAL]["wall_us"] = 30.0, theirs
    told = [each for each in behind(results) if f"**{RIVAL}** is ahead in memory in time, µs" in each]
    assert not any("one limit, blocking" in each for each in told)


def test_every_sentence_follows_from_a_figure_and_every_figure_has_its_sentence(results: dict[str, Any]) -> None:
    told = "\n".join(behind(results))
    for each in comparisons(results):
        case = f"{each.case}: {tables.number(each.theirs)} to our {tables.number(each.ours)}"
        lines = [
            line for line in told.splitlines() if f"**{each.rival}** is ahead {each.place} in {each.measure} " in line
        ]
        assert any(case in line for line in lines) == each.behind, each


def test_nobody_is_ahead_of_a_limiter_that_needs_nothing_and_keeps_every_bound(results: dict[str, Any]) -> None:
    kept = {"admitted": 150, "refused": 9, "bound": 150.0, "excess": 0.0}
    for store in ("memory", "redis"):
        for modes in results[store]["works"].values():
            for figures in modes.values():
                figures[OURS] = dict.fromkeys(figures[OURS], 0)
        results[store]["lost"][OURS] = 0
        for modes in results[store]["contention"].values():
            for verdicts in modes.values():
                verdicts[OURS] = kept
    for modes in (results["llm"]["memory"], results["llm"]["redis"]["alone"]):
        for cases in modes.values():
            cases[SETTLED] = dict.fromkeys(cases[SETTLED], 0)
    for limiters in _limiters_that_reserve(results["reserving"]):
        limiters[OURS] = dict.fromkeys(limiters[OURS], 0) if isinstance(limiters[OURS], dict) else 0
    about = [line for line in behind(results) if "in memory" in line or "on Redis" in line]
    assert about == []


def _limiters_that_reserve(found: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The figures and counts by limiter."""
    if found is None:
        return []
    works = [limiters for modes in found["works"].values() for depths in modes.values() for limiters in depths.values()]
    return works + [kinds for store in found["exactness"].values() for kinds in store.values() if kinds]


def test_a_rival_that_keeps_the_bound_where_ours_does_not_is_named(results: dict[str, Any]) -> None:
    verdicts = results["redis"]["contention"]["saturated"]["async"]
    verdicts[OURS] = {"admitted": 300, "refused": 9, "bound": 250.0, "excess": 50.0}
    verdicts[RIVAL] = {"admitted": 250, "refused": 9, "bound": 250.0, "excess": 0.0}
    assert any(
        line.startswith(f"**{RIVAL}** is ahead on Redis, saturated, async: it keeps the bound, ours over-admits: 50")
        for line in behind(results)
    )


def test_grants_within_the_bound_have_no_excess_in_any_window() -> None:
    bound = Bound(10, 100.0)
    spread = [Grant(number * SECOND // 100, number * SECOND // 100) for number in range(200)]
    assert worst_excess([Grant(0, 0)] * 9 + spread, bound) == 0
    assert worst_excess([Grant(0, 0)] * 12 + spread, bound) == pytest.approx(3)


def test_a_burst_is_found_wherever_it_is_and_slow_answers_accuse_nobody() -> None:
    bound = Bound(10, 1.0)
    quiet = [Grant(each * SECOND, each * SECOND) for each in range(5)]
    burst = [Grant(60 * SECOND, 60 * SECOND)] * 15
    assert worst_excess([*quiet, *burst], bound) == pytest.approx(5)
    assert worst_excess([Grant(60 * SECOND, 70 * SECOND)] * 15, bound) == 0


def test_a_verdict_counts_what_was_due_while_there_was_demand() -> None:
    log = Log([Grant(0, 1)] * 30, 5)
    assert verdict(log, Bound(20, 10.0), 0, SECOND) == (30, 5, 30.0, 10.0)
    assert judged(verdict(log, Bound(40, 0.0), 0, SECOND)._asdict()) == "under-admits: 75 % of what was due"
    assert judged(verdict(log, Bound(30, 0.0), 0, SECOND)._asdict()) == KEEPS


def item(key: str, **attributes: str) -> billing.Item:
    return {name: {"S": value} for name, value in {"PK": key, **attributes}.items()}


def image(indexes: list[dict[str, Any]], *items: billing.Item) -> billing.Image:
    return billing.Image(("PK",), indexes, {(str(each["PK"]),): each for each in items})


@pytest.mark.parametrize(
    ("projection", "before", "after", "units"),
    [
        ({"ProjectionType": "KEYS_ONLY"}, item("a", G="g", n="1"), item("a", G="g", n="2"), 1),
        ({"ProjectionType": "ALL"}, item("a", G="g", n="1"), item("a", G="g", n="2"), 2),
        ({"ProjectionType": "ALL"}, item("a", G="g"), item("a", G="h"), 3),
        ({"ProjectionType": "ALL"}, item("a", n="1"), item("a", n="2"), 1),
        ({"ProjectionType": "KEYS_ONLY"}, item("a", G="g", n="1"), item("a", G="g", n="2" * 1500), 2),
        ({"ProjectionType": "ALL"}, item("a", G="g"), item("a", G="g"), 0),
    ],
    ids=["not projected", "projected", "moved", "not indexed", "large", "unchanged"],
)
def test_a_change_is_billed_for_the_table_and_for_every_index_that_it_changes(
    projection: dict[str, Any], before: billing.Item, after: billing.Item, units: int
) -> None:
    indexes = [{"KeySchema": [{"AttributeName": "G"}], "Projection": projection}]
    assert billing.write_units(image(indexes, before), image(indexes, after)) == units


@pytest.mark.parametrize("module", [oracle, tables, judging], ids=lambda module: module.__name__)
def test_the_examples_in_docstrings(module: ModuleType) -> None:
    assert doctest.testmod(module).attempted > 0
    assert doctest.testmod(module).failed == 0
