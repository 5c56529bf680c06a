"""The command line: ``zae-limiter``.

Importing this package loads neither click nor rich; `main` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and leave with its exit code; the arguments are those of the process if not given."""
    from .app import root

    root.main(args=arguments, prog_name="zae-limiter")
