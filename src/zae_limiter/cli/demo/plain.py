"""The demo as lines of text, for pipes, logs and dumb terminals."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ..output import encodable
from .pace import play
from .scenario import PARTIES
from .simulation import DemoEvent, EventKind

if TYPE_CHECKING:
    from .pace import Wait
    from .simulation import Simulation

FRAME_MS = 100
_LINE_EVERY_MS = 1000
_TOLD = frozenset((EventKind.REFUSED, EventKind.FAILED, EventKind.REPAID))


class PlainView:
    """Prints notable events as they happen, and a line about all buckets every second."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._told = 0
        self._next_line_ms = 0

    def run(self, until: Wait) -> bool:
        """Play the run. Return False if it was interrupted."""
        return play(self._simulation, until, FRAME_MS, self._frame)

    def _frame(self) -> None:
        run = self._simulation
        balances = run.balances()
        for event in run.events[self._told :]:
            if event.kind in _TOLD or event.debt:
                _say(_line(event))
        self._told = len(run.events)
        if run.elapsed_ms >= self._next_line_ms:
            self._next_line_ms += _LINE_EVERY_MS
            left = "  ".join(f"{party.id} {balances[party.id, 'tpm'].available:,}" for party in PARTIES)
            counts = f"granted {run.counts[EventKind.GRANTED]}, refused {run.counts[EventKind.REFUSED]}"
            _say(f"{run.elapsed_ms / 1000:6.2f} s  -- {counts}; tpm left: {left}")


class QuietView:
    """Prints nothing."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation

    def run(self, until: Wait) -> bool:
        """Play the run. Return False if it was interrupted."""
        return play(self._simulation, until, FRAME_MS, self._look)

    def _look(self) -> None:
        self._simulation.balances()


def _line(event: DemoEvent) -> str:
    return f"{event.at_ms / 1000:6.2f} s  {event.who:<8}{event.kind.value:<9}{event.text}"


def _say(text: str) -> None:
    click.echo(encodable(text))
