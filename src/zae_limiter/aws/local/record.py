"""The record of the running engine, valid only as long as its process is running."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, NamedTuple

from .processes import Process

if TYPE_CHECKING:
    from .home import Home


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
        running = _parse(home.record.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        return None
    return running if running.process.alive else None


def save(home: Home, running: RunningEngine) -> None:
    """Write the record atomically."""
    beside = home.record.with_suffix(".new")
    with beside.open("w", encoding="utf-8") as file:
        json.dump(_to_dict(running), file)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(home.record)


def forget(home: Home) -> None:
    """Delete the record."""
    home.record.unlink(missing_ok=True)


def _to_dict(running: RunningEngine) -> dict[str, object]:
    return {**running._asdict(), "process": running.process._asdict()}


def _parse(text: str) -> RunningEngine:
    found = json.loads(text)
    process = Process(int(found["process"]["pid"]), str(found["process"]["birth"]))
    return RunningEngine(process, int(found["port"]), str(found["region"]), float(found["since"]))
