"""``zae-limiter demo``."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

import click

from ...clock import Clock, SystemClock
from ...core.validation import show_url
from ..commands import Command, Shell
from ..errors import CODES, OVER_ADMITTED
from ..output import print_json


@click.command(cls=Command)
@click.option("--seconds", type=click.FloatRange(min=0.5, max=3600), default=12, show_default=True, help="Duration.")
@click.option("--seed", type=int, metavar="N", help="Repeat the traffic of an earlier run.  [default: random]")
@click.option("--plain", is_flag=True, help="Lines of text; also chosen where stdout is not a terminal.")
@click.option(
    "--fast", is_flag=True, help="Do not wait: a clock of its own, lines of text, the same for the same seed."
)
def demo(shell: Shell, seconds: float, seed: int | None, plain: bool, fast: bool) -> None:
    """Watch the limiter at work, and check it.

    Four API keys of two projects of one organisation call a model. Every call takes 1 request and an estimated
    number of tokens from all three levels at once, or is refused with the moment to come back. What
    it really used is settled afterwards; a bucket may go into debt and has to refill out of it.

    At the end a table shows every limit, and an independent check of the log of grants tests every window of time
    against it. The exit code is 20 if a limit was exceeded.

    It runs in memory, or on a SQLite file with --url, in a namespace of its own that is purged afterwards.

    Examples:
      zae-limiter demo
      zae-limiter demo --seconds 30 --seed 7
      zae-limiter demo --plain --fast --seed 7
      zae-limiter demo --url sqlite:///demo.db
    """
    from ...sync import SyncRateLimiter, SyncRepository
    from . import results, simulation, views

    url = shell.url or "memory://"  # never the store of the environment, which may be in use
    if shell.stack_name is not None or not url.startswith(("memory://", "sqlite://")):
        other = "" if shell.stack_name is not None else f", not {show_url(url)}"
        raise click.UsageError(f"The demo runs on an embedded store: memory, or --url sqlite:///demo.db{other}.")
    if fast and not url.startswith("memory://"):
        raise click.UsageError("--fast uses its own clock and runs in memory only: it cannot be combined with --url.")
    number = secrets.randbelow(10_000) if seed is None else seed
    clock, sleep = _choose_clock(fast)
    name = f"demo-{secrets.token_hex(4)}"
    with SyncRepository(url, namespace=name, clock=clock) as repository:
        made, limiter = repository.register_namespace(name, "demo"), SyncRateLimiter(repository)
        try:
            simulation.install(limiter)
            run = simulation.Simulation(limiter, clock, number, seconds)
            title = f"zae-limiter demo · {url} · seed {number}"
            finished = views.show_run(run, title, sleep, plain=plain or fast, quiet=shell.as_json)
            lines = results.judge(run, results.read_counts(limiter))
        finally:  # only the audit log remains
            repository.delete_namespace(name, "demo")
            repository.purge_namespace(made.id, "demo")
    ok = all(line.is_right for line in lines)
    if shell.as_json:
        print_json({"ok": ok, "seed": number, "seconds": run.elapsed_ms / 1000, "limits": lines})
    else:
        results.print_result(run, lines)
    if not (ok and finished):
        raise click.exceptions.Exit(CODES[click.Abort] if ok else OVER_ADMITTED)


def _choose_clock(fast: bool) -> tuple[Clock, Callable[[float], object]]:
    """Return a clock and the function that waits by it."""
    if not fast:
        return SystemClock(), time.sleep
    from ...testing.clock import ManualClock

    clock = ManualClock()
    return clock, clock.advance
