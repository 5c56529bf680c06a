"""The environment variables that make AWS clients use the local AWS."""

from __future__ import annotations

import os
import shlex
from contextlib import contextmanager
from pathlib import PurePath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_CONFUSING = ("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_SESSION_TOKEN")
"""Of an account that is not meant."""


def variables(endpoint: str, region: str) -> dict[str, str]:
    """Return the endpoint, the region and dummy credentials as environment variables."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_REGION": region,
        "AWS_DEFAULT_REGION": region,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
    }


@contextmanager
def apply(settings: dict[str, str]) -> Iterator[None]:
    """Set these environment variables for the length of a block, hiding the user's own account and profile."""
    touched = (*settings, *_CONFUSING)
    before = {name: os.environ.pop(name) for name in touched if name in os.environ}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name in settings:
            os.environ.pop(name, None)
        os.environ.update(before)


def detect_shell() -> str:
    """Return the dialect of the user's shell."""
    shell = PurePath(os.environ.get("SHELL", "")).name
    return {"fish": "fish", "pwsh": "powershell"}.get(shell, "bash")


def lines(settings: dict[str, str], shell: str) -> list[str]:
    """Return the commands that set the variables in ``shell``."""
    if shell == "powershell":
        quoted = {name: value.replace("'", "''") for name, value in settings.items()}
        return [f"$env:{name} = '{value}'" for name, value in quoted.items()]
    form = "set -gx {} {}" if shell == "fish" else "export {}={}"
    return [form.format(name, shlex.quote(value)) for name, value in settings.items()]
