"""Identify processes by pid and start time: a pid alone may belong to another process by now."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_PROC = Path("/proc")
_LOOK_SECONDS = 0.05


class Process(NamedTuple):
    """A process, identified by its pid and its start time."""

    pid: int
    birth: str

    @property
    def alive(self) -> bool:
        """Whether it is still running."""
        return birth(self.pid) == self.birth

    def end(self, patience: float) -> None:
        """Stop the process group: terminate it, and kill it if it is still running after ``patience`` seconds."""
        for sign in (signal.SIGTERM, signal.SIGKILL):
            self._signal(sign)
            if self._gone(patience):
                return

    def _signal(self, sign: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):  # it has just ended; macOS says the latter
            if self.alive:
                os.killpg(os.getpgid(self.pid), sign)

    def _gone(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while self.alive:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_LOOK_SECONDS)
        return True


def birth(pid: int, proc: Path = _PROC) -> str | None:
    """Return when the process started, in the system's own format, or None if it is not running."""
    if (proc / "self" / "stat").exists():
        return _from_proc(pid, proc)
    return _from_ps(pid)


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


def _from_ps(pid: int) -> str | None:
    shown = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)],
        env={**os.environ, "LC_ALL": "C", "TZ": "UTC"},
        capture_output=True,
        text=True,
        check=False,
    ).stdout.split(maxsplit=1)
    return None if len(shown) < 2 or shown[0].startswith("Z") else shown[1].strip()
