"""A subprocess that exchanges lines of JSON with this one."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).parents[1]


class Partner:
    """It runs for the duration of a ``with`` block and ends when its standard input does."""

    def __init__(self, *command: str | Path, env: Mapping[str, str] | None = None) -> None:
        self._command = " ".join(map(str, command))
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def tell(self, words: Any) -> None:
        """Send a line."""
        assert self._process.stdin is not None
        print(json.dumps(words), file=self._process.stdin, flush=True)

    def hear(self) -> Any:
        """The next line that it says."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"gave up, its words are above: {self._command}")
        return json.loads(line)

    def ask(self, words: Any) -> Any:
        """Send a line and wait for the answer."""
        self.tell(words)
        return self.hear()

    def kill(self) -> None:
        """End it at once, whatever it is doing."""
        self._process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        if kind is not None:
            self.kill()
        self._process.communicate()
