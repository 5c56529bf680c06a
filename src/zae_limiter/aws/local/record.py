"""Which engine runs: written as soon as it is started, believed only as long as its process is the same."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, NamedTuple

from .processes import Process

if TYPE_CHECKING:
    from .home import Home


class Running(NamedTuple):
    """An engine that was started here."""

    process: Process
    port: int
    region: str
    since: float
    """Seconds since 1970."""

    @property
    def endpoint(self) -> str:
        """Its URL."""
        return f"http://127.0.0.1:{self.port}"


def find(home: Home) -> Running | None:
    """The engine that runs; None if none does, whatever an old record says."""
    try:
        running = _read(home.record.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        return None
    return running if running.process.alive else None


def keep(home: Home, running: Running) -> None:
    """Write it down, whole or not at all."""
    beside = home.record.with_suffix(".new")
    with beside.open("w", encoding="utf-8") as file:
        json.dump(_plain(running), file)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(home.record)


def forget(home: Home) -> None:
    """There is none."""
    home.record.unlink(missing_ok=True)


def _plain(running: Running) -> dict[str, object]:
    return {**running._asdict(), "process": running.process._asdict()}


def _read(text: str) -> Running:
    found = json.loads(text)
    process = Process(int(found["process"]["pid"]), str(found["process"]["birth"]))
    return Running(process, int(found["port"]), str(found["region"]), float(found["since"]))
