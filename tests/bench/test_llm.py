"""The LLM call: each case does what it is called, and everything about it is on the page with its bar."""

from __future__ import annotations

import asyncio
import copy
import doctest
import json
import re
from typing import Any

import pytest
from bench.llm.cases import CASES, ESTIMATE, ORGANISATION, PLAIN, USED, Case
from bench.llm.ours import RESOURCE, blocking, in_loop
from bench.report import bars, beside_limits, growth, llm, reserving
from bench.report.__main__ import README, RESULTS
from bench.report.bars import Bar
from bench.report.comparing import comparisons
from bench.report.page import page
from bench.report.readme import with_figures

from bench import growth as growing
from zae_limiter import SyncRateLimiter

RESULTS_NOW: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))
CALLS = 20


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(", ", "-").replace(" ", "-"))
@pytest.mark.parametrize("mode", ["blocking", "async"])
def test_each_case_makes_its_calls_and_is_refused_only_if_it_is_called_so(case: Case, mode: str) -> None:
    with asyncio.Runner() as runner:
        opened = blocking(case, "memory://", CALLS) if mode == "blocking" else in_loop(case, "memory://", CALLS, runner)
        with opened as side:
            assert side(CALLS) == (0 if case.end == "refused" else CALLS)


@pytest.mark.parametrize("case", PLAIN, ids=lambda case: case.name)
def test_a_call_is_charged_at_each_level_with_what_it_has_used_or_reserved(case: Case) -> None:
    url = f"memory://llm-{case.name}"
    with SyncRateLimiter(url) as watcher, blocking(case, url, CALLS) as side:
        top = ORGANISATION if case.depth == 3 else "key-0"
        before = watcher.get_usage_summary(top, RESOURCE, "hourly").total["tpm"]
        side(CALLS)
        used = watcher.get_usage_summary(top, RESOURCE, "hourly").total["tpm"] - before
        assert used == CALLS * (USED if case.end else ESTIMATE["tpm"])


def test_the_call_is_the_first_row_of_the_readme_and_the_first_section_of_figures() -> None:
    (table,) = re.findall(r"<!-- figures: .*? -->\n\n(.*?)\n\n", README.read_text(encoding="utf-8"), re.DOTALL)
    assert table.splitlines()[2].startswith("| an LLM call in memory, ours settled")
    headings = re.findall(r"^## (.*)$", page(RESULTS_NOW), re.MULTILINE)
    assert headings[:3] == ["Method", "Where a rival is ahead", "The LLM call"]


def test_every_case_has_a_bar_in_both_modes() -> None:
    judged = {bar.case for bar in llm.in_memory(RESULTS_NOW["llm"]["memory"])}
    assert judged >= {f"{case.name}, {mode}" for case in CASES for mode in ("blocking", "async")}


def test_every_bar_is_on_the_page_and_says_whether_it_holds() -> None:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in page(RESULTS_NOW).splitlines()]
    results, ours = RESULTS_NOW, RESULTS_NOW["rivals"][0]["name"]
    for group in (
        llm.in_memory(results["llm"]["memory"]),
        llm.on_redis(results["llm"]["redis"]),
        llm.on_dynamodb(results["llm"]["dynamodb"]),
        beside_limits.in_memory(results["memory"]["works"], ours),
        beside_limits.on_redis(results["redis_clients"], ours),
        growth.judged(results["growth"]),
    ):
        for bar in group:
            assert bar.row() in rows
            assert bar.row()[-1] == ("yes" if bar.holds else "NO")


def test_a_bar_is_the_ratio_or_the_count_that_it_judges() -> None:
    assert Bar("a share", 1.0, 0.5, "others", 2.0).holds
    assert not Bar("a share", 1.02, 0.5, "others", 2.0).holds
    assert Bar("a count", 2.04, 2).holds, "a call in the background now and then"
    assert not Bar("a count", 2.1, 2).holds
    assert bars.section([Bar("one", 1.0, 2), Bar("two", 3.0, 2)]).startswith("1 of 2 hold.")
    assert doctest.testmod(bars).attempted > 0
    assert doctest.testmod(bars).failed == 0


def test_both_who_reserve_are_compared_and_are_in_the_readme() -> None:
    if RESULTS_NOW["reserving"] is None:
        pytest.skip("no Python 3.12 was there when it was measured")
    rivals = set(RESULTS_NOW["reserving"]["rivals"]) - {RESULTS_NOW["rivals"][0]["name"]}
    assert rivals == {"token-throttle", "LLMRateLimiter"}
    compared = {(each.rival, each.place) for each in comparisons(RESULTS_NOW)}
    assert {(name, "on Redis") for name in rivals} | {("token-throttle", "on SQLite")} <= compared
    assert all(f"| [{name}]" in README.read_text(encoding="utf-8") for name in rivals)


def test_without_a_python_for_them_the_page_and_the_readme_say_so() -> None:
    results = copy.deepcopy(RESULTS_NOW)
    results["reserving"] = None
    assert reserving.MISSING in page(results)
    assert "not measured: it needs Python 3.12" in with_figures(README.read_text(encoding="utf-8"), results)


def test_growth_is_measured_for_every_number_of_slots_and_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growing, "SIZE", (2, 1))
    slots = growing.slots("memory://growth-slots")
    assert list(slots) == ["plain", "0", "500", "999"]
    depths = growing.depths("memory://growth-depths")
    assert list(depths) == [str(depth) for depth in range(1, 9)]
    assert all(figures["cpu_us"] > 0 for figures in (*slots.values(), *depths.values()))
