"""Local AWSs for tests: each in a folder of its own, on a port of its own, and ended whatever happens."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.aws import engine as tested
from tests.support.aws.keeper import free_port
from zae_limiter.aws.local import engine, home, lifecycle

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zae_limiter.aws.local.home import Process
    from zae_limiter.aws.local.lifecycle import StartResult

SCRIPTS = Path(sys.executable).parent


class Place:
    """A folder, a port, and every engine that was started there."""

    def __init__(self, folder: Path) -> None:
        self.home = home.Home(folder)
        self.port = free_port()
        self.said: list[str] = []
        self._processes: set[Process] = set()

    def up(self, **wish: float) -> StartResult:
        """Start, or find."""
        try:
            patience = wish.get("patience", lifecycle.PATIENCE)
            return lifecycle.up(self.home, self.said.append, port=self.port, patience=patience)
        finally:
            self.note()

    def down(self, *, purge: bool = False) -> home.RunningEngine | None:
        """Stop."""
        return lifecycle.down(self.home, purge=purge, say=self.said.append)

    def note(self) -> None:
        """Remember what runs, so that it ends with the test."""
        found = home.find_running(self.home)
        if found is not None:
            self._processes.add(found.process)

    def end(self) -> None:
        """End everything."""
        self.note()
        for process in self._processes:
            process.end(10)

    def settings(self) -> dict[str, str]:
        """The environment of a command that works here."""
        kept = {name: os.environ[name] for name in os.environ if not name.startswith(("AWS_", "ZAE_"))}
        return kept | {
            "PATH": f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            home.HOME: str(self.home.folder),
            engine.COMMAND: tested.command(),
            "ZAE_LIMITER_LOCAL_PORT": str(self.port),
        }

    def shell(self, script: str, **more: str) -> subprocess.CompletedProcess[str]:
        """Run a script as a user would."""
        words = ["bash", "-c", f"set -e\n{script}"]
        return subprocess.run(words, env=self.settings() | more, capture_output=True, text=True, check=False)


@contextmanager
def placed(folder: Path) -> Iterator[Place]:
    """A place whose engines end with the block; a blank in its path is what macOS has in its own."""
    place = Place(folder / "local aws")
    try:
        yield place
    finally:
        place.end()
