"""What a test and the app of a server tell each other: lines in small files, so that the app may be another process.

A note belongs to a client (one per test) and has a name; it is a list of lines that only grows.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path

from tests.support.deadlines import PATIENCE

PAUSE = 0.002


class Stage:
    """A folder of notes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def note(self, client: str, name: str, text: object = "") -> None:
        """Add a line; short lines of several writers never mix."""
        handle = os.open(self._file(client, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(handle, f"{text}\n".encode())
        finally:
            os.close(handle)

    def notes(self, client: str, name: str) -> list[str]:
        """All lines so far."""
        try:
            return self._file(client, name).read_text().splitlines()
        except FileNotFoundError:
            return []

    def wait(self, client: str, name: str, count: int = 1) -> list[str]:
        """Block until there are ``count`` lines."""
        for _ in self._looks(client, name, count):
            time.sleep(PAUSE)
        return self.notes(client, name)

    async def wait_async(self, client: str, name: str, count: int = 1) -> list[str]:
        """As `wait`, for a task."""
        for _ in self._looks(client, name, count):
            await asyncio.sleep(PAUSE)
        return self.notes(client, name)

    def _looks(self, client: str, name: str, count: int) -> Iterator[None]:
        """One step per look in vain; an error when the patience ends."""
        end = time.monotonic() + PATIENCE
        while len(self.notes(client, name)) < count:
            if time.monotonic() > end:
                raise TimeoutError(f"{client}: no {count} lines of {name!r} within {PATIENCE:g} s")
            yield

    def _file(self, client: str, name: str) -> Path:
        return self.folder / f"{client}.{name}"
