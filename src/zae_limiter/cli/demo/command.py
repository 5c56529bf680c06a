"""``zae-limiter demo``."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.text import Text

from ...clock import Clock, SystemClock
from ..commands import Command, Shell
from ..errors import CODES, OVER_ADMITTED
from ..output import echo_trimmed, encodable, open_console, print_json
from . import results, scenario
from .simulation import Simulation
from .views import PLAIN_FRAME_MS, PlainView, ScreenView, Wait, at_once, in_real_time, play

if TYPE_CHECKING:
    from ...sync import SyncRateLimiter

_OPENING = (
    f"Four API keys call a model. A call takes 1 rpm and an estimated {scenario.ESTIMATE} tpm from its key, its "
    "project and its organisation at once, or from none of them. What it really used is settled afterwards: less is "
    "refunded, more becomes debt."
)
_BARS = "A bar is what is left in a bucket; to the left of its zero is debt."
_PIPE_WIDTH = 88
LEAST_WIDTH = 72
"""A terminal with fewer columns has no room for the picture."""


@click.command(cls=Command)
@click.option("--seconds", type=click.FloatRange(min=0.5, max=3600), default=12, show_default=True, help="Duration.")
@click.option("--seed", type=int, metavar="N", help="Repeat the traffic of an earlier run.  [default: random]")
@click.option("--plain", is_flag=True, help="Lines of text; also chosen where stdout is not a terminal.")
@click.option(
    "--fast", is_flag=True, help="Do not wait: a clock of its own, lines of text, the same for the same seed."
)
def demo(shell: Shell, seconds: float, seed: int | None, plain: bool, fast: bool) -> None:
    """UpgradeProgress the limiter at work, and check it.

    Four API keys of two projects of one organisation call a model. Every call takes 1 request and an estimated
    number of tokens from all three levels at once, or is refused with the moment to come back. What
    it really used is settled afterwards; a bucket may go into debt and has to refill out of it.

    At the end a table shows every limit, and an independent check of the log of grants tests every window of time
    against it. The exit code is 20 if a limit was exceeded.

    It runs in memory, or on a SQLite file with --url, in a namespace of its own that is purged afterwards.

    \b
    Examples:
      zae-limiter demo
      zae-limiter demo --seconds 30 --seed 7
      zae-limiter demo --plain --fast --seed 7
      zae-limiter demo --url sqlite:///demo.db
    """
    url = _choose_url(shell, fast)
    number = secrets.randbelow(10_000) if seed is None else seed
    clock, until = _choose_clock(fast)
    with _open_limiter(url, clock) as limiter:
        scenario.install(limiter)
        run = Simulation(limiter, clock, number, seconds)
        show_run = _open_view(run, f"zae-limiter demo · {url} · seed {number}", shell, plain=plain or fast)
        finished = show_run(until)
        result = results.judge_run(run, limiter, number)
    _show_result(result, shell)
    if not result.ok:
        raise click.exceptions.Exit(OVER_ADMITTED)
    if not finished:
        raise click.exceptions.Exit(CODES[click.Abort])


def _choose_url(shell: Shell, fast: bool) -> str:
    """Return the store to run on: never that of the environment, which may be in use."""
    url = shell.url or "memory://"
    embedded = "The demo runs on an embedded store: memory, or --url sqlite:///demo.db"
    if shell.stack_name is not None:
        raise click.UsageError(f"{embedded}.")
    if not url.startswith(("memory://", "sqlite://")):
        raise click.UsageError(f"{embedded}, not {url}.")
    if fast and not url.startswith("memory://"):
        raise click.UsageError("--fast uses its own clock and runs in memory only: it cannot be combined with --url.")
    return url


def _choose_clock(fast: bool) -> tuple[Clock, Wait]:
    if fast:
        from ...testing.clock import ManualClock

        manual = ManualClock()
        return manual, at_once(manual)
    clock = SystemClock()
    return clock, in_real_time(clock)


@contextmanager
def _open_limiter(url: str, clock: Clock) -> Iterator[SyncRateLimiter]:
    """Yield a limiter in its own namespace, of which only the audit log remains."""
    from ...sync import SyncRateLimiter, SyncRepository

    name = f"demo-{secrets.token_hex(4)}"
    with SyncRepository(url, namespace=name, clock=clock) as repository:
        made = repository.register_namespace(name, "demo")
        try:
            yield SyncRateLimiter(repository)
        finally:
            repository.delete_namespace(name, "demo")
            repository.purge_namespace(made.id, "demo")


def _open_view(run: Simulation, title: str, shell: Shell, *, plain: bool) -> Callable[[Wait], bool]:
    """Print what comes before a run. Return the function that shows it, and returns False if it was interrupted."""
    if shell.as_json:
        return lambda until: play(run, until, PLAIN_FRAME_MS, run.balances)
    screen = open_console()
    drawn = screen.is_terminal and not screen.is_dumb_terminal and not screen.options.ascii_only
    if plain or not drawn or screen.width < LEAST_WIDTH:
        click.echo(f"{encodable(title)}\n")
        _print_wrapped(screen, _OPENING)
        click.echo()
        return PlainView(run).run
    return ScreenView(run, screen, title, lines_above=_print_wrapped(screen, f"{_OPENING} {_BARS}")).run


def _print_wrapped(screen: Console, text: str) -> int:
    """Print a text and return the number of its lines."""
    lines = Text(text).wrap(screen, screen.width if screen.is_terminal else _PIPE_WIDTH)
    for line in lines:
        click.echo(line.plain.rstrip())
    return len(lines)


def _show_result(result: results.DemoResult, shell: Shell) -> None:
    if shell.as_json:
        print_json(results.to_json(result))
        return
    click.echo()
    echo_trimmed(results.build_table(result, open_console().width))
    echo_trimmed(Text(results.LEGEND, style="dim"))
    echo_trimmed(Text(f"{result.seconds:.1f} s: {result.summary}"))
    for good, text in results.verdicts(result):
        echo_trimmed(Text.assemble(("✓ ", "bold green") if good else ("✗ ", "bold red"), text))
