"""Marks that waiters leave in a bucket, so that other processes do not overtake them.

    w_{line}    the first waiter of a line, as JSON: since when it waits, ms; until when the mark counts, ms; what it
                wants, in thousandths by limit

A line belongs to one event loop, or to the blocking threads of one process. A mark is never a reason to refuse a caller
that does not wait: it only puts the waiters of several processes in order. A mark that is not renewed stops counting,
so a process that is killed delays others for a moment at most.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from functools import lru_cache
from typing import NamedTuple

from .algebra import PRESENT, Image, Key, Write

WAITER_PREFIX = "w_"
MARK_MS = 2_500
"""How long a mark counts unless it is renewed, in milliseconds."""
_FORGOTTEN_MS = 10_000
"""How long after its end a mark is removed by another process, in milliseconds."""
PATIENCE_MS, _MORE_PATIENT = 500, 1.5
"""A waiter for a slot lets another process's waiter go first that has waited at least this long, in milliseconds, and
this many times as long as itself: a slot that changes hands stays unused until the other process looks."""


class Waiter(NamedTuple):
    """The first waiter of a line: since when it waits, until when its mark counts, and what it wants."""

    since_ms: int
    until_ms: int
    cost: dict[str, int]

    def encode(self) -> str:
        """Return the mark."""
        return json.dumps(self, separators=(",", ":"))

    def precedes(self, since_ms: int, now_ms: int, *, slot: bool) -> bool:
        """Return whether a waiter of another process that waits since ``since_ms`` lets this one go first."""
        if slot:
            return now_ms - self.since_ms > max(PATIENCE_MS, _MORE_PATIENT * (now_ms - since_ms))
        return self.since_ms < since_ms


@lru_cache(maxsize=256)
def _parse(mark: str) -> Waiter | None:
    """Return the waiter of a mark; None for a damaged one, which counts as none."""
    try:
        since_ms, until_ms, cost = json.loads(mark)
        return Waiter(int(since_ms), int(until_ms), {str(name): int(need) for name, need in cost.items()})
    except (ValueError, TypeError, AttributeError, ArithmeticError, RecursionError):
        return None


def find_waiters(image: Image | None, now_ms: int, line: str = "") -> Iterator[Waiter]:
    """Iterate over the waiters whose marks count in a bucket, except the one of ``line``."""
    for attr, mark in (image or {}).items():
        if attr.startswith(WAITER_PREFIX) and attr != line:
            waiter = _parse(str(mark))
            if waiter is not None and waiter.until_ms > now_ms:
                yield waiter


def sum_ahead(image: Image | None, line: str, since_ms: int, now_ms: int, slots: Collection[str]) -> dict[str, int]:
    """Return what other lines' waiters want who go before one of ``line``, by limit; ``slots`` are limits of these."""
    wanted: dict[str, int] = {}
    for waiter in find_waiters(image, now_ms, line):
        for name, need in waiter.cost.items():
            if waiter.precedes(since_ms, now_ms, slot=name in slots):
                wanted[name] = wanted.get(name, 0) + need
    return wanted


def leave_mark(key: Key, image: Image, line: str, waiter: Waiter, now_ms: int) -> Write:
    """Return the write that leaves a mark in a bucket, and removes those that are not renewed any more."""
    marks = {attr: _parse(str(image[attr])) for attr in image if attr.startswith(WAITER_PREFIX) and attr != line}
    dead = [attr for attr, other in marks.items() if other is None or other.until_ms < now_ms - _FORGOTTEN_MS]
    return Write(key, (PRESENT,), {line: waiter.encode()}, remove=tuple(dead), seen=image)


def pass_on(write: Write, line: str, waiter: Waiter | None) -> Write:
    """Return a write that serves the first waiter of a line, which also hands its mark to the next one, if any."""
    if waiter is None:
        return write._replace(remove=(*write.remove, line))
    return write._replace(put={**write.put, line: waiter.encode()})
