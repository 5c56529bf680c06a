"""``python -m bench.report``: writes docs/benchmarks.md, its plots and the README's figures from bench/results.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.report.page import page
from bench.report.readme import with_figures

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench" / "results.json"
README = ROOT / "README.md"
PAGE = ROOT / "docs" / "benchmarks.md"
PLOTS = ROOT / "docs" / "plots"


def written(results: Mapping[str, Any]) -> None:
    """Write the page and the figures of the README, and draw the plots."""
    from bench.report.plots import draw  # needs matplotlib, which only the benchmark's own environment has

    PAGE.write_text(page(results), encoding="utf-8")
    README.write_text(with_figures(README.read_text(encoding="utf-8"), results), encoding="utf-8")
    draw(results, PLOTS)


if __name__ == "__main__":
    written(json.loads(RESULTS.read_text(encoding="utf-8")))
