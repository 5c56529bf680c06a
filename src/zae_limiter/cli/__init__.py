"""The command line: ``zae-limiter``.

Importing this package loads neither click nor rich; `main` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .app import root as cli

__all__ = ["cli", "main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit with its code. ``arguments`` default to those of the process."""
    from .app import root

    root.main(args=arguments, prog_name="zae-limiter")


def __getattr__(name: str) -> object:
    """Return the group of all commands by its name in 0.17 (`zae_limiter.v017`)."""
    if name == "cli":
        from .app import root

        return root
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
