"""The folder in which the local AWS of this user is kept."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NamedTuple

from ...core.errors import ValidationError

HOME = "ZAE_LIMITER_LOCAL_HOME"


class Home(NamedTuple):
    """The folder and the files in it. Everything is created when it is needed."""

    folder: Path

    @property
    def environment(self) -> Path:
        """The virtual environment that ministack is installed in."""
        return self.folder / "environment"

    @property
    def scratch(self) -> Path:
        """The engine's working folder, deleted when it ends."""
        return self.folder / "scratch"

    @property
    def log(self) -> Path:
        """The engine's log."""
        return self.folder / "engine.log"

    @property
    def installation_log(self) -> Path:
        """The output of pip."""
        return self.folder / "install.log"

    @property
    def record(self) -> Path:
        """The record of the running engine."""
        return self.folder / "engine.json"

    @property
    def lock(self) -> Path:
        """The file that is locked while an engine is started or stopped."""
        return self.folder / "lock"


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
