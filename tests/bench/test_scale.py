"""The page about very large traffic: its formula agrees with both simulations, and its tables are the script's."""

from __future__ import annotations

import doctest
import json

import pytest
from bench.scale import PAGE, Sizes, bounds_table, cases, routing_table, scale_table, with_parts
from bench.scale_formula import Calls, Prices, Traffic, bill, bounds, expect, held_writes
from bench.scale_simulation import simulate_limiter, simulate_model

from bench import scale, scale_formula

PREFETCH = Traffic(prefetch=0.5)
CASES = cases(PREFETCH, processes_per_key=1)
TEXT = PAGE.read_text(encoding="utf-8")


def part(name: str) -> str:
    """A marked part of the page."""
    return TEXT.partition(f"<!-- {name}: ")[2].partition("-->")[2].partition("<!-- end")[0].strip()


def check_limiter(formula: Calls, found: Calls) -> None:
    """The formula must not promise too much: the limiter may need fewer calls, but hardly more of them."""
    for expected, real in zip(formula, found, strict=True):
        assert real <= 1.25 * expected + 0.03
    assert found.keys + found.organisation >= 0.75 * (formula.keys + formula.organisation)


@pytest.mark.parametrize("name", CASES)
def test_the_formula_agrees_with_the_model_and_with_the_limiter(name: str) -> None:
    traffic, formula = CASES[name], expect(CASES[name])
    model = simulate_model(traffic, processes=30, seconds=3)
    assert model._replace(lost=formula.lost) == pytest.approx(formula, rel=0.12, abs=0.01)
    check_limiter(formula, simulate_limiter(traffic, processes=3, seconds=2))


@pytest.mark.parametrize(("pace", "prefetch"), [(10, 2), (100, 2), (1000, 0.5), (2, 0.5), (6, 0.5), (30, 0.5)])
def test_the_formula_agrees_with_both_for_other_demand(pace: float, prefetch: float) -> None:
    traffic, expected = Traffic(1, pace, 1, 1, prefetch), held_writes(pace, prefetch)
    for simulate in (simulate_model, simulate_limiter):
        assert simulate(traffic, 1, 2000 / pace).keys * pace == pytest.approx(expected, rel=0.2)


def test_as_much_is_asked_of_each_process_and_key_when_there_are_fewer() -> None:
    for traffic in (*CASES.values(), PREFETCH._replace(processes_per_key=10)):
        few = traffic.shrink(50)
        assert (few.pace, few.keys_each, few.key_pace) == (traffic.pace, traffic.keys_each, traffic.key_pace)
        assert expect(few) == expect(traffic)


def test_a_key_that_is_not_busy_is_written_for_every_decision() -> None:
    assert expect(PREFETCH).keys == pytest.approx(1, abs=0.001)
    assert expect(PREFETCH._replace(processes_per_key=3)).keys == pytest.approx(1, abs=0.02)
    assert expect(PREFETCH._replace(processes_per_key=2)).keys < 0.6


def test_exact_the_organisation_needs_more_records_than_there_can_be() -> None:
    exact, prefetch = (bill(PREFETCH._replace(prefetch=each), Prices()) for each in (0, 0.5))
    assert exact.records_needed > exact.records == 256
    assert exact.writes_per_record > 1000
    assert prefetch.records_needed == prefetch.records <= 32
    assert prefetch.writes_per_record <= 800
    first, *others = bounds(PREFETCH._replace(prefetch=0), Prices()).values()
    assert first > 1 > others[0]


def test_what_units_cost() -> None:
    prices = Prices()
    assert prices.on_demand(1_000_000, 0) == pytest.approx(2250)
    assert prices.on_demand(0, 1_000_000) == pytest.approx(450)
    assert prices.provisioned(700, 0) == pytest.approx(0.65)


def test_the_page_has_the_tables_that_the_script_prints() -> None:
    for name, table in {
        "scale": scale_table(CASES, Prices()),
        "bounds": bounds_table(CASES, Prices()),
        "routing": routing_table(PREFETCH, Prices()),
    }.items():
        assert part(name) == table, "run `python -m bench.scale --write`"


def test_the_page_has_the_simulations_that_the_script_prints() -> None:
    heads, _, *rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in part("checks").splitlines()]
    assert heads[-2:] == [f"model, {Sizes().model} processes", f"the limiter, {Sizes().real} processes"]
    *_, (name, traffic) = CASES.items()
    model = simulate_model(traffic, Sizes().model, Sizes().seconds)
    shown = [row for row in rows if row[0] == name]
    assert [row[2] for row in shown] == [f"{each:.3f}" for each in expect(traffic)]
    assert [row[3] for row in shown if row[3]] == [
        f"{model.keys:.3f}",
        f"{model.organisation:.3f}",
        f"{model.reads:.3f}",
    ]
    for each in CASES:
        check_limiter(expect(CASES[each]), Calls(*(float(row[4]) for row in rows if row[0] == each)))


def test_a_page_that_has_lost_a_mark_is_an_error() -> None:
    with pytest.raises(ValueError, match="marked 0 times"):
        with_parts(TEXT.replace("<!-- end of bounds -->", ""), {"bounds": ""})


def test_it_prints_tables_or_json_for_other_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = "--processes 20 --decisions 200 --keys 40 --processes-per-key 2 --prefetch 2"
    simulated = "--simulated-model 2 --simulated-real 2 --simulated-seconds 1"
    scale.main([*sizes.split(), *simulated.split(), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert [*found] == [
        f"{who}, {how}" for who in ("any process", "2 processes per key") for how in ("exact", "prefetch 2 s")
    ]
    assert found["2 processes per key, prefetch 2 s"]["limiter"].keys() == {"keys", "organisation", "lost", "reads"}
    scale.main([*sizes.split(), *simulated.split()])
    assert "| writes/s to keys |" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        scale.main(["--processes-per-key", "20000"])


def test_the_examples_in_docstrings() -> None:
    for module in (scale, scale_formula):
        found = doctest.testmod(module)
        assert (found.attempted > 0, found.failed) == (True, 0)
