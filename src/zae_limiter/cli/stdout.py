"""Standard output: what it cannot show is replaced, and what cannot be written ends the command with one line."""

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
    """The file behind stdout. A write that fails raises `OutputError`, whoever wrote and however it was buffered."""

    def __init__(self, file: io.FileIO) -> None:
        super().__init__()
        self._file = file

    def writable(self) -> bool:
        """Always."""
        return True

    def fileno(self) -> int:
        """That of the file."""
        return self._file.fileno()

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return self._file.isatty()

    def write(self, data: ReadableBuffer, /) -> int | None:
        """Write to the file."""
        try:
            return self._file.write(data)
        except OSError as error:
            self._discard_the_rest()
            reason = f"{error.strerror or error}. Whatever the command has changed stays changed"
            raise OutputError(reason) from None

    def _discard_the_rest(self) -> None:
        """Send what is still buffered nowhere: Python tries to write it once more when it ends."""
        with suppress(OSError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._file.fileno())
            os.close(nowhere)


def prepare_streams() -> None:
    """Make stdout raise `OutputError`, and let both streams show a substitute for what they cannot encode.

    Raises `OutputError` where stdout is closed: nothing that a command does could be told.
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
            io.BufferedWriter(CheckedOutput(file)),
            encoding=sys.stdout.encoding,
            errors="replace",
            line_buffering=True,
        )
