"""The folder in which the local AWS of this user is kept, and the lock on it."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ...core.errors import ValidationError

if TYPE_CHECKING:
    from collections.abc import Iterator

HOME = "ZAE_LIMITER_LOCAL_HOME"

Say = Callable[[str], object]
"""Hears what is being done, a line at a time."""


class Home:
    """The folder and the paths in it. Everything is created when it is needed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = folder / "environment"
        """The virtual environment that ministack is installed in."""
        self.scratch = folder / "scratch"
        """The engine's working folder, deleted when it ends."""
        self.log = folder / "engine.log"
        self.installation_log = folder / "install.log"
        """The output of pip."""
        self.record = folder / "engine.json"
        """The record of the running engine."""
        self.lock = folder / "lock"
        """The file that is locked while an engine is started or stopped."""


def find() -> Home:
    """Return the folder named by the environment, or the platform's default."""
    given = os.environ.get(HOME)
    if given is not None:
        folder = Path(given).expanduser()
        if not folder.is_absolute():
            raise ValidationError(HOME, given, "must be an absolute path, such as /home/me/local-aws")
        return Home(folder)
    if sys.platform == "darwin":
        data = Path.home() / "Library" / "Application Support"
    else:
        data = Path(os.environ.get("XDG_DATA_HOME", ""))
        data = data if data.is_absolute() else Path.home() / ".local" / "share"
    return Home(data / "zae-limiter" / "local")


@contextmanager
def hold_lock(home: Home, say: Say) -> Iterator[None]:
    """Hold the lock for the length of a block: one command at a time starts or stops the engine.

    The lock is released when its process ends.
    """
    while True:
        lock = _open_lock_file(home)
        try:
            if _lock(lock, home, say):
                yield
                return
        finally:
            os.close(lock)


def _open_lock_file(home: Home) -> int:
    try:
        home.folder.mkdir(parents=True, exist_ok=True)
        return os.open(home.lock, os.O_RDWR | os.O_CREAT, 0o600)
    except FileNotFoundError:  # purged between the two
        return _open_lock_file(home)
    except OSError as error:
        raise ValidationError(HOME, str(home.folder), f"cannot be written to: {error.strerror}") from error


def _lock(lock: int, home: Home, say: Say) -> bool:
    """Wait for the lock. Return False if another command has replaced the file meanwhile."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say("Waiting for another `zae-limiter local` to finish")
        fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        return os.path.samestat(os.fstat(lock), home.lock.stat())
    except FileNotFoundError:
        return False
