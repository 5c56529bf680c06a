"""The command line as tests use it: a terminal on a SQLite file, and single commands on anything."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

from click.testing import CliRunner, Result

from zae_limiter import SyncRepository
from zae_limiter.cli.app import root

if TYPE_CHECKING:
    from pathlib import Path

UNSET = dict.fromkeys(("ZAE_LIMITER_URL", "ZAEL_STACK", "ZAEL_NAMESPACE"))
"""Variables that choose a store, out of the way."""


class Terminal:
    """Runs commands on one SQLite file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.url = f"sqlite:///{path}"
        self._runner = CliRunner(env={**UNSET, "ZAE_LIMITER_PRINCIPAL": "tester", "NO_COLOR": None})

    def run(self, *words: str, input: str | None = None) -> Result:
        return self._runner.invoke(root, ["--url", self.url, *words], input=input, catch_exceptions=False)

    def raw(self, *words: str, env: dict[str, str | None] | None = None) -> Result:
        """Without ``--url``."""
        return self._runner.invoke(root, words, env=env, catch_exceptions=False)

    def copied(self) -> Path:
        """The same data in another file."""
        target = self._path.with_name("copy.db")
        with closing(sqlite3.connect(self._path)) as source, closing(sqlite3.connect(target)) as made:
            source.backup(made)
        return target

    def text(self, *words: str) -> str:
        result = self.run(*words)
        assert result.exit_code == 0, result.output
        return result.stdout

    def json(self, *words: str) -> Any:
        result = self.run("--json", *words)
        assert result.exit_code == 0, result.output
        assert result.stderr == ""
        return json.loads(result.stdout)


def fresh(path: Path) -> Terminal:
    """A terminal on a file that is there."""
    made = Terminal(path / "limits.db")
    with SyncRepository(made.url) as repository:
        repository.ensure_infrastructure()
    return made


def populated(terminal: Terminal) -> Terminal:
    """A key of a project of an organisation, with limits at all levels."""
    terminal.text("entity", "create", "acme")
    terminal.text("entity", "create", "chat", "--parent", "acme", "--cascade")
    terminal.text("entity", "create", "key", "--parent", "chat", "--cascade")
    terminal.text("system", "set-defaults", "-l", "rpm:1000/day", "-l", "tpm:90000/day")
    terminal.text("resource", "set-defaults", "gpt-4", "-l", "rpm:100/day", "-l", "tpm:9000/day")
    terminal.text("entity", "set-limits", "key", "-r", "gpt-4", "-l", "rpm:10/day", "-l", "tpm:900/day")
    terminal.text("entity", "set-limits", "chat", "-l", "rpm:50/day", "-l", "tpm:5000/day")
    return terminal


def words(text: str) -> list[list[str]]:
    """The lines of a table, as words."""
    return [line.split() for line in text.splitlines()]


def run(*words: str, env: dict[str, str | None] | None = None) -> Result:
    """Run one command, which names its store itself."""
    runner = CliRunner(env={**UNSET, **(env or {})})
    return runner.invoke(root, words, catch_exceptions=False)
