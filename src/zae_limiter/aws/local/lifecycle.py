"""Up, down, and what there is. Each may be repeated, and several at once take turns."""

from __future__ import annotations

import contextlib
import shutil
import time
from typing import TYPE_CHECKING, NamedTuple

from ...core.errors import RateLimiterUnavailable, StackOperationError
from ...stores.dynamodb.settings import check_region
from . import engine, installation, record
from .turn import turn

if TYPE_CHECKING:
    from .home import Home
    from .record import Running
    from .turn import Say

PORT = 4566
REGION = "us-east-1"
PATIENCE = 60.0
_GENTLE_SECONDS = 10.0


class Wish(NamedTuple):
    """What is asked for; no port and no region mean those of the engine that runs, else the usual ones."""

    port: int | None = None
    region: str | None = None
    patience: float = PATIENCE
    """Seconds until it has to answer."""


class Found(NamedTuple):
    """An engine, and whether this call has started it."""

    running: Running
    version: str
    started: bool


class Health(NamedTuple):
    """How an engine is."""

    running: Running
    version: str | None
    """None where it does not answer."""

    uptime_seconds: float


def up(home: Home, wish: Wish, say: Say) -> Found:
    """An engine that answers: the one that runs, else a new one."""
    if wish.region is not None:
        check_region(wish.region)
    with turn(home, say):
        found = record.find(home)
        if found is None:
            return _started(home, wish, say)
        if wish.port not in (None, found.port):
            raise StackOperationError(
                f"A local AWS runs on port {found.port} already, not on {wish.port}: use that one, "
                "or stop it first with `zae-limiter local down`."
            )
        return Found(found, engine.wait(home, found, wish.patience), started=False)


def _started(home: Home, wish: Wish, say: Say) -> Found:
    plan = engine.Plan(wish.port or PORT, wish.region or REGION)
    engine.check_port(plan.port)
    command = installation.command(home, say)
    say(f"Starting a local AWS on port {plan.port}")
    running = engine.start(home, command, plan)
    try:
        record.keep(home, running)
        return Found(running, engine.wait(home, running, wish.patience), started=True)
    except BaseException:
        _end(home, running)
        raise


def down(home: Home, *, purge: bool, say: Say) -> Running | None:
    """Stop the engine; returns it, or None if none ran. ``purge`` also removes what was installed."""
    if not home.folder.exists():
        return None
    with turn(home, say):
        found = record.find(home)
        if found is not None:
            say("Stopping the local AWS")
            _end(home, found)
        if purge:
            _remove_all(home)
    return found


def _end(home: Home, running: Running) -> None:
    running.process.end(_GENTLE_SECONDS)
    record.forget(home)
    shutil.rmtree(home.scratch, ignore_errors=True)


def _remove_all(home: Home) -> None:
    """Only what is ours: the folder may have been chosen by the user and hold more."""
    for folder in (home.environment, home.scratch):
        shutil.rmtree(folder, ignore_errors=True)
    for file in (home.record, home.log, home.installation_log, home.lock):
        file.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        home.folder.rmdir()


def health(home: Home) -> Health | None:
    """How the engine is; None if none runs."""
    found = record.find(home)
    if found is None:
        return None
    return Health(found, engine.version(found.port), max(0.0, time.time() - found.since))


def required(home: Home) -> Running:
    """The engine that runs, for those who need one."""
    found = record.find(home)
    if found is None:
        raise RateLimiterUnavailable("No local AWS is running: start one with `zae-limiter local up`.")
    return found
