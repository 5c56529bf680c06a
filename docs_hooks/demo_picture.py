"""``python -m docs_hooks.demo_picture``: the picture of the demo in the README, from a real run."""

from __future__ import annotations

import io
import re
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.text import Text

from zae_limiter import SyncRateLimiter, SyncRepository
from zae_limiter.cli.demo import results, simulation, views
from zae_limiter.testing import ManualClock

PICTURE = Path(__file__).parents[1] / "docs" / "plots" / "demo.svg"
SEED, SECONDS, SHOWN_MS, WIDTH = 7, 12, 9_500, 100
"""The run, the moment that is shown (a bucket is in debt then), and the columns of the terminal."""


def draw() -> str:
    """Run the demo on a clock of its own; return its screen at one moment and its last lines, as SVG."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(_screen())
    svg = console.export_svg(title=f"zae-limiter demo --seed {SEED}", unique_id="demo")
    return _without_fonts(svg)


def _screen() -> RenderableType:
    clock = ManualClock()
    shown: list[RenderableType] = []
    with SyncRateLimiter(SyncRepository("memory://", clock=clock)) as limiter:
        simulation.install(limiter)
        run = simulation.Simulation(limiter, clock, SEED, SECONDS)
        title = f"zae-limiter demo · memory:// · seed {SEED}"

        def frame() -> None:
            if not shown and run.elapsed_ms >= SHOWN_MS:
                shown.append(views.draw_picture(run, title, WIDTH))

        run.play(clock.advance, views.FRAME_MS, frame)
        lines = results.judge(run, results.read_counts(limiter))
    return Group(*shown, Text(), *(results.mark(*found) for found in results.find_verdicts(lines, run.logs)))


def _without_fonts(svg: str) -> str:
    """Leave out fonts from the network: the viewer's own fixed-width font does."""
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)


if __name__ == "__main__":
    PICTURE.write_text(draw(), encoding="utf-8")
