"""The goldens: what came out of every step when they were frozen, one line each, in one compressed file."""

from __future__ import annotations

import lzma
from functools import cache
from pathlib import Path

from .recorder import CASES, STEPS, run

PATH = Path(__file__).with_name("goldens.txt.xz")


@cache
def _read_all() -> list[str]:
    return lzma.decompress(PATH.read_bytes()).decode().splitlines()


def read(number: int) -> list[str]:
    """Return the lines of a case."""
    return _read_all()[number * STEPS : (number + 1) * STEPS]


def freeze() -> None:
    """Write what comes out now."""
    lines = [step.line for number in range(CASES) for step in run(number)]
    PATH.write_bytes(lzma.compress("\n".join(lines).encode(), preset=9 | lzma.PRESET_EXTREME))
    _read_all.cache_clear()


def find_difference(number: int) -> str | None:
    """Return how a case has changed at the first step that is another one; None if it is as it was."""
    for place, (step, golden) in enumerate(zip(run(number), read(number), strict=True)):
        if step.line != golden:
            shown = f"python -m tests.core_goldens --show {number} prints all of it"
            return f"case {number}, step {place}, {step.name}:\n  was {golden}\n  is  {step.line}\n{shown}"
    return None
