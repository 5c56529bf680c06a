"""The end of the demo: what happened at every limit, and whether any was passed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ...core.bucket import MILLI
from .events import Kind
from .scenario import PARTIES, RESOURCE, twigs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.table import Table

    from ...sync import SyncRateLimiter
    from .ledger import Account, Ledger
    from .oracle import Finding
    from .simulation import Simulation

LEGEND = (
    "used: estimated, less refunded, plus what went beyond the estimate. at most: capacity + rate x time. "
    "peak: the fullest window, in % of what it allows."
)
"""With the table, the summary and two lines of verdicts it fits a terminal of 80 columns and 24 lines."""


@dataclass(frozen=True, slots=True)
class Line:
    """One limit of one entity at the end."""

    account: Account
    at_most: float
    finding: Finding | None
    counted: int
    """What the store says has been used."""

    @property
    def passed(self) -> bool:
        """Whether more was granted than allowed, in any window."""
        return self.finding is not None and self.finding.passed

    @property
    def off_the_books(self) -> bool:
        """Whether the store counted something else than the log."""
        return self.counted != self.account.used


@dataclass(frozen=True, slots=True)
class Closing:
    """The result of a run."""

    lines: tuple[Line, ...]
    seconds: float
    seed: int
    summary: str

    @property
    def ok(self) -> bool:
        """No limit passed, no token off the books."""
        return not any(line.passed or line.off_the_books for line in self.lines)


def close(simulation: Simulation, limiter: SyncRateLimiter, seed: int) -> Closing:
    """Judge a run that has ended."""
    elapsed_ms = simulation.elapsed_ms
    counted = count(limiter)
    lines = judge(simulation.ledger, counted, elapsed_ms)
    return Closing(lines, elapsed_ms / 1000, seed, _summary(simulation))


def judge(ledger: Ledger, counted: dict[tuple[str, str], int], elapsed_ms: int) -> tuple[Line, ...]:
    """Hold the log against the limits and against what the store has counted."""
    return tuple(
        Line(account, account.at_most(elapsed_ms), account.finding(), counted.get(name, 0))
        for name, account in ledger.accounts.items()
    )


def count(limiter: SyncRateLimiter) -> dict[tuple[str, str], int]:
    """What the store has counted, by entity and limit."""
    states = [state for party in PARTIES for state in limiter.get_buckets(party.id, RESOURCE)]
    return {(state.entity_id, state.limit_name): state.total_consumed_milli // MILLI for state in states}


def _summary(run: Simulation) -> str:
    counts = run.counts
    parts = [
        f"{counts[Kind.GRANTED]} calls granted ({run.granted_later} at a later try)",
        f"{counts[Kind.REFUSED]} refusals",
        f"{counts[Kind.GAVE_UP]} given up",
        f"{counts[Kind.FAILED]} failed upstream and given back",
    ]
    if run.deepest_debt:
        parts.append(f"deepest debt {-run.deepest_debt:,} tpm, longest {run.longest_debt_ms / 1000:.1f} s")
    return ", ".join(parts) + "."


def verdicts(closing: Closing) -> list[tuple[bool, str]]:
    """What the checks say, each with whether it is good news."""
    passed = [line for line in closing.lines if line.passed]
    unbooked = [f"{line.account.entity_id} {line.account.limit.name}" for line in closing.lines if line.off_the_books]
    found = [(False, _over(line)) for line in passed]
    if not passed:
        entries = sum(len(line.account.log) for line in closing.lines)
        checked = f"{len(closing.lines)} limits, every window of a log of {entries:,} entries"
        found.append((True, f"Never over the limit: {checked}."))
    if unbooked:
        found.append((False, f"The store and the log disagree about what was used: {', '.join(unbooked)}."))
    else:
        found.append((True, "The books balance: the store counted exactly what the calls used."))
    return found


def _over(line: Line) -> str:
    finding = line.finding
    assert finding is not None  # a limit that was passed has a window in which it was
    return (
        f"OVER THE LIMIT: {line.account.entity_id} {line.account.limit.name} charged {finding.charged:,} in "
        f"{finding.length_ms / 1000:.3f} s, allowed are {finding.allowed:,.3f}."
    )


def data(closing: Closing) -> dict[str, Any]:
    """The result as JSON has it."""
    return {
        "ok": closing.ok,
        "seed": closing.seed,
        "seconds": closing.seconds,
        "limits": [
            {
                "entity_id": line.account.entity_id,
                "limit": line.account.limit,
                "granted": line.account.granted,
                "refused": line.account.refused,
                "estimated": line.account.estimated,
                "refunded": line.account.refunded,
                "overshot": line.account.overshot,
                "used": line.account.used,
                "at_most": line.at_most,
                "tightest_window": line.finding,
                "counted_by_store": line.counted,
                "never_over": not line.passed,
            }
            for line in closing.lines
        ],
    }


def table(closing: Closing, width: int) -> Table:
    """The closing table; a narrow terminal gets the columns that matter most."""
    from ..tables import measure

    for rank, gap in ((0, 2), (1, 1), (2, 1)):
        made = _table(closing, [column for column in _COLUMNS if column.rank >= rank], gap=gap)
        if measure(made).maximum <= width:
            break
    return made


def _table(closing: Closing, columns: Sequence[_Column], *, gap: int) -> Table:
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, gap - 1, 0, 0), pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column.header, justify="left" if column.is_text else "right", no_wrap=True)
    names = twigs()
    for number, line in enumerate(closing.lines):
        follows = number > 0 and closing.lines[number - 1].account.entity_id == line.account.entity_id
        name = "" if follows else names[line.account.entity_id]
        made.add_row(*(column.cell(line, name) for column in columns))
    return made


def _check(line: Line, name: str) -> Any:
    from rich.text import Text

    if line.passed:
        return Text("YES", style="bold white on red")
    if line.off_the_books:
        return Text(f"never, but the store says {line.counted:,} used", style="bold red")
    return Text("never", style="green")


def _peak(line: Line) -> str:
    return "-" if line.finding is None else f"{100 * line.finding.share:.1f} %"


def _window(line: Line) -> str:
    return "-" if line.finding is None else f"{line.finding.length_ms / 1000:.2f} s"


def _whole(number: float) -> str:
    return f"{int(number):,}"


class _Column(NamedTuple):
    header: str
    cell: Callable[[Line, str], Any]
    is_text: bool = False
    rank: int = 2
    """How much it matters: columns of rank 0 are the first to be left out."""


_COLUMNS = (
    _Column("", lambda line, name: name, is_text=True),
    _Column("", lambda line, name: line.account.limit.name, is_text=True),
    _Column("granted", lambda line, name: _whole(line.account.granted), rank=1),
    _Column("refused", lambda line, name: _whole(line.account.refused), rank=1),
    _Column("estimated", lambda line, name: _whole(line.account.estimated), rank=1),
    _Column("refunded", lambda line, name: _whole(line.account.refunded), rank=1),
    _Column("overshot", lambda line, name: _whole(line.account.overshot), rank=0),
    _Column("used", lambda line, name: _whole(line.account.used)),
    _Column("at most", lambda line, name: _whole(line.at_most)),
    _Column("peak", lambda line, name: _peak(line), rank=1),
    _Column("in", lambda line, name: _window(line), rank=0),
    _Column("over", _check, is_text=True),
)
