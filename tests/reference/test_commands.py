"""Every command and every option of 0.17's help is accepted here."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import click
import pytest

from tests.reference import lists_commands
from tests.support.paths import ROOT
from tests.v017.old_names import list_old_names
from zae_limiter.cli.app import root
from zae_limiter.v017.commands import GONE

PYTHON = Path(os.environ.get("ZAE_TEST_REFERENCE", ROOT / ".venv-bench-reference/bin/python"))

pytestmark = [
    pytest.mark.reference,
    pytest.mark.skipif(not PYTHON.exists(), reason="version 0.17 is not installed; `make bench` sets it up"),
]


def find_command(path: str) -> click.Command | None:
    """Return the command of these words, or None."""
    found: click.Command | None = root
    context = click.Context(root)
    for word in path.split():
        found = found.get_command(context, word) if isinstance(found, click.Group) else None
        if found is not None:
            context = click.Context(found, parent=context, info_name=word)
    return found


def list_names(path: str, command: click.Command) -> set[str]:
    """Return all names of options and arguments that a command accepts."""
    found = list_old_names(path)
    for param in command.params:
        found.update(param.opts, param.secondary_opts)
    return found


def test_every_option_is_accepted() -> None:
    command = [str(PYTHON), "-W", "ignore", lists_commands.__file__]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": ""}, capture_output=True, text=True, check=True)
    theirs: dict[str, list[str]] = json.loads(done.stdout)
    assert len(theirs) > 50
    missing: dict[str, object] = {}
    for path, options in theirs.items():
        ours = find_command(path)
        flags = {name for name in options if name.startswith("-")}
        if any(path.startswith(gone) for gone in GONE):
            assert ours is None or ours.hidden, path
        elif ours is None:
            missing[path] = "no such command"
        elif flags - list_names(path, ours):
            missing[path] = sorted(flags - list_names(path, ours))
    assert missing == {}
