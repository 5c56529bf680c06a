"""Where the local AWS of this user lives on disk."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NamedTuple

from ...core.errors import ValidationError

HOME = "ZAE_LIMITER_LOCAL_HOME"


class Home(NamedTuple):
    """One folder; everything in it is made when it is needed."""

    folder: Path

    @property
    def environment(self) -> Path:
        """The virtual environment that ministack is installed in."""
        return self.folder / "environment"

    @property
    def scratch(self) -> Path:
        """What an engine writes while it runs; gone with it."""
        return self.folder / "scratch"

    @property
    def log(self) -> Path:
        """What the engine says."""
        return self.folder / "engine.log"

    @property
    def installation_log(self) -> Path:
        """What pip says."""
        return self.folder / "install.log"

    @property
    def record(self) -> Path:
        """Which engine runs."""
        return self.folder / "engine.json"

    @property
    def lock(self) -> Path:
        """Held by whoever starts or stops an engine."""
        return self.folder / "lock"


def find() -> Home:
    """The folder that the environment names, else the platform's place for data of applications."""
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
