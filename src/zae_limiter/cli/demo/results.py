"""The result of the demo: what happened at every limit, and whether any was exceeded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from rich import box
from rich.table import Table
from rich.text import Text

from ...core.bucket import MILLI
from ..output import echo_trimmed, open_console, print_json
from ..tables import measure
from .ledger import Account, Finding, Ledger, examine
from .scenario import PARTIES, RESOURCE, tree_labels
from .simulation import EventKind, Simulation

if TYPE_CHECKING:
    from ...sync import SyncRateLimiter

_COUNTS = ("granted", "refused", "estimated", "refunded", "overshot", "used")
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
        print_json(_to_json(result))
        return
    click.echo()
    echo_trimmed(build_table(result, open_console().width))
    echo_trimmed(Text(LEGEND, style="dim"))
    echo_trimmed(Text(f"{result.seconds:.1f} s: {result.summary}"))
    for good, text in verdicts(result):
        echo_trimmed(Text.assemble(("✓ ", "bold green") if good else ("✗ ", "bold red"), text))


def _to_json(result: DemoResult) -> dict[str, Any]:
    """Return the result for JSON."""
    return {
        "ok": result.ok,
        "seed": result.seed,
        "seconds": result.seconds,
        "limits": [
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
        ],
    }


def build_table(result: DemoResult, width: int) -> Table:
    """Return the result as a table; a narrow terminal gets the most important columns."""
    for rank, gap in ((0, 2), (1, 1), (2, 1)):
        made = _table(result, [column for column in _COLUMNS if column.rank >= rank], gap=gap)
        if measure(made).maximum <= width:
            break
    return made


def _table(result: DemoResult, columns: Sequence[_Column], *, gap: int) -> Table:
    made = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, gap - 1, 0, 0), pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column.header, justify="left" if column.is_text else "right", no_wrap=True)
    names = tree_labels()
    for number, line in enumerate(result.lines):
        follows = number > 0 and result.lines[number - 1].account.entity_id == line.account.entity_id
        name = "" if follows else names[line.account.entity_id]
        made.add_row(*(column.cell(line, name) for column in columns))
    return made


class _Column(NamedTuple):
    header: str
    cell: Callable[[ResultLine, str], Any]
    is_text: bool = False
    rank: int = 2
    """How much it matters: columns of rank 0 are the first to be left out."""


def _count(name: str, rank: int) -> _Column:
    return _Column(name, lambda line, _: f"{getattr(line.account, name):,}", rank=rank)


def _peak(line: ResultLine, name: str) -> str:
    return "-" if line.finding is None else f"{100 * line.finding.share:.1f} %"


def _window(line: ResultLine, name: str) -> str:
    return "-" if line.finding is None else f"{line.finding.length_ms / 1000:.2f} s"


def _verdict_cell(line: ResultLine, name: str) -> Text:
    if line.is_exceeded:
        return Text("YES", style="bold white on red")
    if line.is_miscounted:
        return Text(f"never, but the store says {line.counted:,} used", style="bold red")
    return Text("never", style="green")


_COLUMNS = (
    _Column("", lambda line, name: name, is_text=True),
    _Column("", lambda line, name: line.account.limit.name, is_text=True),
    *(_count(name, rank) for name, rank in zip(_COUNTS, (1, 1, 1, 1, 0, 2), strict=True)),
    _Column("at most", lambda line, name: f"{int(line.at_most):,}"),
    _Column("peak", _peak, rank=1),
    _Column("in", _window, rank=0),
    _Column("over", _verdict_cell, is_text=True),
)
