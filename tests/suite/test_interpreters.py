"""Finding other interpreters: on the PATH, then among those of pyenv, and only such as run."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.support import interpreters
from tests.support.paths import ROOT


def program(path: Path, script: str) -> Path:
    """Make a file that can be run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def python(path: Path, answer: str = "True") -> Path:
    """Make an interpreter that gives this answer to whatever it is asked."""
    return program(path, f"echo {answer}")


def found(minor: int, folder: Path) -> Path | None:
    path = os.pathsep.join(str(folder / name) for name in ("shims", "bin", "nowhere"))
    return interpreters.find(minor, path, folder / "pyenv")


def test_nothing_is_found_where_there_is_nothing(tmp_path: Path) -> None:
    assert found(12, tmp_path) is None


def test_the_path_comes_first(tmp_path: Path) -> None:
    python(tmp_path / "pyenv/versions/3.12.1/bin/python")
    wanted = python(tmp_path / "bin/python3.12")
    assert found(12, tmp_path) == wanted


def test_a_shim_without_a_version_behind_it_is_passed_over(tmp_path: Path) -> None:
    program(tmp_path / "shims/python3.13", "echo 'pyenv: python3.13: command not found' >&2; exit 127")
    python(tmp_path / "bin/python3.13", "False")
    wanted = python(tmp_path / "pyenv/versions/3.13.0/bin/python")
    assert found(13, tmp_path) == wanted


def test_the_newest_of_several_versions_is_taken(tmp_path: Path) -> None:
    for version in ("3.14.9", "3.14.0b1", "3.14.10", "3.13.99", "3.14.10rc1"):
        python(tmp_path / f"pyenv/versions/{version}/bin/python")
    assert found(14, tmp_path) == tmp_path / "pyenv/versions/3.14.10/bin/python"


@pytest.mark.parametrize("pattern", interpreters.TESTS)
def test_what_is_to_be_run_is_there(pattern: str) -> None:
    assert list((ROOT / "tests").glob(pattern))


def test_all_versions_that_are_promised_are_looked_for() -> None:
    """The oldest one is what everything runs on; the others are run here."""
    promised = re.findall(r'Python :: 3\.(\d+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert {int(minor) for minor in promised[1:]} <= set(interpreters.MINORS)
    assert len(promised) > 1


def test_it_is_a_failure_if_nothing_could_be_tested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    assert interpreters.main([]) == 1
    assert capsys.readouterr().out.splitlines() == [f"Python 3.{minor}: not found" for minor in interpreters.MINORS]
