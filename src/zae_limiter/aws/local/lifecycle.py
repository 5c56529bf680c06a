"""Start and stop the local AWS, and the environment variables that make AWS clients use it.

Commands may be repeated; concurrent ones wait for each other.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import PurePath
from typing import NamedTuple

from ...core.errors import RateLimiterUnavailable, StackOperationError
from ...stores.dynamodb.settings import check_region
from . import engine
from .home import Home, RunningEngine, Say, find_running, hold_lock, save_running

PORT = 4566
REGION = "us-east-1"
PATIENCE = 60.0
_GENTLE_SECONDS = 10.0
_CONFUSING = ("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_SESSION_TOKEN")
"""Of an account that is not meant."""


class StartResult(NamedTuple):
    """A running engine, and whether this call started it."""

    running: RunningEngine
    version: str
    started: bool


def up(
    home: Home, say: Say, *, port: int | None = None, region: str | None = None, patience: float = PATIENCE
) -> StartResult:
    """Return an engine that answers within ``patience`` seconds, starting one if none is running.

    Without port or region, those of the running engine or the defaults apply.
    """
    if region is not None:
        check_region(region)
    with hold_lock(home, say):
        found = find_running(home)
        if found is not None:
            if port not in (None, found.port):
                raise StackOperationError(
                    f"A local AWS runs on port {found.port} already, not on {port}: use that one, "
                    "or stop it first with `zae-limiter local down`."
                )
            return StartResult(found, engine.wait(home, found, patience), started=False)
        port = port or PORT
        engine.check_port(port)
        command = engine.find_command(home, say)
        say(f"Starting a local AWS on port {port}")
        running = engine.start(home, command, port, region or REGION)
        try:
            save_running(home, running)
            return StartResult(running, engine.wait(home, running, patience), started=True)
        except BaseException:
            _end(home, running)
            raise


def down(home: Home, *, purge: bool, say: Say) -> RunningEngine | None:
    """Stop the engine. Return it, or None if none was running. ``purge`` also removes what was installed."""
    if not home.folder.exists():
        return None
    with hold_lock(home, say):
        found = find_running(home)
        if found is not None:
            say("Stopping the local AWS")
            _end(home, found)
        if purge:  # only our own files: the user may have chosen a folder that holds others
            for folder in (home.environment, home.scratch):
                shutil.rmtree(folder, ignore_errors=True)
            for file in (home.record, home.log, home.installation_log, home.lock):
                file.unlink(missing_ok=True)
            with suppress(OSError):
                home.folder.rmdir()
    return found


def _end(home: Home, running: RunningEngine) -> None:
    running.process.end(_GENTLE_SECONDS)
    home.record.unlink(missing_ok=True)
    shutil.rmtree(home.scratch, ignore_errors=True)


def require_running(home: Home) -> RunningEngine:
    """Return the running engine. Raise `RateLimiterUnavailable` if there is none."""
    found = find_running(home)
    if found is None:
        raise RateLimiterUnavailable("No local AWS is running: start one with `zae-limiter local up`.")
    return found


def variables(endpoint: str, region: str) -> dict[str, str]:
    """Return the endpoint, the region and dummy credentials as environment variables."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_REGION": region,
        "AWS_DEFAULT_REGION": region,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
    }


@contextmanager
def apply_variables(settings: dict[str, str]) -> Iterator[None]:
    """Set these environment variables for the length of a block, hiding the user's own account and profile."""
    touched = (*settings, *_CONFUSING)
    before = {name: os.environ.pop(name) for name in touched if name in os.environ}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name in settings:
            os.environ.pop(name, None)
        os.environ.update(before)


def detect_shell() -> str:
    """Return the dialect of the user's shell."""
    shell = PurePath(os.environ.get("SHELL", "")).name
    return {"fish": "fish", "pwsh": "powershell"}.get(shell, "bash")


def export_lines(settings: dict[str, str], shell: str) -> list[str]:
    """Return the commands that set the variables in ``shell``."""
    if shell == "powershell":
        quoted = {name: value.replace("'", "''") for name, value in settings.items()}
        return [f"$env:{name} = '{value}'" for name, value in quoted.items()]
    form = "set -gx {} {}" if shell == "fish" else "export {}={}"
    return [form.format(name, shlex.quote(value)) for name, value in settings.items()]
