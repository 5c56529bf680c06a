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

    from .home import Home, Say

COMMAND = "ZAE_LIMITER_MINISTACK"
REQUIREMENT = "ministack>=1.5,<2"


def find_command(home: Home, say: Say) -> list[str]:
    """Return the command that starts ministack, installing it first if necessary."""
    given = os.environ.get(COMMAND)
    if given:
        found = shutil.which(os.path.expanduser(given))
        if found is None:
            reason = "is not a program; name the ministack command, or unset it to install it"
            raise ValidationError(COMMAND, given, reason)
        return [os.path.abspath(found)]
    python = home.environment / "bin" / "python"
    marker = home.environment / ".requirement"
    if not _is_ready(python, marker):
        say(f"Making an environment in {home.environment}")
        home.installation_log.unlink(missing_ok=True)
        _run(home, [sys.executable, "-m", "venv", "--clear", str(home.environment)])
        say(f"Installing {REQUIREMENT} (once)")
        _run(home, [str(python), "-m", "pip", "install", "--no-input", "--disable-pip-version-check", REQUIREMENT])
        marker.write_text(REQUIREMENT, encoding="utf-8")
    return [str(python), "-m", "ministack"]


def _is_ready(python: Path, marker: Path) -> bool:
    """Return whether the environment was completed for this requirement and its Python still exists."""
    try:
        return python.exists() and marker.read_text(encoding="utf-8") == REQUIREMENT
    except FileNotFoundError:
        return False


def _run(home: Home, words: list[str]) -> None:
    """Run a program. Raise `StackOperationError` with pip's last error line, or the last line of the output."""
    settings = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")} | {"PIP_USER": "0"}
    with home.installation_log.open("a+", encoding="utf-8", errors="replace") as log:
        done = subprocess.run(
            words, env=settings, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, check=False
        )
        log.seek(0)
        lines = [line.strip() for line in log if line.strip()]
    if done.returncode:
        errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
        reason = (errors or lines or ["it printed nothing"])[-1].rstrip(".")
        raise StackOperationError(
            f"ministack could not be installed: {reason}. The full log is in {home.installation_log}. "
            f"To use an installed one, set {COMMAND}=/path/to/ministack."
        )
