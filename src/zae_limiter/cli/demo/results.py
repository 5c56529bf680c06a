"""The result of the demo: what happened at every limit, and whether any was exceeded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click
from rich.text import Text

from ...core.limit import Limit
from ...core.production import MILLI
from ..grid import Cell, Grid, Narrow
from ..output import echo_trimmed, print_grid
from .ledger import Finding, add_up, examine
from .simulation import BY_ID, PARTIES, RESOURCE, Simulation

if TYPE_CHECKING:
    from ...sync import SyncRateLimiter

_COUNTS = ("granted", "refused", "estimated", "refunded", "overshot", "used")
_NARROW = Narrow(spared=("overshot", "in", "granted", "refused", "estimated", "refunded", "peak"))
_LEGEND = (
    "used: estimated, less refunded, plus what went beyond the estimate. at most: capacity + rate x time. "
    "peak: the fullest window, in % of what it allows."
)


@dataclass(frozen=True, slots=True)
class Line:
    """The result of one limit of one entity, as JSON has it."""

    entity_id: str
    limit: Limit
    granted: int
    refused: int
    estimated: int
    refunded: int
    overshot: int
    used: int
    at_most: float
    tightest_window: Finding | None
    counted_by_store: int
    never_over: bool

    @property
    def is_right(self) -> bool:
        """Whether no window was over the limit, and the store counted what the log says."""
        return self.never_over and self.counted_by_store == self.used


def read_counts(limiter: SyncRateLimiter) -> dict[tuple[str, str], int]:
    """Return what the store says has been used, by entity and limit."""
    states = [state for party in PARTIES for state in limiter.get_buckets(party.id, RESOURCE)]
    return {(state.entity_id, state.limit_name): state.total_consumed_milli // MILLI for state in states}


def judge(run: Simulation, counted: dict[tuple[str, str], int]) -> list[Line]:
    """Compare the logs of a run with the limits and with what the store has counted."""
    lines = []
    for party in PARTIES:
        for limit in party.limits:
            name = (party.id, limit.name)
            finding, counts = examine(limit, run.logs[name]), add_up(run.logs[name])
            at_most = limit.capacity + limit.refill_amount * run.elapsed_ms / (limit.refill_period_seconds * 1000)
            fine = finding is None or not finding.passed
            verdict = (at_most, finding, counted.get(name, 0), fine)
            lines.append(Line(party.id, limit, counts[0], run.refused[name], *counts[1:], *verdict))
    return lines


def find_verdicts(lines: Sequence[Line], logs: Mapping[tuple[str, str], Sized]) -> list[tuple[bool, str]]:
    """Return the results of the checks as sentences, each with whether it passed."""
    found = []
    for line in lines:
        window = line.tightest_window
        if window is not None and window.passed:
            charged = (
                f"charged {window.charged:,} in {window.length_ms / 1000:.3f} s, allowed are {window.allowed:,.3f}"
            )
            found.append((False, f"OVER THE LIMIT: {line.entity_id} {line.limit.name} {charged}."))
    checked = f"{len(lines)} limits, every window of a log of {sum(map(len, logs.values())):,} entries"
    found = found or [(True, f"Never over the limit: {checked}.")]
    wrong = [f"{line.entity_id} {line.limit.name}" for line in lines if line.counted_by_store != line.used]
    if wrong:
        return [*found, (False, f"The store and the log disagree about what was used: {', '.join(wrong)}.")]
    return [*found, (True, "The books balance: the store counted exactly what the calls used.")]


def print_result(run: Simulation, lines: Sequence[Line]) -> None:
    """Print the table and the verdicts; on a terminal of 80 columns and 24 lines they fit."""
    counts, debt = run.counts, ""
    if run.deepest_debt:
        debt = f", deepest debt {-run.deepest_debt:,} tpm, longest {run.longest_debt_ms / 1000:.1f} s"
    calls = (
        f"{counts['granted']} calls granted ({counts['granted later']} at a later try), {counts['refused']} refusals"
    )
    ends = f"{counts['gave up']} given up, {counts['failed']} failed upstream and given back{debt}"
    click.echo()
    print_grid(make_grid(lines))
    echo_trimmed(Text(_LEGEND, style="dim"))
    echo_trimmed(Text(f"{run.elapsed_ms / 1000:.1f} s: {calls}, {ends}."))
    for good, text in find_verdicts(lines, run.logs):
        echo_trimmed(mark(good, text))


def mark(good: bool, text: str) -> Text:
    """Return a verdict with its mark."""
    return Text.assemble(("✓ ", "bold green") if good else ("✗ ", "bold red"), text)


def make_grid(lines: Sequence[Line]) -> Grid:
    """Return the result as a table."""
    rows = []
    for line in lines:
        peak = length = None
        if window := line.tightest_window:
            peak = Text(f"{100 * window.charged / window.allowed:.1f} %", justify="right")
            length = Text(f"{window.length_ms / 1000:.2f} s", justify="right")
        verdict = Cell("never", "green") if line.never_over else Cell("YES", "bold white on red")
        if line.never_over and not line.is_right:
            verdict = Cell(f"never, but the store says {line.counted_by_store:,} used", "bold red")
        party = BY_ID[line.entity_id]
        label = party.label if line.limit is party.limits[0] else ""
        counts = (getattr(line, name) for name in _COUNTS)
        rows.append((label, line.limit.name, *counts, int(line.at_most), peak, length, verdict))
    return Grid(("", "", *_COUNTS, "at most", "peak", "in", "over"), rows, narrow=_NARROW)
