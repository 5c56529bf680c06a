"""``zae-limiter demo``."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from ...clock import Clock, SystemClock
from ...core.urls import show_url
from ..commands import Command, Shell
from ..errors import CODES, OVER_ADMITTED
from . import scenario
from .simulation import Simulation

if TYPE_CHECKING:
    from ...sync import SyncRateLimiter
    from .views import Sleep


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
    from . import results, views

    url = _choose_url(shell, fast)
    number = secrets.randbelow(10_000) if seed is None else seed
    clock, sleep = _choose_clock(fast)
    with _open_limiter(url, clock) as limiter:
        scenario.install(limiter)
        run = Simulation(limiter, clock, number, seconds)
        title = f"zae-limiter demo · {url} · seed {number}"
        finished = views.show_run(run, title, sleep, plain=plain or fast, quiet=shell.as_json)
        result = results.judge_run(run, limiter, number)
    results.print_result(result, as_json=shell.as_json)
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
        raise click.UsageError(f"{embedded}, not {show_url(url)}.")
    if fast and not url.startswith("memory://"):
        raise click.UsageError("--fast uses its own clock and runs in memory only: it cannot be combined with --url.")
    return url


def _choose_clock(fast: bool) -> tuple[Clock, Sleep]:
    """Return a clock and the function that waits by it."""
    if not fast:
        return SystemClock(), time.sleep
    from ...testing.clock import ManualClock

    clock = ManualClock()
    return clock, clock.advance


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
