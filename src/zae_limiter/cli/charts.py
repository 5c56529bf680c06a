"""Charts of usage in the terminal, drawn by plotext, which is loaded only for them."""

from __future__ import annotations

import importlib
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import click

from ..core.usage import UsageSnapshot
from ..records.usage import window_of
from .output import encodable, open_console, print_text

PIPE_WIDTH = 80
_MAJOR = "5"
"""The major version of plotext that the charts are written for."""
_HEIGHT = 11
_TICK_ROOM = 18
"""Columns of the axis per mark."""


class Series(NamedTuple):
    """The consumption of one limit by window, including windows without any; of a concurrency limit the peaks."""

    limit_name: str
    window_type: str
    starts: list[str]
    consumed: list[int]
    of_slots: bool = False

    @property
    def total(self) -> str:
        """All of it in a few words."""
        return f"peak {max(self.consumed):,}" if self.of_slots else f"{sum(self.consumed):,}"


def load_plotext() -> Any:
    """Return plotext. Raise `UsageError` with the extra to install if it is missing or of another major version."""
    install = 'pip install "zae-limiter[plot]"'
    try:
        plotext = importlib.import_module("plotext")
    except ModuleNotFoundError:
        raise click.UsageError(f"--plot needs plotext: {install}") from None
    found = str(getattr(plotext, "__version__", "unknown"))
    if found.partition(".")[0] != _MAJOR:
        raise click.UsageError(f"--plot needs plotext {_MAJOR}, and version {found} is installed: {install}")
    return plotext


def group_series(snapshots: Iterable[UsageSnapshot]) -> list[Series]:
    """Return a series per limit and kind of window, each with its own axis; of several peaks the highest counts."""
    found: dict[tuple[str, str, bool], Counter[str]] = {}
    for snapshot in snapshots:
        kind, start = snapshot.window_type, snapshot.window_start
        for name, amount in snapshot.counters.items():
            found.setdefault((kind, name, False), Counter())[start] += amount
        for name, slots in snapshot.in_flight.items():
            peaks = found.setdefault((kind, name, True), Counter())
            peaks[start] = max(peaks[start], slots.peak)
    made = []
    for (kind, name, of_slots), amounts in sorted(found.items()):
        starts, last = [min(amounts)], max(amounts)
        while starts[-1] < last:
            starts.append(window_of(kind, int(datetime.fromisoformat(starts[-1]).timestamp()) * 1000).end)
        made.append(Series(name, kind, starts, [amounts[start] for start in starts], of_slots))
    return made


def spell_window(start: str, window_type: str) -> str:
    """Return the start of a window, as precisely as its kind needs."""
    shown = {"monthly": len("2026-11"), "daily": len("2026-11-16")}.get(window_type, len("2026-11-16T12:00"))
    return start[:shown].replace("T", " ")


def print_charts(plotext: Any, snapshots: Sequence[UsageSnapshot], subject: str) -> None:
    """Print a small chart per limit, as wide as the terminal; without colours if stdout is not one."""
    screen = open_console()
    width = screen.width if screen.is_terminal else PIPE_WIDTH
    coloured = screen.is_terminal and not screen.is_dumb_terminal and not os.environ.get("NO_COLOR")
    for number, series in enumerate(group_series(snapshots)):
        if number:
            click.echo()
        first, last = (spell_window(start, series.window_type) for start in (series.starts[0], series.starts[-1]))
        when = first if first == last else f"{first} to {last}"
        title = f"{series.limit_name} of {subject}, {series.window_type}, {when} (UTC): {series.total}"
        print_text(title, "bold" if coloured else "")
        drawn = _draw(plotext, series, width)
        text = drawn if coloured else plotext.uncolorize(drawn)
        for line in text.splitlines():
            click.echo(encodable(line.rstrip()))


def _draw(plotext: Any, series: Series, width: int) -> str:
    plotext.clear_figure()
    plotext.theme("clear")
    plotext.limit_size(False, False)
    plotext.plot_size(width, _HEIGHT)
    count = len(series.starts)
    places = [place for place, amount in enumerate(series.consumed) if amount]
    if places:
        # A bar takes ``share`` of the width of its window; plotext scales by the mean distance of bars.
        share = 0.8 if count < width // 4 else 1.0
        distance = (places[-1] - places[0]) / (len(places) - 1) if len(places) > 1 else 1
        heights = [series.consumed[place] for place in places]
        plotext.bar(places, heights, color="cyan", marker="sd", width=share / distance, reset_ticks=False)
    plotext.xlim(-0.5, count - 0.5)
    step = -(-count // max(1, width // _TICK_ROOM))
    ticks = range((step - 1) // 2, count, step)
    labels = [spell_window(series.starts[place], series.window_type) for place in ticks]
    if series.window_type != "monthly":
        labels = [label[len("2026-") :] for label in labels]
    plotext.xticks(list(ticks), labels)
    marks = sorted({min(0, *series.consumed), 0, max(1, *series.consumed)})
    plotext.ylim(marks[0], marks[-1])
    plotext.yticks(marks, [f"{height:,}" for height in marks])
    return str(plotext.build())
