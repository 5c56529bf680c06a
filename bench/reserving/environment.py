"""The environment of the limiters that need Python 3.12."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.support.interpreters import MINORS, find

from bench.partner import ROOT

VARIABLE = "PYTHON312"
"""Names an interpreter; otherwise it is looked for."""
FOLDER = ROOT / ".venv-bench-312"
NEEDS = (ROOT / "pyproject.toml", ROOT / "bench" / "requirements.txt", ROOT / "bench" / "requirements-312.txt")


def prepare() -> Path | None:
    """Return the Python of the environment, made or brought up to date; None if there is no interpreter for it."""
    ready, inner = FOLDER / ".ready", FOLDER / "bin" / "python"
    if ready.exists() and ready.stat().st_mtime > max(each.stat().st_mtime for each in NEEDS):
        return inner
    outer = os.environ.get(VARIABLE) or _found()
    if outer is None:
        return None
    subprocess.run([outer, "-m", "venv", "--clear", FOLDER], check=True)
    packages = ["-e", ".[dynamodb,redis,local]", "-r", str(NEEDS[-1])]
    subprocess.run([inner, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages], check=True)
    ready.touch()
    return inner


def _found() -> Path | None:
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = (find(minor, os.environ.get("PATH", ""), pyenv) for minor in MINORS)
    return next((python for python in found if python is not None), None)
