"""CPU pinning: a server that shares its core with the load pays more for that than for any limiter."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


def keep_to_the_last() -> None:
    """Stay on the last core, for good; does nothing where there is only one, or no way to choose."""
    cores = _cores()
    if len(cores) > 1:
        os.sched_setaffinity(0, {max(cores)})


@contextmanager
def keeping_to_the_first() -> Iterator[None]:
    """Stay on the first core inside the block. Processes that are started there stay as well."""
    cores = _cores()
    if len(cores) > 1:
        os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        if len(cores) > 1:
            os.sched_setaffinity(0, cores)


def _cores() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
