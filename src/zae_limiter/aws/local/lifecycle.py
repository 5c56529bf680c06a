"""Start and stop the local AWS and report its health. Commands may be repeated; concurrent ones wait for each other."""

from __future__ import annotations

import contextlib
import shutil
import time
from typing import TYPE_CHECKING, NamedTuple

from ...core.errors import RateLimiterUnavailable, StackOperationError
from ...stores.dynamodb.settings import check_region
from . import engine, installation, record
from .home import hold_lock

if TYPE_CHECKING:
    from .home import Home, Say
    from .record import RunningEngine

PORT = 4566
REGION = "us-east-1"
PATIENCE = 60.0
_GENTLE_SECONDS = 10.0


class StartOptions(NamedTuple):
    """Options of `up`. Without port or region, those of the running engine or the defaults apply."""

    port: int | None = None
    region: str | None = None
    patience: float = PATIENCE
    """Seconds until it has to answer."""


class StartResult(NamedTuple):
    """A running engine, and whether this call started it."""

    running: RunningEngine
    version: str
    started: bool


class EngineHealth(NamedTuple):
    """The health of an engine."""

    running: RunningEngine
    version: str | None
    """None where it does not answer."""

    uptime_seconds: float


def up(home: Home, options: StartOptions, say: Say) -> StartResult:
    """Return an engine that answers, starting one if none is running."""
    if options.region is not None:
        check_region(options.region)
    with hold_lock(home, say):
        found = record.find(home)
        if found is None:
            return _start(home, options, say)
        if options.port not in (None, found.port):
            raise StackOperationError(
                f"A local AWS runs on port {found.port} already, not on {options.port}: use that one, "
                "or stop it first with `zae-limiter local down`."
            )
        return StartResult(found, engine.wait(home, found, options.patience), started=False)


def _start(home: Home, options: StartOptions, say: Say) -> StartResult:
    port = options.port or PORT
    engine.check_port(port)
    command = installation.find_command(home, say)
    say(f"Starting a local AWS on port {port}")
    running = engine.start(home, command, port, options.region or REGION)
    try:
        record.save(home, running)
        return StartResult(running, engine.wait(home, running, options.patience), started=True)
    except BaseException:
        _end(home, running)
        raise


def down(home: Home, *, purge: bool, say: Say) -> RunningEngine | None:
    """Stop the engine. Return it, or None if none was running. ``purge`` also removes what was installed."""
    if not home.folder.exists():
        return None
    with hold_lock(home, say):
        found = record.find(home)
        if found is not None:
            say("Stopping the local AWS")
            _end(home, found)
        if purge:  # only our own files: the user may have chosen a folder that holds others
            for folder in (home.environment, home.scratch):
                shutil.rmtree(folder, ignore_errors=True)
            for file in (home.record, home.log, home.installation_log, home.lock):
                file.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                home.folder.rmdir()
    return found


def _end(home: Home, running: RunningEngine) -> None:
    running.process.end(_GENTLE_SECONDS)
    home.record.unlink(missing_ok=True)
    shutil.rmtree(home.scratch, ignore_errors=True)


def read_health(home: Home) -> EngineHealth | None:
    """Return the health of the engine, or None if none is running."""
    found = record.find(home)
    if found is None:
        return None
    return EngineHealth(found, engine.version(found.port), max(0.0, time.time() - found.since))


def require_running(home: Home) -> RunningEngine:
    """Return the running engine. Raise `RateLimiterUnavailable` if there is none."""
    found = record.find(home)
    if found is None:
        raise RateLimiterUnavailable("No local AWS is running: start one with `zae-limiter local up`.")
    return found
