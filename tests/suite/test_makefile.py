"""What the targets of the Makefile do, with a stand-in for the interpreter that they start."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.deadlines import PATIENCE
from tests.support.paths import ROOT

MAKE = shutil.which("make")

pytestmark = pytest.mark.skipif(MAKE is None, reason="make is not installed: nothing to run the targets with")

STAND_IN = """#!/bin/sh
echo "$*" >> {log}
case "$*" in *"{failing}"*) exit 1;; esac
"""


def environment_in(folder: Path, failing: str) -> Path:
    """An environment that is ready, whose Python writes down what it is asked and fails at what has ``failing``."""
    (folder / "bin").mkdir(parents=True)
    for name in ("bin/pip", ".dev", ".ready"):
        (folder / name).touch()
        os.utime(folder / name)
    python = folder / "bin" / "python"
    python.write_text(STAND_IN.format(log=folder / "log", failing=failing))
    python.chmod(0o755)
    return folder


def make(target: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Make a target with this environment in place of the real ones."""
    command = [str(MAKE), target, f"VENV={folder}", f"AWS={folder}"]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(command, cwd=ROOT, env=inherited, capture_output=True, text=True, timeout=PATIENCE)


@pytest.mark.parametrize(
    ("failing", "fails"), [("nothing like it", False), ("not alone", True), ("-m alone", True), ("pytest", True)]
)
def test_both_runs_of_the_tests_take_place_and_either_failure_counts(failing: str, fails: bool, tmp_path: Path) -> None:
    folder = environment_in(tmp_path / "venv", failing)
    done = make("test", folder)
    assert (done.returncode != 0) is fails, done.stdout + done.stderr
    first, second = (folder / "log").read_text().splitlines()
    assert first.startswith("-m pytest -m not alone ")
    assert second.startswith("-m pytest -m alone tests/")


def test_the_fast_tests_are_there_and_need_no_server(tmp_path: Path) -> None:
    folder = environment_in(tmp_path / "venv", "nothing like it")
    done = make("test-fast", folder)
    assert done.returncode == 0, done.stdout + done.stderr
    (words,) = (folder / "log").read_text().splitlines()
    assert words.startswith("-m pytest -m not alone -k not redis and not dynamodb --hypothesis-profile=fast ")
    paths = [word for word in words.split() if word.startswith("tests/")]
    assert len(paths) > 10
    assert [path for path in paths if not (ROOT / path).exists()] == []
