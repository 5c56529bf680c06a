"""The command line: ``zae-limiter``.

Importing this package loads neither click nor rich; `main` does.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit with its code. ``arguments`` default to those of the process."""
    from .app import root

    root.main(args=arguments, prog_name="zae-limiter")
