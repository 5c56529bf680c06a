"""Find ministack: the program that the environment names, or one installed once into a virtual environment.

ministack pins botocore, so it never shares an environment with the application.
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
    from .lock import Say

COMMAND = "ZAE_LIMITER_MINISTACK"
REQUIREMENT = "ministack>=1.5,<2"


def find_command(home: Home, say: Say) -> list[str]:
    """Return the command that starts ministack, installing it first if necessary."""
    given = os.environ.get(COMMAND)
    if given:
        return [_find_program(given)]
    python = home.environment / "bin" / "python"
    if not _is_ready(home, python):
        _install(home, python, say)
    return [str(python), "-m", "ministack"]


def _find_program(given: str) -> str:
    found = shutil.which(os.path.expanduser(given))
    if found is None:
        raise ValidationError(COMMAND, given, "is not a program; name the ministack command, or unset it to install it")
    return os.path.abspath(found)


def _marker(home: Home) -> Path:
    return home.environment / ".requirement"


def _is_ready(home: Home, python: Path) -> bool:
    """Return whether the environment was completed for this requirement and its Python still exists."""
    try:
        return python.exists() and _marker(home).read_text(encoding="utf-8") == REQUIREMENT
    except FileNotFoundError:
        return False


def _install(home: Home, python: Path, say: Say) -> None:
    say(f"Making an environment in {home.environment}")
    home.installation_log.unlink(missing_ok=True)
    _run(home, [sys.executable, "-m", "venv", "--clear", str(home.environment)])
    say(f"Installing {REQUIREMENT} (once)")
    _run(home, [str(python), "-m", "pip", "install", "--no-input", "--disable-pip-version-check", REQUIREMENT])
    _marker(home).write_text(REQUIREMENT, encoding="utf-8")


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
            f"ministack could not be installed: {_reason(said)}. The full log is in {home.installation_log}. "
            f"To use an installed one, set {COMMAND}=/path/to/ministack."
        )


def _reason(said: str) -> str:
    """Return pip's last error line, or the last line of its output."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    return (errors or lines or ["it printed nothing"])[-1].rstrip(".")
