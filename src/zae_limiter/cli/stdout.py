"""Standard output that replaces what it cannot encode, and reports what it cannot write."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from .errors import OutputError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class CheckedOutput(io.RawIOBase):
    """The file behind stdout. A failing write raises `OutputError`, however it was buffered."""

    def __init__(self, file: io.FileIO) -> None:
        super().__init__()
        self._file = file

    def writable(self) -> bool:
        """Return True."""
        return True

    def fileno(self) -> int:
        """Return the file's descriptor."""
        return self._file.fileno()

    def isatty(self) -> bool:
        """Return whether it is a terminal."""
        return self._file.isatty()

    def write(self, data: ReadableBuffer, /) -> int | None:
        """Write to the file. Raise `OutputError` if that fails."""
        try:
            return self._file.write(data)
        except OSError as error:
            self._discard_the_rest()
            reason = f"{error.strerror or error}. Whatever the command has changed stays changed"
            raise OutputError(reason) from None

    def _discard_the_rest(self) -> None:
        """Redirect the file to nowhere: Python tries to write buffered output again on exit."""
        with suppress(OSError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._file.fileno())
            os.close(nowhere)


def prepare_streams() -> None:
    """Make stdout raise `OutputError`, and let both streams replace what they cannot encode.

    Raise `OutputError` if stdout is closed: no command could show its result.
    """
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")
    if sys.stdout is None:
        raise OutputError("stdout is closed. Nothing was done; > /dev/null throws the output away")
    buffer: Any = getattr(sys.stdout, "buffer", None)
    file = getattr(buffer, "raw", buffer)
    if isinstance(file, io.FileIO):
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(CheckedOutput(file)), encoding=sys.stdout.encoding, errors="replace", line_buffering=True
        )
