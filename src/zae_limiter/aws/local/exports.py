"""The settings under which every AWS client of a shell talks to the local AWS."""

from __future__ import annotations

import os
import shlex
from contextlib import contextmanager
from pathlib import PurePath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

SHELLS = ("bash", "fish", "powershell")
_CONFUSING = ("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_SESSION_TOKEN")
"""Of an account that is not meant."""

_NAMED = {"fish": "fish", "pwsh": "powershell"}


def variables(endpoint: str, region: str) -> dict[str, str]:
    """Endpoint, region, and credentials that are no secret."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_REGION": region,
        "AWS_DEFAULT_REGION": region,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
    }


@contextmanager
def applied(settings: dict[str, str]) -> Iterator[None]:
    """This process under these settings, whatever account and profile it was started with, for a block."""
    touched = (*settings, *_CONFUSING)
    before = {name: os.environ.pop(name) for name in touched if name in os.environ}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name in settings:
            os.environ.pop(name, None)
        os.environ.update(before)


def own_shell() -> str:
    """The dialect of the user's shell."""
    return _NAMED.get(PurePath(os.environ.get("SHELL", "")).name, "bash")


def lines(settings: dict[str, str], shell: str) -> list[str]:
    """Commands that set them."""
    return [_line(name, value, shell) for name, value in settings.items()]


def _line(name: str, value: str, shell: str) -> str:
    if shell == "powershell":
        quoted = value.replace("'", "''")
        return f"$env:{name} = '{quoted}'"
    quoted = shlex.quote(value)
    return f"set -gx {name} {quoted}" if shell == "fish" else f"export {name}={quoted}"
