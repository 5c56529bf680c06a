"""``python -m docs_hooks.demo_picture``: the picture of the demo in the README, from a real run."""

from __future__ import annotations

import io
import re
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.text import Text

from zae_limiter import SyncRateLimiter, SyncRepository
from zae_limiter.cli.demo import results, scenario
from zae_limiter.cli.demo.simulation import Simulation
from zae_limiter.cli.demo.views import FRAME_MS, ScreenView, play
from zae_limiter.testing import ManualClock

PICTURE = Path(__file__).parents[1] / "docs" / "plots" / "demo.svg"
SEED, SECONDS, SHOWN_MS, WIDTH = 7, 12, 9_500, 100
"""The run, the moment that is shown (a bucket is in debt then), and the columns of the terminal."""


def draw() -> str:
    """Run the demo on a clock of its own; return its screen at one moment and its last lines, as SVG."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(_screen(console))
    svg = console.export_svg(title=f"zae-limiter demo --seed {SEED}", unique_id="demo")
    return _without_fonts(svg)


def _screen(console: Console) -> RenderableType:
    clock = ManualClock()
    shown: list[RenderableType] = []
    with SyncRateLimiter(SyncRepository("memory://", clock=clock)) as limiter:
        scenario.install(limiter)
        run = Simulation(limiter, clock, SEED, SECONDS)
        view = ScreenView(run, console, f"zae-limiter demo · memory:// · seed {SEED}")

        def frame() -> None:
            if not shown and run.elapsed_ms >= SHOWN_MS:
                shown.append(view.picture())

        play(run, clock.advance, FRAME_MS, frame)
        result = results.judge_run(run, limiter, SEED)
    mark = {True: ("✓ ", "bold green"), False: ("✗ ", "bold red")}
    verdicts = [Text.assemble(mark[good], text) for good, text in results.verdicts(result)]
    return Group(*shown, Text(), *verdicts)


def _without_fonts(svg: str) -> str:
    """Leave out fonts from the network: the viewer's own fixed-width font does."""
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)


if __name__ == "__main__":
    PICTURE.write_text(draw(), encoding="utf-8")
