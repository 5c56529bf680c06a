"""ministack: the one that the environment names, else one in a virtual environment that is made once.

It pins botocore, so it never shares an environment with the application.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

from ...core.errors import StackOperationError, ValidationError

if TYPE_CHECKING:
    from pathlib import Path

    from .home import Home
    from .turn import Say

COMMAND = "ZAE_LIMITER_MINISTACK"
REQUIREMENT = "ministack>=1.5,<2"


def command(home: Home, say: Say) -> list[str]:
    """The words that start ministack; installs it if that is still to be done."""
    given = os.environ.get(COMMAND)
    if given:
        return [_program(given)]
    python = home.environment / "bin" / "python"
    if not _ready(home, python):
        _install(home, python, say)
    return [str(python), "-m", "ministack"]


def _program(given: str) -> str:
    found = shutil.which(os.path.expanduser(given))
    if found is None:
        raise ValidationError(COMMAND, given, "is no program; name the ministack command, or unset it to install one")
    return os.path.abspath(found)


def _mark(home: Home) -> Path:
    return home.environment / ".requirement"


def _ready(home: Home, python: Path) -> bool:
    """Whether the environment was finished, for this requirement, and its Python is still there."""
    try:
        return python.exists() and _mark(home).read_text(encoding="utf-8") == REQUIREMENT
    except FileNotFoundError:
        return False


def _install(home: Home, python: Path, say: Say) -> None:
    say(f"Making an environment in {home.environment}")
    home.installation_log.unlink(missing_ok=True)
    _run(home, [sys.executable, "-m", "venv", "--clear", str(home.environment)])
    say(f"Installing {REQUIREMENT} (once)")
    _run(home, [str(python), "-m", "pip", "install", "--no-input", "--disable-pip-version-check", REQUIREMENT])
    _mark(home).write_text(REQUIREMENT, encoding="utf-8")


def _run(home: Home, words: list[str]) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    with home.installation_log.open("a+", encoding="utf-8", errors="replace") as log:
        done = subprocess.run(
            words,
            env=kept | {"PIP_USER": "0"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
        )
        log.seek(0)
        said = log.read()
    if done.returncode:
        raise StackOperationError(
            f"ministack could not be installed: {_reason(said)}. All that was said is in {home.installation_log}. "
            f"An installed one can be named with {COMMAND}=/path/to/ministack."
        )


def _reason(said: str) -> str:
    """The line that says why: pip's last error, else the last line."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    return (errors or lines or ["it ended without a word"])[-1].rstrip(".")
