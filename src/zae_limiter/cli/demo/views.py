"""The demo as it runs: a live picture on a terminal, or lines of text for pipes, logs and dumb terminals."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from ..output import encodable, open_console
from ..tables import bar
from .simulation import ESTIMATE, PARTIES, Event, Simulation

if TYPE_CHECKING:
    from ...core.reports import LevelStatus

_OPENING = (
    f"Four API keys call a model. A call takes 1 rpm and an estimated {ESTIMATE} tpm from its key, its "
    "project and its organisation at once, or from none of them. What it really used is settled afterwards: less is "
    "refunded, more becomes debt."
)
_BARS = "A bar is what is left in a bucket; to the left of its zero is debt."
_PIPE_WIDTH = 88
_LEAST_WIDTH = 72
"""A terminal with fewer columns has no room for the picture."""
_PLAIN_FRAME_MS, FRAME_MS = 100, 80
_OTHER_LINES = 5 + len(PARTIES) + 1
"""Lines of the picture that are no events: two panels, a head and the buckets, and that of the cursor."""
_STYLES = {
    "granted": "green",
    "refused": "yellow",
    "settled": "cyan",
    "failed": "magenta",
    "gave up": "grey50",
    "repaid": "bright_green",
}


def show_run(run: Simulation, title: str, sleep: Callable[[float], object], *, plain: bool, quiet: bool) -> bool:
    """Play a run where stdout goes. Return False if Ctrl-C ended it early."""
    if quiet:
        return run.play(sleep, _PLAIN_FRAME_MS, run.balances)
    screen = open_console()
    drawn = screen.is_terminal and not screen.is_dumb_terminal and not screen.options.ascii_only
    drawn = drawn and not plain and screen.width >= _LEAST_WIDTH
    opening = Text(f"{_OPENING} {_BARS}" if drawn else _OPENING)
    lines = opening.wrap(screen, screen.width if screen.is_terminal else _PIPE_WIDTH)
    above = "\n".join(line.plain.rstrip() for line in lines)
    click.echo(encodable(above if drawn else f"{title}\n\n{above}\n"))
    if drawn:
        return show_live(run, screen, title, sleep, len(lines))
    printed = seconds = 0

    def print_frame() -> None:
        nonlocal printed, seconds
        balances = run.balances()
        for event in run.events[printed:]:
            if event.kind in ("refused", "failed", "repaid") or event.debt:
                click.echo(encodable(f"{event.at_ms / 1000:6.2f} s  {event.who:<8}{event.kind:<9}{event.text}"))
        printed = len(run.events)
        if run.elapsed_ms >= seconds * 1000:
            seconds += 1
            left = "  ".join(f"{party.id} {balances[party.id, 'tpm'].available:,}" for party in PARTIES)
            counts = f"granted {run.counts['granted']}, refused {run.counts['refused']}"
            click.echo(encodable(f"{run.elapsed_ms / 1000:6.2f} s  -- {counts}; tpm left: {left}"))

    return run.play(sleep, _PLAIN_FRAME_MS, print_frame)


def show_live(
    run: Simulation, screen: Console, title: str, sleep: Callable[[float], object], lines_above: int = 0
) -> bool:
    """Play a run in place on a terminal, below ``lines_above``. Return False if Ctrl-C ended it early."""
    most = max(3, min(9, screen.height - lines_above - _OTHER_LINES))
    with Live(console=screen, auto_refresh=False) as live:
        return run.play(
            sleep, FRAME_MS, lambda: live.update(draw_picture(run, title, screen.width, most), refresh=True)
        )


def draw_picture(run: Simulation, title: str, width: int, most_events: int = 9) -> RenderableType:
    """Return the present state: a bar per bucket, and the latest events."""
    width = max(_LEAST_WIDTH, min(width, 110))
    buckets = _draw_buckets(run.balances(), width - 4)
    events = [_draw_event(event) for event in run.events[-most_events:]]
    events += [Text()] * (most_events - len(events))
    total_ms, counts = run.end_ms - run.start_ms, Text("   ")
    elapsed = Text(f"{min(run.elapsed_ms, total_ms) / 1000:.1f} of {total_ms / 1000:g} s", "grey58")
    named = {"granted": "granted", "refused": "refused", "failed": "failed", "repaid": "debts repaid"}
    counts = counts.join(Text(f"{name} {run.counts[kind]}", _STYLES[kind]) for kind, name in named.items())
    return Group(
        Panel(buckets, title=Text(title, "bold"), subtitle=elapsed, border_style="grey37", width=width),
        Panel(Group(*events), title=counts, border_style="grey37", width=width),
    )


def _draw_buckets(balances: dict[tuple[str, str], LevelStatus], width: int) -> Table:
    table = Table(box=None, header_style="grey58", padding=(0, 1, 0, 0), pad_edge=False)
    left_rpm, left_tpm, requests = 5, 12, "requests/min"
    room = width - max(len(party.label) for party in PARTIES) - left_rpm - left_tpm - 4
    rpm_width, debt_width = max(len(requests), room // 4), room // 6
    table.add_column()
    table.add_column(requests)
    table.add_column("left", justify="right", width=left_rpm)
    table.add_column(f"{'debt':>{debt_width}}│tokens/min")
    table.add_column("left", justify="right", width=left_tpm)
    for party in PARTIES:
        cells: list[Text] = []
        for name, size, debt in (("rpm", rpm_width, 0), ("tpm", room - rpm_width - debt_width - 1, debt_width)):
            row = balances[party.id, name]
            number = Text(f"{row.available:,}", "bold bright_red" if row.available < 0 else "")
            cells += [bar(row.available, row.capacity, size, debt), number.append(f"/{row.capacity:,}", "grey50")]
        table.add_row(Text(party.label, "" if party.rate else "bold"), *cells)
    return table


def _draw_event(event: Event) -> Text:
    style, text = "bright_red" if event.debt else _STYLES[event.kind], Text(no_wrap=True, overflow="ellipsis")
    text.append(f"{event.at_ms / 1000:6.2f} s  ", "grey50").append(f"{event.who:<8}")
    return text.append(f"{event.kind:<9}", f"bold {style}").append(event.text, style if event.debt else "")
