"""The demo as it runs: a live picture on a terminal, or lines of text for pipes, logs and dumb terminals."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from ...core.reports import LevelStatus
from ..output import encodable, open_console
from ..tables import bar
from .scenario import ESTIMATE, PARTIES
from .simulation import DemoEvent, EventKind, Simulation

Sleep: TypeAlias = Callable[[float], None]
"""Waits for some seconds: `time.sleep`, or the same for another clock."""

_OPENING = (
    f"Four API keys call a model. A call takes 1 rpm and an estimated {ESTIMATE} tpm from its key, its "
    "project and its organisation at once, or from none of them. What it really used is settled afterwards: less is "
    "refunded, more becomes debt."
)
_BARS = "A bar is what is left in a bucket; to the left of its zero is debt."
_PIPE_WIDTH = 88
_LEAST_WIDTH = 72
"""A terminal with fewer columns has no room for the picture."""
PLAIN_FRAME_MS = 100
FRAME_MS = 80
_LINE_EVERY_MS = 1000
_TOLD = frozenset((EventKind.REFUSED, EventKind.FAILED, EventKind.REPAID))
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


def play(simulation: Simulation, sleep: Sleep, frame_ms: int, frame: Callable[[], object]) -> bool:
    """Run to the end with a frame every ``frame_ms``. Return False if Ctrl-C ended it early."""
    next_frame_ms = simulation.start_ms
    with _defer_interrupts() as interrupted:
        while not interrupted():
            now_ms = simulation.start_ms + simulation.elapsed_ms
            due_ms = simulation.next_ms()
            if due_ms is not None and due_ms <= now_ms:
                simulation.step()
            elif next_frame_ms <= now_ms:
                frame()
                next_frame_ms = max(next_frame_ms + frame_ms, now_ms)
            elif now_ms >= simulation.end_ms:
                break
            else:
                sleep((min(next_frame_ms, simulation.end_ms, due_ms or simulation.end_ms) - now_ms) / 1000)
        simulation.stop()
        frame()
        return not interrupted()


@contextmanager
def _defer_interrupts() -> Iterator[Callable[[], bool]]:
    """Defer Ctrl-C for a block, so that no call is interrupted. Yield a function that says if it was pressed."""
    pressed: list[int] = []
    try:
        before = signal.signal(signal.SIGINT, lambda number, frame: pressed.append(number))
    except ValueError:  # not the main thread: there is no Ctrl-C to hold back
        yield lambda: False
        return
    try:
        yield lambda: bool(pressed)
    finally:
        signal.signal(signal.SIGINT, before)


def show_run(run: Simulation, title: str, sleep: Sleep, *, plain: bool, quiet: bool) -> bool:
    """Play a run where stdout goes. Return False if Ctrl-C ended it early."""
    if quiet:
        return play(run, sleep, PLAIN_FRAME_MS, run.balances)
    screen = open_console()
    drawn = screen.is_terminal and not screen.is_dumb_terminal and not screen.options.ascii_only
    if plain or not drawn or screen.width < _LEAST_WIDTH:
        click.echo(f"{encodable(title)}\n")
        _print_wrapped(screen, _OPENING)
        click.echo()
        return play(run, sleep, PLAIN_FRAME_MS, _event_printer(run))
    lines_above = _print_wrapped(screen, f"{_OPENING} {_BARS}")
    return ScreenView(run, screen, title, lines_above).run(sleep)


def _print_wrapped(screen: Console, text: str) -> int:
    """Print a text and return the number of its lines."""
    lines = Text(text).wrap(screen, screen.width if screen.is_terminal else _PIPE_WIDTH)
    for line in lines:
        click.echo(line.plain.rstrip())
    return len(lines)


def _event_printer(run: Simulation) -> Callable[[], None]:
    """Return a frame that prints notable events as they happen, and a line about all buckets every second."""
    told = next_line_ms = 0

    def print_frame() -> None:
        nonlocal told, next_line_ms
        balances = run.balances()
        for event in run.events[told:]:
            if event.kind in _TOLD or event.debt:
                line = f"{event.at_ms / 1000:6.2f} s  {event.who:<8}{event.kind.value:<9}{event.text}"
                click.echo(encodable(line))
        told = len(run.events)
        if run.elapsed_ms >= next_line_ms:
            next_line_ms += _LINE_EVERY_MS
            left = "  ".join(f"{party.id} {balances[party.id, 'tpm'].available:,}" for party in PARTIES)
            counts = f"granted {run.counts[EventKind.GRANTED]}, refused {run.counts[EventKind.REFUSED]}"
            click.echo(encodable(f"{run.elapsed_ms / 1000:6.2f} s  -- {counts}; tpm left: {left}"))

    return print_frame


class ScreenView:
    """Draws the run in place on a terminal: a bar per bucket, and the latest events."""

    def __init__(self, simulation: Simulation, console: Console, title: str, lines_above: int = 0) -> None:
        """Leave room for ``lines_above`` on the screen by showing fewer events if it is low."""
        self._simulation = simulation
        self._console = console
        self._title = title
        room = console.height - lines_above - _FRAME - len(PARTIES) - 1
        self._events = max(_LEAST_EVENTS, min(_EVENTS, room))

    def run(self, sleep: Sleep) -> bool:
        """Play the run. Return False if it was interrupted."""
        with Live(self.picture(), console=self._console, auto_refresh=False) as live:
            return play(self._simulation, sleep, FRAME_MS, lambda: live.update(self.picture(), refresh=True))

    def picture(self) -> RenderableType:
        """Return the present state."""
        run = self._simulation
        balances = run.balances()
        width = max(72, min(self._console.width, 110))
        lines = [_event_line(event) for event in run.events[-self._events :]]
        total_ms = run.end_ms - run.start_ms
        elapsed = f"{min(run.elapsed_ms, total_ms) / 1000:.1f} of {total_ms / 1000:g} s"
        return Group(
            Panel(
                _buckets(balances, width - 4),
                title=Text(self._title, style="bold"),
                subtitle=Text(elapsed, style="grey58"),
                border_style="grey37",
                width=width,
            ),
            Panel(
                Group(*lines, *[Text("")] * (self._events - len(lines))),
                title=_totals(run),
                border_style="grey37",
                width=width,
            ),
        )


def _buckets(balances: dict[tuple[str, str], LevelStatus], width: int) -> Table:
    table = Table(box=None, show_header=True, header_style="grey58", padding=(0, 1, 0, 0), pad_edge=False)
    label = max(len(party.label) for party in PARTIES)
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
        table.add_row(
            Text(party.label, style="" if party.traffic is not None else "bold"),
            bar(rpm.available, rpm.capacity, rpm_width),
            _number(rpm),
            bar(tpm.available, tpm.capacity, tpm_width, debt_width),
            _number(tpm),
        )
    return table


def _number(row: LevelStatus) -> Text:
    style = "bold bright_red" if row.available < 0 else ""
    return Text(f"{row.available:,}", style=style).append(f"/{row.capacity:,}", style="grey50")


def _event_line(event: DemoEvent) -> Text:
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
