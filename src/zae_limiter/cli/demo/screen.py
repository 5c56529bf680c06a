"""The demo as a live picture: a bar per bucket, and the latest events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from .bars import bar
from .pace import play
from .scenario import PARTIES, tree_labels
from .simulation import DemoEvent, EventKind

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ...core.reports import LevelStatus
    from .pace import Wait
    from .simulation import Simulation

FRAME_MS = 80
_EVENTS = 9
_LEAST_EVENTS = 3
_FRAME = 5
"""Lines of the picture that are neither buckets nor events: two panels and a head."""
_REQUESTS = "requests/min"
_LEFT_RPM = 5
_LEFT_TPM = 12
_STYLES = {
    EventKind.GRANTED: "green",
    EventKind.REFUSED: "yellow",
    EventKind.SETTLED: "cyan",
    EventKind.FAILED: "magenta",
    EventKind.GAVE_UP: "grey50",
    EventKind.REPAID: "bright_green",
}


class ScreenView:
    """Draws the run in place on a terminal."""

    def __init__(self, simulation: Simulation, console: Console, title: str, lines_above: int = 0) -> None:
        """Leave room for ``lines_above`` on the screen by showing fewer events if it is low."""
        self._simulation = simulation
        self._console = console
        self._title = title
        room = console.height - lines_above - _FRAME - len(PARTIES) - 1
        self._events = max(_LEAST_EVENTS, min(_EVENTS, room))

    def run(self, until: Wait) -> bool:
        """Play the run. Return False if it was interrupted."""
        with Live(self.picture(), console=self._console, auto_refresh=False) as live:
            return play(self._simulation, until, FRAME_MS, lambda: live.update(self.picture(), refresh=True))

    def picture(self) -> RenderableType:
        """Return the present state."""
        run = self._simulation
        balances = run.balances()
        width = max(72, min(self._console.width, 110))
        latest = run.events[-self._events :]
        events = Group(*(_line(event) for event in [*latest, *[None] * (self._events - len(latest))]))
        return Group(
            Panel(
                _buckets(balances, width - 4),
                title=Text(self._title, style="bold"),
                subtitle=_clock(run),
                border_style="grey37",
                width=width,
            ),
            Panel(events, title=_totals(run), border_style="grey37", width=width),
        )


def _buckets(balances: dict[tuple[str, str], LevelStatus], width: int) -> Table:
    table = Table(box=None, show_header=True, header_style="grey58", padding=(0, 1, 0, 0), pad_edge=False)
    names = tree_labels()
    label = max(map(len, names.values()))
    room = width - label - _LEFT_RPM - _LEFT_TPM - 4
    rpm_width, debt_width = max(len(_REQUESTS), room // 4), room // 6
    tpm_width = room - rpm_width - debt_width - 1
    table.add_column("")
    table.add_column(_REQUESTS)
    table.add_column("left", justify="right", width=_LEFT_RPM)
    table.add_column(Text(f"{'debt':>{debt_width}}│tokens/min"))
    table.add_column("left", justify="right", width=_LEFT_TPM)
    for party in PARTIES:
        rpm, tpm = balances[party.id, "rpm"], balances[party.id, "tpm"]
        style = "" if party.traffic is not None else "bold"
        table.add_row(
            Text(names[party.id], style=style),
            bar(rpm.available, rpm.capacity, rpm_width),
            _number(rpm),
            bar(tpm.available, tpm.capacity, tpm_width, debt_width),
            _number(tpm),
        )
    return table


def _number(row: LevelStatus) -> Text:
    style = "bold bright_red" if row.available < 0 else ""
    return Text(f"{row.available:,}", style=style).append(f"/{row.capacity:,}", style="grey50")


def _line(event: DemoEvent | None) -> Text:
    if event is None:
        return Text("")
    style = "bright_red" if event.debt else _STYLES[event.kind]
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(f"{event.at_ms / 1000:6.2f} s  ", style="grey50").append(f"{event.who:<8}")
    text.append(f"{event.kind.value:<9}", style=f"bold {style}")
    return text.append(event.text, style=style if event.debt else "")


def _totals(run: Simulation) -> Text:
    text = Text()
    for kind in (EventKind.GRANTED, EventKind.REFUSED, EventKind.FAILED):
        text.append(f"{kind.value} {run.counts[kind]}", style=_STYLES[kind]).append("   ")
    return text.append(f"debts repaid {run.counts[EventKind.REPAID]}", style=_STYLES[EventKind.REPAID])


def _clock(run: Simulation) -> Text:
    total_ms = run.end_ms - run.start_ms
    return Text(f"{min(run.elapsed_ms, total_ms) / 1000:.1f} of {total_ms / 1000:g} s", style="grey58")
