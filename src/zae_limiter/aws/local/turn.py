"""One command at a time starts or stops the engine. The turn ends with the process that has it, however that ends."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ...core.errors import ValidationError
from .home import HOME, Home

if TYPE_CHECKING:
    from collections.abc import Iterator


Say = Callable[[str], object]
"""Hears what is being done, a line at a time."""


@contextmanager
def turn(home: Home, say: Say) -> Iterator[None]:
    """Wait for the turn and keep it for a block."""
    taken = _take(home, say)
    try:
        yield
    finally:
        os.close(taken)


def _take(home: Home, say: Say) -> int:
    """A lock on the file that the path leads to now: the one before may have been purged while we waited for it."""
    while True:
        lock = _opened(home)
        try:
            _wait(lock, say)
            if _same(lock, home):
                return lock
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)


def _opened(home: Home) -> int:
    try:
        home.folder.mkdir(parents=True, exist_ok=True)
        return os.open(home.lock, os.O_RDWR | os.O_CREAT, 0o600)
    except FileNotFoundError:  # purged between the two
        return _opened(home)
    except OSError as error:
        raise ValidationError(HOME, str(home.folder), f"cannot be written to: {error.strerror}") from error


def _wait(lock: int, say: Say) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say("Waiting for another `zae-limiter local` to finish")
        fcntl.flock(lock, fcntl.LOCK_EX)


def _same(lock: int, home: Home) -> bool:
    try:
        return os.path.samestat(os.fstat(lock), home.lock.stat())
    except FileNotFoundError:
        return False
