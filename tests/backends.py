"""The backends under test. A new store is added here and nowhere else."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zae_limiter.stores.memory import MemoryStore
from zae_limiter.stores.opening import open_store
from zae_limiter.testing import Harness

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from zae_limiter.clock import Clock
    from zae_limiter.stores.port import Store

_COUNT = itertools.count()


def _memory(folder: Path) -> Callable[[Clock, bool], Store]:
    shared: list[MemoryStore] = []

    def opened(clock: Clock, blocking: bool) -> Store:
        if not shared:
            shared.append(MemoryStore(clock))
        return shared[0]

    return opened


def _sqlite(folder: Path) -> Callable[[Clock, bool], Store]:
    path = folder / f"{next(_COUNT)}.db"
    return lambda clock, blocking: open_store(f"sqlite:///{path}", blocking=blocking, clock=clock)


@dataclass(frozen=True)
class Backend:
    """A kind of store and a mode."""

    kind: str
    blocking: bool
    opener: Callable[[Path], Callable[[Clock, bool], Store]]

    def __str__(self) -> str:
        return f"{self.kind}-{'blocking' if self.blocking else 'async'}"

    @contextlib.contextmanager
    def harness(self, folder: Path) -> Iterator[Harness]:
        """A harness on fresh data; every store that was opened is closed at the end."""
        opened: list[Store] = []
        opener = self.opener(folder)

        def open_and_note(clock: Clock, blocking: bool) -> Store:
            store = opener(clock, blocking)
            opened.append(store)
            return store

        made = Harness(open_and_note, blocking=self.blocking)
        try:
            yield made
        finally:
            for store in opened:
                made.run(store.close())


BACKENDS = [
    Backend(kind, blocking, opener)
    for kind, opener in (("memory", _memory), ("sqlite", _sqlite))
    for blocking in (False, True)
]
