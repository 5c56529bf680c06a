"""Run the demo in real time, or at once on a manual clock."""

from __future__ import annotations

import signal
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from ...clock import Clock
    from ...testing.clock import ManualClock
    from .simulation import Simulation

    Wait = Callable[[int], None]
    """Waits until an instant."""


def in_real_time(clock: Clock) -> Wait:
    """Return a function that sleeps until an instant."""

    def until(instant_ms: int) -> None:
        time.sleep(max(0, instant_ms - clock.now_ms()) / 1000)

    return until


def at_once(clock: ManualClock) -> Wait:
    """Return a function that moves the clock to an instant."""

    def until(instant_ms: int) -> None:
        clock.advance_ms(max(0, instant_ms - clock.now_ms()))

    return until


def play(simulation: Simulation, until: Wait, frame_ms: int, frame: Callable[[], None]) -> bool:
    """Run to the end with a frame every ``frame_ms``. Return False if Ctrl-C ended it early."""
    next_frame_ms = simulation.start_ms
    with interruption() as interrupted:
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
                until(min(next_frame_ms, simulation.end_ms, due_ms or simulation.end_ms))
        simulation.stop()
        frame()
        return not interrupted()


@contextmanager
def interruption() -> Iterator[Callable[[], bool]]:
    """Defer Ctrl-C for a block, so that no call is interrupted. Yield a function that says if it was pressed."""
    pressed: list[int] = []

    def press(number: int, frame: FrameType | None) -> None:
        pressed.append(number)

    try:
        before = signal.signal(signal.SIGINT, press)
    except ValueError:  # not the main thread: there is no Ctrl-C to hold back
        yield lambda: False
        return
    try:
        yield lambda: bool(pressed)
    finally:
        signal.signal(signal.SIGINT, before)
