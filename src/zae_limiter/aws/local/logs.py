"""Read the log of the engine, of this run or of the last one."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

from . import record

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TextIO

    from .home import Home

_LOOK_SECONDS = 0.2


def last(home: Home, count: int) -> list[str]:
    """Return the last ``count`` lines; none if nothing has run yet."""
    try:
        with _open_log(home) as log:
            return [line.rstrip("\n") for line in deque(log, maxlen=count)]
    except FileNotFoundError:
        return []


def follow(home: Home, count: int) -> Iterator[str]:
    """Yield the last ``count`` lines and every further one until the engine ends."""
    with _open_log(home) as log:
        shown = deque(log, maxlen=count)
        begun = shown.pop() if shown and not shown[-1].endswith("\n") else ""
        yield from (line.rstrip("\n") for line in shown)
        running = True
        while running:
            running = record.find(home) is not None
            for part in iter(log.readline, ""):
                begun += part
                if begun.endswith("\n"):
                    yield begun.rstrip("\n")
                    begun = ""
            if running:
                time.sleep(_LOOK_SECONDS)
        if begun:
            yield begun


def _open_log(home: Home) -> TextIO:
    return home.log.open(encoding="utf-8", errors="replace")
