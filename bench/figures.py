"""Style of figures: the same on light and dark pages, for all eyes, and byte for byte the same for the same data."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")

from matplotlib import pyplot as plt

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000")
"""Okabe and Ito's, which all eyes tell apart; ours is the first."""
OURS, ALARM, MUTED, LINE = COLOURS[0], COLOURS[5], "#8a8a8a", "#333333"

_LONG = re.compile(r"\d+\.\d{3,}")

STYLE = {
    "svg.hashsalt": "zae-limiter",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e3e3e3",
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "legend.frameon": False,
    "path.simplify": True,
}


def figure(rows: int, columns: int, size: tuple[float, float], **options: Any) -> tuple[Any, Any]:
    """A figure with its axes, always as a grid."""
    plt.rcParams.update(STYLE)
    drawn, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained", **options)
    return drawn, axes


def save(drawn: Any, path: Path) -> None:
    """Write it as SVG, without a date and with no more digits than can be seen."""
    written = io.StringIO()
    drawn.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
    plt.close(drawn)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_LONG.sub(lambda found: f"{float(found[0]):.2f}", written.getvalue()), encoding="utf-8")
