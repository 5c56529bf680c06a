"""What the targets for releases do, with a stand-in for the interpreter that they start."""

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


def commands_of(target: str, folder: Path, *variables: str) -> list[str]:
    """Run a target in an environment that is ready, and return what its Python is asked to do."""
    (folder / "bin").mkdir()
    for name in (".dev", ".coverage", ".ready", "bin/pip"):
        (folder / name).touch()
    (folder / "bin" / "python").write_text(f'#!/bin/sh\necho "$*" >> {folder}/log\n')
    (folder / "bin" / "python").chmod(0o755)
    command = [str(MAKE), target, *(f"{name}={folder}" for name in ("VENV", "AWS", "RELEASE")), *variables]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(command, cwd=ROOT, env=inherited, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    return (folder / "log").read_text().splitlines()


def test_a_release_is_checked_by_its_tag(tmp_path: Path) -> None:
    assert commands_of("release-check", tmp_path, "TAG=v1.0.0") == ["-m tools.release_check v1.0.0"]


def test_without_a_tag_the_present_state_is_checked(tmp_path: Path) -> None:
    assert commands_of("release-check", tmp_path) == ["-m tools.release_check"]


def test_public_types_are_checked_by_the_pyright_of_the_release(tmp_path: Path) -> None:
    assert commands_of("types-public", tmp_path) == [f"-m tools.public_types {tmp_path}/bin/pyright"]


def test_coverage_is_that_of_the_tests(tmp_path: Path) -> None:
    (command,) = commands_of("coverage", tmp_path)
    assert command.startswith("-m pytest -m not alone ")
    assert "--cov " in command
