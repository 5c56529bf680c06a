"""The folder in which the local AWS of this user is kept, the lock on it, and the record of the running engine.

The record is valid only as long as its process is running. A process is identified by its pid and its start time: a pid
alone may belong to another process by now.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from ...core.errors import ValidationError

HOME = "ZAE_LIMITER_LOCAL_HOME"

Say = Callable[[str], object]
"""Hears what is being done, a line at a time."""

_PROC = Path("/proc")
_LOOK_SECONDS = 0.05


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


def find_home() -> Home:
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
        try:
            home.folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(home.lock, os.O_RDWR | os.O_CREAT, 0o600)
        except FileNotFoundError:
            if home.lock.is_symlink():
                raise ValidationError(HOME, str(home.folder), "its lock is a link to nothing; remove it") from None
            continue  # purged between the two
        except OSError as error:
            raise ValidationError(HOME, str(home.folder), f"cannot be written to: {error.strerror}") from error
        try:
            if _lock(lock, home, say):
                yield
                return
        finally:
            os.close(lock)


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


class Process(NamedTuple):
    """A process, identified by its pid and its start time."""

    pid: int
    birth: str

    @property
    def alive(self) -> bool:
        """Return whether it is still running."""
        return birth(self.pid) == self.birth

    def end(self, patience: float) -> None:
        """Stop the process group: terminate it, and kill it if it is still running after ``patience`` seconds."""
        for sign in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError, PermissionError):  # it has just ended; macOS says the latter
                if self.alive:
                    os.killpg(os.getpgid(self.pid), sign)
            deadline = time.monotonic() + patience
            while self.alive and time.monotonic() < deadline:
                time.sleep(_LOOK_SECONDS)
            if not self.alive:
                return


def birth(pid: int, proc: Path = _PROC) -> str | None:
    """Return when the process started, in the system's own format, or None if it is not running."""
    if (proc / "self" / "stat").exists():
        try:
            stat = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            return None
        state, *fields = stat.rpartition(")")[2].split()  # the name before it may hold anything
        boot = (proc / "sys" / "kernel" / "random" / "boot_id").read_text(encoding="ascii").strip()
        return None if state in "ZX" else f"{boot}/{fields[18]}"  # with the ticks since boot
    shown = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)],
        env={**os.environ, "LC_ALL": "C", "TZ": "UTC"},
        capture_output=True,
        text=True,
        check=False,
    ).stdout.split(maxsplit=1)
    return None if len(shown) < 2 or shown[0].startswith("Z") else shown[1].strip()


class RunningEngine(NamedTuple):
    """An engine that was started on this machine."""

    process: Process
    port: int
    region: str
    since: float
    """Seconds since 1970."""

    @property
    def endpoint(self) -> str:
        """The URL of the engine."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def uptime_seconds(self) -> float:
        """The seconds since it was started."""
        return max(0.0, time.time() - self.since)


def find_running(home: Home) -> RunningEngine | None:
    """Return the running engine, or None; a stale record is ignored."""
    try:
        found = json.loads(home.record.read_text(encoding="utf-8"))
        process = Process(int(found["process"]["pid"]), str(found["process"]["birth"]))
        running = RunningEngine(process, int(found["port"]), str(found["region"]), float(found["since"]))
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        return None
    return running if process.alive else None


def save_running(home: Home, running: RunningEngine) -> None:
    """Write the record atomically."""
    beside = home.record.with_suffix(".new")
    with beside.open("w", encoding="utf-8") as file:
        json.dump({**running._asdict(), "process": running.process._asdict()}, file)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(home.record)
