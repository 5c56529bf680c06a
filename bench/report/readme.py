"""The parts of README.md that follow from the results; the rest of it is written by hand."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from bench.report import summary

PAGE = "docs/benchmarks.md"


def with_figures(text: str, results: Mapping[str, Any]) -> str:
    """Return the README with its marked parts written anew.

    Raises ValueError if a part is not marked exactly once.
    """
    parts = {"alternatives": summary.alternatives(results, PAGE), "figures": _figures(results)}
    for name, part in parts.items():
        marked = re.compile(rf"(<!-- {name}: .*? -->\n).*?(<!-- end of {name} -->)", re.DOTALL)
        text, count = marked.subn(lambda found, part=part: f"{found[1]}\n{part}\n\n{found[2]}", text)  # type: ignore[misc]
        if count != 1:
            raise ValueError(f"{name}: marked {count} times in the README, not once")
    return text


def _figures(results: Mapping[str, Any]) -> str:
    standing = f"{summary.standing(results)}: [where]({PAGE}#where-a-rival-is-ahead)."
    calls = "; ".join(f"{name}: {count:g}" for name, count in results["calls_per_decision"].items())
    return (
        f"{summary.figures(results)}\n\n{standing}\n\n[Calls of the store]({PAGE}#store-calls-per-decision): {calls}."
    )
