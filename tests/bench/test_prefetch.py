"""The page's section about a hot key: what prefetch takes beside the memory store, and whether it keeps the bar."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import pytest
from bench.report.__main__ import README, RESULTS
from bench.report.page import page
from bench.report.prefetch import BAR, MEMORY, ON_DYNAMODB, ON_REDIS, PREFETCHING, judged, section
from bench.report.readme import with_figures

RESULTS_NOW: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))
MODES = ("blocking", "async", "async, tight loop")
EXACT = "zae-limiter"


@pytest.fixture
def found() -> dict[str, Any]:
    """What was measured, to be changed at will; every side with prefetch takes as long as the memory store."""
    measured: dict[str, Any] = copy.deepcopy(RESULTS_NOW["prefetch"])
    for sides in measured.values():
        for store in (ON_REDIS, ON_DYNAMODB):
            times = {name: sides[MEMORY][name] for name in ("median_us", "p99_us")}
            sides[PREFETCHING + store] |= times
    return measured


def test_every_mode_has_both_stores_with_prefetch_and_without_and_every_rival() -> None:
    rivals = [each["name"] + ON_REDIS for each in RESULTS_NOW["rivals"][1:]]
    ours = [MEMORY, *(name + store for store in (ON_REDIS, ON_DYNAMODB) for name in (EXACT, PREFETCHING))]
    assert tuple(RESULTS_NOW["prefetch"]) == MODES
    for sides in RESULTS_NOW["prefetch"].values():
        assert sorted(sides) == sorted([*ours, *rivals])


def test_what_was_measured_spares_nearly_all_calls_and_write_units() -> None:
    for sides in RESULTS_NOW["prefetch"].values():
        assert sides[MEMORY]["calls_per_1000"] == 0
        for store in (ON_REDIS, ON_DYNAMODB):
            exact, spared = sides[EXACT + store], sides[PREFETCHING + store]
            assert exact["calls_per_1000"] == pytest.approx(1000, rel=0.02)
            assert 0 < spared["calls_per_1000"] < 10
        assert sides[EXACT + ON_DYNAMODB]["write_units_per_1000"] == pytest.approx(1000, rel=0.02)
        assert 0 < sides[PREFETCHING + ON_DYNAMODB]["write_units_per_1000"] < 10


def test_the_section_is_on_the_page_with_a_row_for_every_side() -> None:
    found = RESULTS_NOW["prefetch"]
    assert f"\n{section(found)}\n" in page(RESULTS_NOW)
    rows = section(found).splitlines()[4:]
    assert [row.split(" | ")[1].strip() for row in rows] == [name for sides in found.values() for name in sides]


def test_ratios_are_those_to_the_memory_store_in_the_same_mode(found: dict[str, Any]) -> None:
    found["async"][MEMORY] |= {"median_us": 4.0, "p99_us": 10.0}
    found["async"][PREFETCHING + ON_REDIS] |= {"median_us": 6.0, "p99_us": 18.0, "calls_per_1000": 0.25}
    (row,) = [line for line in section(found).splitlines() if re.match(rf"\| async +\| {PREFETCHING}{ON_REDIS} ", line)]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[2:] == ["6.00", "1.50", "18.0", "1.80", "0.25", ""]


def test_the_bar_is_kept_where_every_figure_is_within_it(found: dict[str, Any]) -> None:
    assert judged(found).endswith(f"It is within {BAR:g} times everywhere.")
    assert "at most 1.00 times its median and 1.00 times its p99" in judged(found)


@pytest.mark.parametrize(("measure", "name"), [("median_us", "median"), ("p99_us", "p99")], ids=["median", "p99"])
def test_a_figure_beyond_the_bar_is_named(found: dict[str, Any], measure: str, name: str) -> None:
    found["blocking"][PREFETCHING + ON_DYNAMODB][measure] = found["blocking"][MEMORY][measure] * 2.5
    assert judged(found).endswith(f"Beyond 2 times: {PREFETCHING}{ON_DYNAMODB}, blocking: {name} 2.50.")


def test_the_exact_mode_and_rivals_are_beside_it_and_not_judged(found: dict[str, Any]) -> None:
    for sides in found.values():
        for name, figures in sides.items():
            if name != MEMORY and not name.startswith(PREFETCHING):
                figures |= {"median_us": 9_999.0, "p99_us": 99_999.0}
    assert judged(found).endswith("everywhere.")


def test_the_readme_has_ours_with_prefetch_beside_the_rivals_on_the_same_key() -> None:
    results = copy.deepcopy(RESULTS_NOW)
    hot = results["prefetch"]["async"]
    hot[PREFETCHING + ON_REDIS]["median_us"] = 7_777.0
    hot[results["rivals"][1]["name"] + ON_REDIS]["median_us"] = 8_888.0
    changed = with_figures(README.read_text(encoding="utf-8"), results)
    (row,) = [line for line in changed.splitlines() if line.startswith("| a hot key on Redis")]
    assert [cell.strip() for cell in row.split("|")][2:4] == ["7,777", "8,888"]
