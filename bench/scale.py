"""``python -m bench.scale``: what one organisation with very many keys, processes and decisions costs on DynamoDB.

A formula counts the calls of the store, exact and with prefetch, and the table follows from it: write units, records,
dollars, and how much there is of each. Two simulations in virtual time check the formula, with as much traffic for each
process but fewer of them: a model, and the real limiter. ``--write`` writes it all into ``docs/operate/scale.md``.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench.scale_formula import Calls, Prices, Traffic, bill, bounds, expect
from bench.scale_simulation import simulate_limiter, simulate_model
from zae_limiter.records.splitting import MAX_SHARDS

PAGE = Path(__file__).parents[1] / "docs" / "operate" / "scale.md"


class Sizes(NamedTuple):
    """Size of the simulations: processes of the model and of the real limiter, and the seconds of both."""

    model: int = 100
    real: int = 16
    seconds: float = 3


def cases(traffic: Traffic, processes_per_key: int) -> dict[str, Traffic]:
    """Return what is compared: keys that any process serves and keys of few processes, exact and with prefetch."""
    few = "one process" if processes_per_key == 1 else f"{processes_per_key:,} processes"
    routes = {"any process": traffic.processes, f"{few} per key": processes_per_key}
    modes = {"exact": 0.0, f"prefetch {traffic.prefetch:g} s": traffic.prefetch}
    return {
        f"{route}, {mode}": traffic._replace(processes_per_key=count, prefetch=prefetch)
        for route, count in routes.items()
        for mode, prefetch in modes.items()
    }


ROWS = {
    "writes_to_keys": "writes/s to keys",
    "writes_to_organisation": "writes/s to the organisation",
    "lost_races": "lost races/s, which are billed as writes",
    "reads": "reads/s",
    "calls_per_decision": "calls of the store per decision",
    "calls_per_process": "calls/s of one process",
    "write_units": "write units/s",
    "read_units": "read units/s",
    "records_needed": "records that the organisation needs",
    "records": f"records that it gets, {MAX_SHARDS} at most",
    "writes_per_record": "writes/s to each of them",
    "on_demand_per_hour": "dollars per hour, on demand",
    "provisioned_per_hour": "dollars per hour, provisioned",
    "on_demand_per_million_decisions": "dollars per million decisions, on demand",
}
ROUTES, TIMES = (1, 2, 5, 10, 100, 10_000), (0.0, 0.5, 2.0, 10.0)


def scale_table(compared: Mapping[str, Traffic], prices: Prices) -> str:
    """Return what each case needs."""
    bills = [bill(traffic, prices)._asdict() for traffic in compared.values()]
    rows = [[label, *(number(each[name]) for each in bills)] for name, label in ROWS.items()]
    return table(["", *compared], rows)


def bounds_table(compared: Mapping[str, Traffic], prices: Prices) -> str:
    """Return how many times over each case uses what there is."""
    found = [bounds(traffic, prices) for traffic in compared.values()]
    return table(["", *compared], [[name, *(f"{number(each[name])} x" for each in found)] for name in found[0]])


def routing_table(traffic: Traffic, prices: Prices) -> str:
    """Return dollars an hour by how many processes serve a key, and for how long tokens are kept."""
    heads = ["exact" if not prefetch else f"prefetch {prefetch:g} s" for prefetch in TIMES]
    rows = []
    for processes_per_key in (each for each in ROUTES if each <= traffic.processes):
        tried = [traffic._replace(processes_per_key=processes_per_key, prefetch=prefetch) for prefetch in TIMES]
        rows.append([f"{processes_per_key:,}", *(number(bill(each, prices).on_demand_per_hour) for each in tried)])
    return table(["processes per key", *heads], rows)


def check(compared: Mapping[str, Traffic], sizes: Sizes) -> dict[str, dict[str, Calls]]:
    """Return the calls of each case by the formula, the model and the real limiter."""
    return {
        name: {
            "formula": expect(traffic),
            "model": simulate_model(traffic, sizes.model, sizes.seconds),
            "limiter": simulate_limiter(traffic, sizes.real, sizes.seconds),
        }
        for name, traffic in compared.items()
    }


def checks_table(checked: Mapping[str, Mapping[str, Calls]], sizes: Sizes) -> str:
    """Return the calls per decision side by side; the model has no races."""
    labels = {"keys": "writes to keys", "organisation": "writes to the organisation", "lost": "lost races"}
    rows = []
    for name, found in checked.items():
        for field in Calls._fields:
            values = {way: f"{getattr(calls, field):.3f}" for way, calls in found.items()}
            values["model"] = "" if field == "lost" else values["model"]
            rows.append([name, labels.get(field, field), *values.values()])
    heads = ["formula", f"model, {sizes.model} processes", f"the limiter, {sizes.real} processes"]
    return table(["", "calls per decision", *heads], rows)


def number(value: float) -> str:
    """Return a number in as many digits as matter.

    >>> number(1234567.8), number(43.4782), number(0.5), number(4096)
    ('1,230,000', '43.5', '0.5', '4,096')
    """
    if isinstance(value, int) or not value:
        return f"{value:,.0f}"
    digits = 2 - math.floor(math.log10(abs(value)))
    text = f"{round(value, digits):,.{max(0, digits)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown, its numbers to the right."""
    rule = ["---" if column < 1 or not rows[0][column][:1].isdigit() else "---:" for column in range(len(heads))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (heads, rule, *rows))


def with_parts(text: str, parts: Mapping[str, str]) -> str:
    """Return a page with its marked parts written anew.

    Raises ValueError if a part is not marked exactly once.
    """
    for name, part in parts.items():
        marked = re.compile(rf"(<!-- {name}: .*? -->\n).*?(<!-- end of {name} -->)", re.DOTALL)
        text, count = marked.subn(lambda found, part=part: f"{found[1]}\n{part}\n\n{found[2]}", text)  # type: ignore[misc]
        if count != 1:
            raise ValueError(f"{name}: marked {count} times in the page, not once")
    return text


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description=(__doc__ or "").splitlines()[0])
    usual, prices, sizes = Traffic(), Prices(), Sizes()
    parser.add_argument("--processes", type=int, default=usual.processes)
    parser.add_argument("--decisions", type=float, default=usual.decisions, help="per second")
    parser.add_argument("--keys", type=int, default=usual.keys)
    parser.add_argument(
        "--processes-per-key", type=int, default=1, help="how many processes serve a key, where it is not all"
    )
    parser.add_argument("--prefetch", type=float, default=0.5, help="seconds")
    for name in Prices._fields:
        parser.add_argument(f"--price-{name.replace('_', '-')}", type=float, default=getattr(prices, name))
    for name in Sizes._fields:
        kind = type(getattr(sizes, name))
        parser.add_argument(f"--simulated-{name}", type=kind, default=getattr(sizes, name))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true", help="into docs/operate/scale.md")
    given = parser.parse_args(arguments)
    if not 1 <= given.processes_per_key <= given.processes:
        parser.error("--processes-per-key must be at least 1, and at most --processes")
    return given


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables, or write them into the page."""
    given = _parse(arguments)
    prices = Prices(*(getattr(given, f"price_{name}") for name in Prices._fields))
    sizes = Sizes(*(getattr(given, f"simulated_{name}") for name in Sizes._fields))
    traffic = Traffic(given.processes, given.decisions, given.keys, given.processes, given.prefetch)
    compared = cases(traffic, given.processes_per_key)
    checked = check(compared, sizes)
    if given.json:
        found: dict[str, Any] = {
            name: {"traffic": each._asdict(), **bill(each, prices)._asdict(), "bounds": bounds(each, prices)}
            | {way: calls._asdict() for way, calls in checked[name].items()}
            for name, each in compared.items()
        }
        print(json.dumps(found, indent=2))
        return
    parts = {
        "scale": scale_table(compared, prices),
        "bounds": bounds_table(compared, prices),
        "routing": routing_table(traffic, prices),
        "checks": checks_table(checked, sizes),
    }
    if given.write:
        PAGE.write_text(with_parts(PAGE.read_text(encoding="utf-8"), parts), encoding="utf-8")
    print("\n\n".join(parts.values()))


if __name__ == "__main__":
    main()
