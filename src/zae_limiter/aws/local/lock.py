"""A file lock that lets one command at a time start or stop the engine. It is released when its process ends."""

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
def hold_lock(home: Home, say: Say) -> Iterator[None]:
    """Wait for the lock and hold it for the length of a block."""
    lock = _lock(home, say)
    try:
        yield
    finally:
        os.close(lock)


def _lock(home: Home, say: Say) -> int:
    """Lock the file that the path names now: while we waited, another command may have replaced it."""
    while True:
        lock = _open_lock_file(home)
        try:
            _wait(lock, say)
            if _is_current(lock, home):
                return lock
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)


def _open_lock_file(home: Home) -> int:
    try:
        home.folder.mkdir(parents=True, exist_ok=True)
        return os.open(home.lock, os.O_RDWR | os.O_CREAT, 0o600)
    except FileNotFoundError:  # purged between the two
        return _open_lock_file(home)
    except OSError as error:
        raise ValidationError(HOME, str(home.folder), f"cannot be written to: {error.strerror}") from error


def _wait(lock: int, say: Say) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say("Waiting for another `zae-limiter local` to finish")
        fcntl.flock(lock, fcntl.LOCK_EX)


def _is_current(lock: int, home: Home) -> bool:
    try:
        return os.path.samestat(os.fstat(lock), home.lock.stat())
    except FileNotFoundError:
        return False
