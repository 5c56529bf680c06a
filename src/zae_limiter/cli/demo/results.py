"""The result of the demo: what happened at every limit, and whether any was exceeded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import click
from rich.table import Table
from rich.text import Text

from ...core.production import MILLI
from ..grid import Cell, Grid
from ..output import echo_trimmed, open_console, print_json
from ..tables import draw_table, measure, natural_widths
from .ledger import Account, Finding, Ledger, examine
from .scenario import BY_ID, PARTIES, RESOURCE
from .simulation import EventKind, Simulation

if TYPE_CHECKING:
    from ...sync import SyncRateLimiter

_COUNTS = ("granted", "refused", "estimated", "refunded", "overshot", "used")
_SPARED_FIRST = ("overshot", "in")
_SPARED_NEXT = ("granted", "refused", "estimated", "refunded", "peak")
"""Columns that a narrow terminal goes without."""
LEGEND = (
    "used: estimated, less refunded, plus what went beyond the estimate. at most: capacity + rate x time. "
    "peak: the fullest window, in % of what it allows."
)
"""With the table, the summary and two lines of verdicts it fits a terminal of 80 columns and 24 lines."""


@dataclass(frozen=True, slots=True)
class ResultLine:
    """The result of one limit of one entity."""

    account: Account
    at_most: float
    finding: Finding | None
    counted: int
    """What the store says has been used."""

    @property
    def is_exceeded(self) -> bool:
        """Whether more was granted than allowed in any window."""
        return self.finding is not None and self.finding.passed

    @property
    def is_miscounted(self) -> bool:
        """Whether the store counted something else than the log."""
        return self.counted != self.account.used


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The result of a run."""

    lines: tuple[ResultLine, ...]
    seconds: float
    seed: int
    summary: str

    @property
    def ok(self) -> bool:
        """Return whether no limit was exceeded and every token was counted."""
        return not any(line.is_exceeded or line.is_miscounted for line in self.lines)


def judge_run(simulation: Simulation, limiter: SyncRateLimiter, seed: int) -> DemoResult:
    """Return the result of a run that has ended."""
    elapsed_ms = simulation.elapsed_ms
    lines = judge(simulation.ledger, read_counts(limiter), elapsed_ms)
    return DemoResult(lines, elapsed_ms / 1000, seed, _summary(simulation))


def judge(ledger: Ledger, counted: dict[tuple[str, str], int], elapsed_ms: int) -> tuple[ResultLine, ...]:
    """Compare the log with the limits and with the counters of the store."""
    return tuple(
        ResultLine(account, account.at_most(elapsed_ms), examine(account.limit, account.log), counted.get(name, 0))
        for name, account in ledger.accounts.items()
    )


def read_counts(limiter: SyncRateLimiter) -> dict[tuple[str, str], int]:
    """Return the store's counters, by entity and limit."""
    states = [state for party in PARTIES for state in limiter.get_buckets(party.id, RESOURCE)]
    return {(state.entity_id, state.limit_name): state.total_consumed_milli // MILLI for state in states}


def _summary(run: Simulation) -> str:
    counts = run.counts
    parts = [
        f"{counts[EventKind.GRANTED]} calls granted ({run.granted_later} at a later try)",
        f"{counts[EventKind.REFUSED]} refusals",
        f"{counts[EventKind.GAVE_UP]} given up",
        f"{counts[EventKind.FAILED]} failed upstream and given back",
    ]
    if run.deepest_debt:
        parts.append(f"deepest debt {-run.deepest_debt:,} tpm, longest {run.longest_debt_ms / 1000:.1f} s")
    return ", ".join(parts) + "."


def verdicts(result: DemoResult) -> list[tuple[bool, str]]:
    """Return the results of the checks as sentences, each with whether it passed."""
    exceeded = [line for line in result.lines if line.is_exceeded]
    unbooked = [f"{line.account.entity_id} {line.account.limit.name}" for line in result.lines if line.is_miscounted]
    found = []
    for line in exceeded:
        finding = line.finding
        assert finding is not None  # a limit that was exceeded has a window in which it was
        charged = f"charged {finding.charged:,} in {finding.length_ms / 1000:.3f} s"
        name = f"{line.account.entity_id} {line.account.limit.name}"
        found.append((False, f"OVER THE LIMIT: {name} {charged}, allowed are {finding.allowed:,.3f}."))
    if not exceeded:
        entries = sum(len(line.account.log) for line in result.lines)
        checked = f"{len(result.lines)} limits, every window of a log of {entries:,} entries"
        found.append((True, f"Never over the limit: {checked}."))
    if unbooked:
        found.append((False, f"The store and the log disagree about what was used: {', '.join(unbooked)}."))
    else:
        found.append((True, "The books balance: the store counted exactly what the calls used."))
    return found


def print_result(result: DemoResult, *, as_json: bool) -> None:
    """Print the result: JSON if requested, else the table and the verdicts."""
    if as_json:
        limits = [
            {
                "entity_id": line.account.entity_id,
                "limit": line.account.limit,
                **{name: getattr(line.account, name) for name in _COUNTS},
                "at_most": line.at_most,
                "tightest_window": line.finding,
                "counted_by_store": line.counted,
                "never_over": not line.is_exceeded,
            }
            for line in result.lines
        ]
        print_json({"ok": result.ok, "seed": result.seed, "seconds": result.seconds, "limits": limits})
        return
    click.echo()
    echo_trimmed(build_table(result, open_console().width))
    echo_trimmed(Text(LEGEND, style="dim"))
    echo_trimmed(Text(f"{result.seconds:.1f} s: {result.summary}"))
    for good, text in verdicts(result):
        echo_trimmed(Text.assemble(("✓ ", "bold green") if good else ("✗ ", "bold red"), text))


def build_table(result: DemoResult, width: int) -> Table:
    """Return the result as a table; a narrow terminal gets the most important columns."""
    for gap, spared in ((2, ()), (1, _SPARED_FIRST), (1, _SPARED_FIRST + _SPARED_NEXT)):
        grid = _grid(result).without(*spared)
        table = draw_table(grid, gap, natural_widths(grid))
        if measure(table).maximum <= width:
            break
    return table


def _grid(result: DemoResult) -> Grid:
    rows = []
    for line in result.lines:
        account, finding, party = line.account, line.finding, BY_ID[line.account.entity_id]
        peak = length = None
        if finding is not None:
            peak = Text(f"{100 * finding.share:.1f} %", justify="right")
            length = Text(f"{finding.length_ms / 1000:.2f} s", justify="right")
        verdict = Cell("never", "green")
        if line.is_exceeded:
            verdict = Cell("YES", "bold white on red")
        elif line.is_miscounted:
            verdict = Cell(f"never, but the store says {line.counted:,} used", "bold red")
        label = party.label if account.limit is party.limits[0] else ""
        counts = (getattr(account, name) for name in _COUNTS)
        rows.append((label, account.limit.name, *counts, int(line.at_most), peak, length, verdict))
    return Grid(("", "", *_COUNTS, "at most", "peak", "in", "over"), rows)
