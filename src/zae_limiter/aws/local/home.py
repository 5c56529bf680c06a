"""The folder in which the local AWS of this user is kept."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ...core.errors import ValidationError

HOME = "ZAE_LIMITER_LOCAL_HOME"


class Home:
    """The folder and the paths in it. Everything is created when it is needed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = folder / "environment"
        """The virtual environment that ministack is installed in."""
        self.scratch = folder / "scratch"
        """The engine's working folder, deleted when it ends."""
        self.log = folder / "engine.log"
        self.installation_log = folder / "install.log"
        """The output of pip."""
        self.record = folder / "engine.json"
        """The record of the running engine."""
        self.lock = folder / "lock"
        """The file that is locked while an engine is started or stopped."""


def find() -> Home:
    """Return the folder named by the environment, or the platform's default."""
    given = os.environ.get(HOME)
    if given is None:
        return Home(_data_folder() / "zae-limiter" / "local")
    folder = Path(given).expanduser()
    if not folder.is_absolute():
        raise ValidationError(HOME, given, "must be an absolute path, such as /home/me/local-aws")
    return Home(folder)


def _data_folder() -> Path:
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support"
    given = Path(os.environ.get("XDG_DATA_HOME", ""))
    return given if given.is_absolute() else Path.home() / ".local" / "share"
