"""The result of the demo: what happened at every limit, and whether any was exceeded, without the limiter's own code.

The law: in **every** window that ends with a grant, what was charged, less what was given back, is at most ``capacity +
rate x length``. Usage beyond an estimate is charged when it is settled. It could not be refused, so no window ends with
it, but later grants must have room beside it: that is what debt means. A window starts just before its first entry, a
charge, and ends just after its last one, by the caller's clock; a thousandth of a token is allowed for.
"""

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
from .simulation import BY_ID, PARTIES, RESOURCE, Entry, Simulation

if TYPE_CHECKING:
    from ...sync import SyncRateLimiter

_COUNTS = ("granted", "refused", "estimated", "refunded", "overshot", "used")
_NARROW = Narrow(spared=("overshot", "in", "granted", "refused", "estimated", "refunded", "peak"))
_LEGEND = (
    "used: estimated, less refunded, plus what went beyond the estimate. at most: capacity + rate x time. "
    "peak: the fullest window, in % of what it allows."
)


@dataclass(frozen=True, slots=True)
class Finding:
    """The window that came nearest to the limit or exceeded it."""

    charged: int
    allowed: float
    length_ms: int
    passed: bool


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


def examine(limit: Limit, log: Sequence[Entry]) -> Finding | None:
    """Return the tightest window, or None if nothing was granted.

    The height of a window's start is what had been charged before it, less what had been refilled by then, times the
    period, so that it is whole. Of all windows with the same end, the one with the lowest start has the largest excess.
    """
    amount, period = limit.refill_amount, limit.refill_period_seconds * 1000
    calls: set[int] = set()
    charged = most = 0
    lowest: tuple[int, int, int] | None = None
    tightest: Finding | None = None
    for entry in log:
        start = (charged * period - amount * entry.before_ms, entry.before_ms, charged)
        if entry.tokens > 0 and (lowest is None or start[0] <= lowest[0]):
            lowest = start
        charged += entry.tokens
        if entry.call not in calls and lowest is not None:
            height, at_ms, charged_before = lowest
            excess = charged * period - amount * entry.after_ms - height - limit.capacity * period
            if tightest is None or excess > most:
                most, length_ms = excess, entry.after_ms - at_ms
                allowed = limit.capacity + amount * length_ms / period
                tightest = Finding(charged - charged_before, allowed, length_ms, passed=excess * 1000 > period)
        calls.add(entry.call)
    return tightest


def read_counts(limiter: SyncRateLimiter) -> dict[tuple[str, str], int]:
    """Return what the store says has been used, by entity and limit."""
    states = [state for party in PARTIES for state in limiter.get_buckets(party.id, RESOURCE)]
    return {(state.entity_id, state.limit_name): state.total_consumed_milli // MILLI for state in states}


def judge(run: Simulation, counted: Mapping[tuple[str, str], int]) -> list[Line]:
    """Compare the logs of a run with the limits and with what the store has counted."""
    lines = []
    for party in PARTIES:
        for limit in party.limits:
            name = (party.id, limit.name)
            log = run.logs[name]
            grants = {entry.call: entry.tokens for entry in reversed(log)}  # the first entry of a call stays
            estimated, refunded = sum(grants.values()), -sum(min(0, entry.tokens) for entry in log)
            used = sum(entry.tokens for entry in log)
            tokens = (estimated, refunded, used - estimated + refunded, used)
            at_most = limit.capacity + limit.refill_amount * run.elapsed_ms / (limit.refill_period_seconds * 1000)
            finding = examine(limit, log)
            verdict = (at_most, finding, counted.get(name, 0), finding is None or not finding.passed)
            lines.append(Line(party.id, limit, len(grants), run.refused[name], *tokens, *verdict))
    return lines


def find_verdicts(lines: Sequence[Line], logs: Mapping[tuple[str, str], Sized]) -> list[tuple[bool, str]]:
    """Return the results of the checks as sentences, each with whether it passed."""
    checked = f"{len(lines)} limits, every window of a log of {sum(map(len, logs.values())):,} entries"
    found = [
        (
            False,
            f"OVER THE LIMIT: {line.entity_id} {line.limit.name} charged {window.charged:,} "
            f"in {window.length_ms / 1000:.3f} s, allowed are {window.allowed:,.3f}.",
        )
        for line in lines
        if (window := line.tightest_window) is not None and window.passed
    ] or [(True, f"Never over the limit: {checked}.")]
    wrong = [f"{line.entity_id} {line.limit.name}" for line in lines if line.counted_by_store != line.used]
    if wrong:
        return [*found, (False, f"The store and the log disagree about what was used: {', '.join(wrong)}.")]
    return [*found, (True, "The books balance: the store counted exactly what the calls used.")]


def mark(good: bool, text: str) -> Text:
    """Return a verdict with its mark."""
    return Text.assemble(("✓ ", "bold green") if good else ("✗ ", "bold red"), text)


def print_result(run: Simulation, lines: Sequence[Line]) -> None:
    """Print the table and the verdicts; on a terminal of 80 columns and 24 lines they fit."""
    counts, debt = run.counts, ""
    if run.deepest_debt:
        debt = f", deepest debt {-run.deepest_debt:,} tpm, longest {run.longest_debt_ms / 1000:.1f} s"
    click.echo()
    print_grid(make_grid(lines))
    echo_trimmed(Text(_LEGEND, style="dim"))
    echo_trimmed(
        Text(
            f"{run.elapsed_ms / 1000:.1f} s: {counts['granted']} calls granted ({counts['granted later']} at a later "
            f"try), {counts['refused']} refusals, {counts['gave up']} given up, {counts['failed']} failed upstream and "
            f"given back{debt}."
        )
    )
    for good, text in find_verdicts(lines, run.logs):
        echo_trimmed(mark(good, text))


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
