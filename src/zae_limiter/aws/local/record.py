"""The record of the running engine, valid only as long as its process is running.

A process is identified by its pid and its start time: a pid alone may belong to another process by now.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from .home import Home

_PROC = Path("/proc")
_LOOK_SECONDS = 0.05


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
        return _from_proc(pid, proc)
    shown = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)],
        env={**os.environ, "LC_ALL": "C", "TZ": "UTC"},
        capture_output=True,
        text=True,
        check=False,
    ).stdout.split(maxsplit=1)
    return None if len(shown) < 2 or shown[0].startswith("Z") else shown[1].strip()


def _from_proc(pid: int, proc: Path) -> str | None:
    """Return the boot id and the ticks since boot."""
    try:
        stat = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, *fields = stat.rpartition(")")[2].split()  # the name before it may hold anything
    if state in "ZX":
        return None
    boot = (proc / "sys" / "kernel" / "random" / "boot_id").read_text(encoding="ascii").strip()
    return f"{boot}/{fields[18]}"


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


def find(home: Home) -> RunningEngine | None:
    """Return the running engine, or None; a stale record is ignored."""
    try:
        found = json.loads(home.record.read_text(encoding="utf-8"))
        process = Process(int(found["process"]["pid"]), str(found["process"]["birth"]))
        running = RunningEngine(process, int(found["port"]), str(found["region"]), float(found["since"]))
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        return None
    return running if process.alive else None


def save(home: Home, running: RunningEngine) -> None:
    """Write the record atomically."""
    beside = home.record.with_suffix(".new")
    with beside.open("w", encoding="utf-8") as file:
        json.dump({**running._asdict(), "process": running.process._asdict()}, file)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(home.record)
